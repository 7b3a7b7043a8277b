//! Drafters of folders of their own that read what their target has computed: their kinds, and how they are loaded.

use std::path::Path;

use mlx_core::{DType, Error, ErrorKind, Result};
use mlx_nn::{Checkpoint, FillOptions, Rules, fill_lazily};
use serde_json::Value;

use super::assemble;
use super::load::Loaded;
use crate::checkpoint::stored::{self, Reading};
use crate::checkpoint::weights;
use crate::config::Config;
use crate::config::quantization::Quantization;
use crate::draft_heads::dflash::{self, DFlash};
use crate::draft_heads::drafted::{Drafted, Reader};
use crate::draft_heads::eagle3::{self, Eagle3};
use crate::families::gemma4_assistant::{self, Gemma4Assistant};
use crate::model::ModelInfo;

/// The kinds of drafters that read what their target has computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftKind {
    /// A head of EAGLE-3: a layer that reads the residual stream at three places.
    Eagle3,
    /// A drafter by block diffusion, which reads the residual stream at several places.
    DFlash,
    /// A small Gemma 4 whose queries read the target's keys and values.
    Gemma4Assistant,
}

/// What is known, for messages.
const KNOWN: &str = "EAGLE-3 heads, DFlash drafters, gemma4_assistant, gemma4_unified_assistant, and models with \
                     the same vocabulary";

impl DraftKind {
    /// The kind of the drafter that a config.json describes. `None`: it describes a model, which drafts by itself.
    ///
    /// ```
    /// use mlx_models::DraftKind;
    /// use serde_json::json;
    ///
    /// let config = json!({"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"});
    /// assert_eq!(DraftKind::of(&config).unwrap(), Some(DraftKind::Eagle3));
    /// assert_eq!(DraftKind::of(&json!({"model_type": "llama"})).unwrap(), None);
    /// ```
    ///
    /// # Errors
    /// It is a drafter of another kind, such as Medusa or EAGLE 1 and 2.
    pub fn of(config: &Value) -> Result<Option<Self>> {
        let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
        let architecture = config
            .pointer("/architectures/0")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let has = |key: &str| config.get(key).is_some_and(|value| !value.is_null());
        let unsupported = |what: &str| {
            let message = format!("drafters of kind {what:?} are not supported; known: {KNOWN}");
            Err(Error::new(ErrorKind::Unsupported, message))
        };
        if gemma4_assistant::TYPES.contains(&text("model_type")) {
            return Ok(Some(Self::Gemma4Assistant));
        }
        match text("speculators_model_type") {
            "" => {}
            "eagle3" => return Ok(Some(Self::Eagle3)),
            other => return unsupported(other),
        }
        if architecture == "DFlashDraftModel" || text("model_type") == "muse_glimmer_assistant" {
            return Ok(Some(Self::DFlash));
        }
        let lower = architecture.to_lowercase();
        if [
            "medusa",
            "hydra",
            "dspark",
            "domino",
            "dflash",
            "mlpspeculator",
        ]
        .iter()
        .any(|kind| lower.contains(kind))
        {
            return unsupported(architecture);
        }
        if lower.contains("eagle3") || (has("draft_vocab_size") && !lower.contains("eagle")) {
            return Ok(Some(Self::Eagle3));
        }
        match lower.contains("eagle") {
            true => unsupported(architecture),
            false => Ok(None),
        }
    }

    fn names(self) -> Rules {
        match self {
            Self::Eagle3 => eagle3::names(),
            Self::DFlash => dflash::names(),
            Self::Gemma4Assistant => gemma4_assistant::names(),
        }
    }
}

impl Loaded {
    /// The model with the drafter in a folder, which [`draft_head`](crate::Model::draft_head) returns. The model must not
    /// draft with a head of its own. The drafter computes in `dtype`, or else in the dtype of the model. Its parameters
    /// are evaluated.
    ///
    /// # Errors
    /// The folder has no drafter of a known [kind](DraftKind), its tensors do not fit its config, or it is the drafter of
    /// another model.
    pub fn with_drafter(self, dir: impl AsRef<Path>, dtype: Option<DType>) -> Result<Self> {
        let dir = dir.as_ref();
        let label = dir.display().to_string();
        let (config, weights) = weights::open_checkpoint(dir)?;
        let Some(kind) = DraftKind::of(&config).map_err(|error| error.context(&label))? else {
            let message = format!("{label} has no drafter that reads another model");
            return Err(Error::new(ErrorKind::Format, message));
        };
        if weights.gguf.is_some() {
            let message =
                format!("{label}: drafters in GGUF are not supported; known: safetensors");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut outer = Config::new(&format!("{label}: config.json"), config)?;
        if let Some(beside) = weights.quantization {
            stored::add_settings(&mut outer, beside)?;
        }
        let dtype = dtype.unwrap_or(self.info.dtype);
        let reading = Reading {
            dtype: Some(dtype),
            dense: false,
            expand: false,
        };
        let open = |files| {
            let published = Checkpoint::new(&label, files, &Rules::none())?;
            stored::decoded(published, &outer, reading)
        };
        let (published, _) = open(weights.model)?;
        let rules = kind.names();
        let (tensors, stored) = open(weights::open(dir)?.model)?;
        let tensors = tensors.with_rules(&rules)?;
        let quantization = match &stored {
            Some(format) => format.quantization(&rules)?,
            None => Quantization::read(&outer, &rules)?,
        };
        let target = self.model.as_ref();
        let mut reader: Box<dyn Reader> = match kind {
            DraftKind::Eagle3 => Box::new(Eagle3::load(&outer, &published, &tensors, target)?),
            DraftKind::DFlash => Box::new(DFlash::load(&outer, &tensors, target)?),
            DraftKind::Gemma4Assistant => {
                let target = (target, self.info.model_type.as_str());
                Box::new(Gemma4Assistant::load(&outer, &published, &tensors, target)?)
            }
        };
        let options = FillOptions {
            dtype: Some(dtype),
            scheme: &|path| Ok(quantization.scheme(path)),
            progress: &mut |_| (),
        };
        fill_lazily(reader.as_mut(), &tensors, options)?;
        for key in outer.unread() {
            tracing::warn!(
                "{label}: config.json: {key} is not known to this version and has no effect"
            );
        }
        let of_target = self.info;
        let model = Box::new(Drafted::new(self.model, reader)?);
        let info = ModelInfo {
            quantization: of_target.quantization,
            stored: of_target.stored,
            dtype: of_target.dtype,
            unread_keys: of_target.unread_keys,
            ..assemble::info(&of_target.model_type, model.as_ref(), true)?
        };
        Ok(Self { model, info })
    }
}
