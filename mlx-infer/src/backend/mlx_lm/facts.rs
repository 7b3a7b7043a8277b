//! Information from config.json about a model whose family this crate may not have.

use mlx_core::{QuantMode, Scheme};
use mlx_models::{Geometry, ModelInfo};
use serde_json::Value;

use super::protocol::{self, BridgeLoaded};
use crate::error::{Error, ErrorKind, Result};
use crate::text::files::Files;

const FILE: &str = "config.json";
/// The keys of the longest context in the configs of families.
const POSITIONS: [&str; 6] = [
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
];
/// The keys of the number of features of a token.
const HIDDEN: [&str; 3] = ["hidden_size", "n_embd", "d_model"];

/// A config of any family.
pub(super) struct ModelConfig(Value);

impl ModelConfig {
    /// Reads the config.json of a checkpoint.
    ///
    /// # Errors
    /// There is none, or it is malformed.
    pub(super) fn read(files: &Files) -> Result<Self> {
        if files.architecture().is_some() {
            return Err(Error::unsupported(format!(
                "{} is in GGUF, which mlx_lm does not read; the native back end does",
                files.describe()
            )));
        }
        match files.json(FILE)? {
            Some(config @ Value::Object(_)) => Ok(Self(config)),
            Some(_) => Err(Error::format(format!(
                "{}: expected an object",
                files.locate(FILE)
            ))),
            None => {
                let message = format!("{} has no {FILE}", files.describe());
                Err(Error::new(ErrorKind::Missing, message))
            }
        }
    }

    /// The information, including what mlx_lm has reported.
    pub(super) fn info(&self, loaded: &BridgeLoaded) -> ModelInfo {
        let model_type = self.0.get("model_type").and_then(Value::as_str);
        let hidden = self.number(&HIDDEN).unwrap_or(0) as i32;
        let geometry = Geometry::new(loaded.vocab, hidden, Vec::new());
        let max_positions = self.positions();
        ModelInfo {
            model_type: model_type.unwrap_or("unknown").to_owned(),
            vocab: loaded.vocab,
            max_positions,
            layers: Vec::new(),
            hidden,
            geometry: geometry.with_positions(max_positions, None),
            n_parameters: loaded.parameters,
            weight_bytes: loaded.bytes,
            quantization: self.quantization(),
            stored: None,
            head: None,
            dtype: protocol::dtype(&loaded.dtype),
            unread_keys: Vec::new(),
        }
    }

    /// The value of a key, from the text model's config if there is one inside.
    fn get(&self, key: &str) -> Option<&Value> {
        let inside = self.0.get("text_config").and_then(|text| text.get(key));
        inside.or_else(|| self.0.get(key))
    }

    /// The first of these keys whose value is a number.
    fn number(&self, keys: &[&str]) -> Option<u64> {
        keys.iter().find_map(|key| self.get(key)?.as_u64())
    }

    /// The longest context. Scaled ropes reach beyond the number in some configs.
    fn positions(&self) -> Option<usize> {
        let most = self.number(&POSITIONS)?;
        let rope = self
            .get("rope_scaling")
            .or_else(|| self.get("rope_parameters"));
        let number = |key: &str| rope?.get(key)?.as_f64();
        let scaled = (number("factor")).zip(number("original_max_position_embeddings"));
        let scaled = scaled.map_or(0, |(factor, original)| (factor * original) as u64);
        Some(most.max(scaled) as usize)
    }

    fn quantization(&self) -> Option<Scheme> {
        let number = |key: &str| self.0.get("quantization")?.get(key)?.as_i64();
        let (bits, group_size) = (number("bits")?, number("group_size")?);
        Scheme::new(group_size as i32, bits as i32, QuantMode::Affine).ok()
    }
}
