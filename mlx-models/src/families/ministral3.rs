//! Ministral 3 and Devstral 2: Mistral with queries scaled by their position, and YaRN. Also the
//! text tower of the multimodal checkpoints, which may be Mistral (Small 3) or Mistral Small 4
//! instead.

use mlx_core::Result;
use mlx_nn::{RopeScaling, Rules};
use serde_json::Value;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::config::rope::context;
use crate::decoders::pre_norm::Decoder;
use crate::families::{mistral, mistral4};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 131_072,
    intermediate: 14_336,
    layers: 34,
    kv_heads: Some(8),
    head_dim: Some(128),
    max_positions: 262_144,
    norm_eps: 1e-5,
    theta: 1_000_000.0,
    ..Defaults::LLAMA
};

/// The context length before YaRN, in a config without rope keys.
const ORIGINAL: f64 = 16_384.0;

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    match c.or("model_type", "ministral3".to_owned())?.as_str() {
        "ministral3" => {}
        "mistral" if source.nested => return mistral::load(source),
        "mistral4" if source.nested => return mistral4::load(source),
        other => {
            return Err(c.unsupported(format!(
                "a text model of model_type {other:?} is not supported; known: ministral3, mistral, mistral4"
            )));
        }
    }
    let mut config = keys::decoder(c, &DEFAULTS)?;
    let has_rope = ["rope_parameters", "rope_scaling"].iter().any(|key| {
        let entry = c.value(key).and_then(Value::as_object);
        entry.is_some_and(|entry| !entry.is_empty())
    });
    if !has_rope {
        let scaling = RopeScaling::Yarn {
            factor: 16.0,
            original: ORIGINAL,
            beta_fast: 32.0,
            beta_slow: 1.0,
            amplitude: 1.0,
            truncate: true,
        };
        for rope in config.ropes.iter_mut().flatten() {
            (rope.base, rope.scaling) = (DEFAULTS.theta, scaling.clone());
            config.max_positions = context(rope, config.max_positions);
        }
    }
    let without_rope = (!has_rope).then_some((0.1, ORIGINAL));
    config.attention.query_growth = keys::query_growth(c, without_rope)?;
    // transformers does not read this key in this family.
    c.ignore(&["layer_types"]);
    let window = keys::window(c, None)?;
    config.layers.fill(keys::kind(window));
    Decoder::new(&config)
}

/// The rules for a text tower that is Mistral Small 4. The other text towers need none: their
/// tensors have the parameters' names.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    match source.config.opt::<String>("model_type")?.as_deref() {
        Some("mistral4") if source.nested => mistral4::names(source),
        _ => Ok(Rules::none()),
    }
}
