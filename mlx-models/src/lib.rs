//! Language model architectures on MLX: `config.json` and safetensors in, logits out.
//!
//! [`load`](fn@load) reads a checkpoint folder and returns a [`Model`]. A family is one file that turns a config into a
//! model: most share [`Decoder`](decoder::Decoder); [`Sandwich`](sandwich::Sandwich) and [`PostNorm`](postnorm::PostNorm)
//! have their norms in other places. Text, sampling and scheduling are in `mlx-infer`, training is in `mlx-train`.
//!
//! | transformers, PEFT | mlx-lm | here |
//! |---|---|---|
//! | `AutoModelForCausalLM.from_pretrained` | `load` | [`load`](fn@load), [`load_from`] |
//! | `AutoModelForCausalLM.from_config` | | [`initialised`] |
//! | `PreTrainedModel` | `nn.Module` with `model`, `lm_head` | [`Model`] |
//! | `PretrainedConfig` | `ModelArgs` | [`config::Config`], [`Geometry`] |
//! | `AutoConfig.register`, `AutoModel.register` | `MODEL_REMAPPING` | [`Registry::with`], [`Family`] |
//! | conversion mapping of weights | `sanitize` | [`Family::names`], [`mlx_nn::Rules`] |
//! | `DynamicCache` | `make_prompt_cache` | [`mlx_nn::ModelCache`] of [`Model::layers`] |
//! | `save_pretrained` | `save_model` | [`convert::save`] |
//! | `quantization_config` | `mlx_lm.convert -q`, `quant_predicate` | [`convert::convert`], [`convert::Recipe`], [`Family::bits`] |
//! | `PeftModel.from_pretrained` | `load_adapters` | [`adapter::load`] |
//!
//! # Loading, and one forward pass
//!
//! ```
//! use mlx_core::{Array, Result};
//! use mlx_models::{LoadOptions, load};
//! use mlx_nn::{CacheOptions, ModelCache};
//!
//! # fn main() -> Result<()> {
//! # let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/models/qwen3");
//! let loaded = load(dir.as_ref(), LoadOptions::default())?;
//! let model = loaded.model.as_ref();
//! let mut cache = ModelCache::new(model.layers(), 1, CacheOptions::default());
//!
//! // A step is a transaction: open it, run the model, say what is kept.
//! let prompt = Array::from_slice(&[5u32, 9, 2], &[1, 3])?;
//! let mut step = cache.begin(&[3])?;
//! let hidden = model.hidden(&prompt, &mut step)?;
//! step.commit_all()?;
//!
//! // The head runs on the last position only.
//! let logits = model.logits(&hidden.slice_axis(1, 2, 3)?)?;
//! let next: u32 = logits.argmax(-1, false)?.item()?;
//! assert!((next as i32) < loaded.info.vocab);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod apertus;
mod arcee;
mod assemble;
mod bitnet;
mod cohere;
mod cohere2;
mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod dots1;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod falcon;
mod falcon_h1;
mod family;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod gemma4_unified;
mod geometry;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm_moe_dsa;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granitemoe;
mod granitemoehybrid;
mod head;
mod helium;
mod hunyuan_v1_dense;
mod hunyuan_v1_moe;
mod info;
mod internlm3;
mod kimi_linear;
mod lfm2;
mod lfm2_moe;
mod llama;
mod llama4;
mod mamba2;
mod minimax;
mod minimax_m2;
mod ministral3;
mod mistral;
mod mistral4;
mod mixtral;
mod mtp;
mod names;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod nextn;
mod olmo2;
mod olmo3;
mod olmoe;
mod per_layer;
mod phi;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod registry;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;
mod stored;
mod weights;

pub mod adapter;
pub mod causal;
pub mod config;
pub mod convert;
pub mod decoder;
pub mod parallel;
pub mod postnorm;
pub mod sandwich;
pub mod single;

use std::ops::Range;
use std::path::Path;

use mlx_core::{Array, DType, Error, ErrorKind, Result};
use mlx_nn::{Head, LayerKind, Module, Residual, Step};
use serde_json::Value;

pub use geometry::{Geometry, LayerGeometry, kv_heads};
pub use info::{HeadInfo, ModelInfo};
pub use names::Names;
pub use registry::{Family, Registry, Source, known_types};
pub use weights::{Weights, open as open_weights};

/// A language model: tokens in, logits out. It knows nothing about text, and holds no cache.
///
/// [`hidden`](Self::hidden) and [`logits`](Self::logits) are separate, so that the output head runs only on those
/// positions of a prompt that are read.
pub trait Model: Module {
    /// `tokens [B, L]` (U32 or I32) -> `[B, L, S]`, the input of the first layer. Most models have `S = E`; others
    /// carry more features through their layers.
    ///
    /// # Errors
    /// The tokens are no integers.
    fn embed(&self, tokens: &Array) -> Result<Array>;

    /// The residual stream `[B, L, S]` after decoder layer `index`, from that before it. A layer may omit features that no
    /// later layer reads, and positions that the step [omits](Step::narrow). It may leave its last addition to the
    /// next layer's norm.
    ///
    /// # Errors
    /// The step has other rows or another width.
    ///
    /// # Panics
    /// There is no such layer; see [`Geometry::layers`].
    fn layer(&self, index: usize, x: Residual, step: &mut Step<'_>) -> Result<Residual>;

    /// The end of the residual stream `[B, L, S]`: the features before the final norm and after it, both `[B, L, E]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn norm(&self, x: Residual) -> Result<[Array; 2]>;

    /// `tokens [B, L]` (U32 or I32) -> the features before the final norm and after it, both `[B, L, E]`. If the step reads [last
    /// tokens](Step::read_last) only, and no head [drafts](Self::drafts), L is 1.
    ///
    /// # Errors
    /// The step has other rows or another width.
    fn run(&self, tokens: &Array, step: &mut Step<'_>) -> Result<[Array; 2]> {
        let mut x = Residual::from(self.embed(tokens)?);
        let layers = self.geometry().layers().len();
        // A head that drafts reads the features of all positions.
        let narrows = self.drafts().is_none();
        for index in 0..layers {
            x = match narrows && index + 1 == layers {
                true => step.last_layer(|step| self.layer(index, x, step))?,
                false => self.layer(index, x, step)?,
            };
            step.start(&x, layers - index - 1)?;
        }
        self.norm(x)
    }

    /// `tokens [B, L]` (U32 or I32) -> `[B, L, E]` after the final norm, or `[B, 1, E]` if the step reads [last
    /// tokens](Step::read_last) only. A head that [drafts](Self::drafts) follows in the same step.
    ///
    /// # Errors
    /// The step has other rows or another width.
    fn hidden(&self, tokens: &Array, step: &mut Step<'_>) -> Result<Array> {
        let [x, hidden] = self.run(tokens, step)?;
        if self.drafts().is_some() {
            let features = self.head_input([&x, &hidden])?;
            self.follow(tokens, Some(&features), step)?;
        }
        step.read(&hidden)
    }

    /// Gives a head for multi-token prediction, if the model has one, [states](Self::drafts) after those of the layers,
    /// so that it can [`draft`](Self::draft).
    fn enable_drafts(&mut self) {}

    /// The states of the head, if the model can [`draft`](Self::draft).
    fn drafts(&self) -> Option<Range<usize>> {
        None
    }

    /// The states of the decoder's layers, which are before those of a head.
    fn decoder_states(&self) -> Range<usize> {
        0..self.drafts().map_or(self.layers().len(), |head| head.start)
    }

    /// The head's input among the two results of [`run`](Self::run): `[B, L, E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    fn head_input(&self, [_, hidden]: [&Array; 2]) -> Result<Array> {
        Ok(hidden.clone())
    }

    /// Runs the head over `tokens` `[B, L]` and the model's features of them, `[B, L, E]`. The features of the last tokens
    /// may be missing if these tokens are not kept. The step has the rows' lengths before these tokens. Returns the head's
    /// features `[B, L, E]`, from which [`draft_logits`](Self::draft_logits) predicts the next token at each position. In a
    /// row that begins, the first token has no position before it, so the results are one position earlier.
    ///
    /// # Errors
    /// The model has no head, or the shapes do not fit.
    fn follow(
        &self,
        _tokens: &Array,
        _features: Option<&Array>,
        _step: &mut Step<'_>,
    ) -> Result<Array> {
        Err(Error::new(ErrorKind::Unsupported, NO_DRAFTS))
    }

    /// Runs the head over draft tokens `[B, L]` and its own features of the position before each of them:
    /// `[B, L, E] -> [B, L, E]`. The step has the rows' lengths before these tokens, and must not be committed.
    ///
    /// # Errors
    /// The model has no head, or the shapes do not fit.
    fn draft(&self, _tokens: &Array, _before: &Array, _step: &mut Step<'_>) -> Result<Array> {
        Err(Error::new(ErrorKind::Unsupported, NO_DRAFTS))
    }

    /// Logits `[.., V]` of features `[.., E]` that the head gave, or `[.., first]`: of so many first tokens.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn draft_logits(&self, features: &Array, first: Option<i32>) -> Result<Array> {
        logits_of(self.head(), features, first)
    }

    /// Whether the model has a head that [`ahead`](Self::ahead) runs.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// The head's features `[B, L, E]`, from which [`logits`](Self::logits) tells the token after the next: of the next tokens
    /// `[B, L]` and the features `hidden` `[B, L, E]` of each position. `step` is that of a cache of its own, with one layer that
    /// attends to everything. Training computes the loss of the head with it.
    ///
    /// # Errors
    /// The model has no head, or the shapes do not fit.
    fn ahead(&self, _next: &Array, _hidden: &Array, _step: &mut Step<'_>) -> Result<Array> {
        let message = "the model has no head that predicts tokens";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// A copy of the model that shares its arrays, for another adapter.
    ///
    /// # Errors
    /// The family does not support it ([`CausalLm`](causal::CausalLm) does).
    fn duplicate(&self) -> Result<Box<dyn Model>> {
        let message = "models of this family cannot be held twice, with different adapters";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// The output head.
    fn head(&self) -> Head<'_>;

    /// `[.., E] -> [.., V]`
    ///
    /// # Errors
    /// The shapes do not fit.
    fn logits(&self, hidden: &Array) -> Result<Array> {
        self.head().forward(hidden)
    }

    /// The model's sizes, as it was built.
    fn geometry(&self) -> &Geometry;

    /// The names of the tensors in its files.
    fn names(&self) -> &Names {
        static NONE: Names = Names::none();
        &NONE
    }

    /// Loading calls this with the family's names. A model that does not keep them uses the names of its parameters for
    /// adapters and saved files.
    fn set_names(&mut self, _names: Names) {}

    /// The states of all layers between steps, for a [`ModelCache`](mlx_nn::ModelCache).
    fn layers(&self) -> &[LayerKind] {
        self.geometry().states()
    }

    /// The length at which the rope changes (LongRoPE). A row that grows past it has to be computed again.
    fn switches_after(&self) -> Option<usize> {
        self.geometry().switches_after
    }

    /// The length beyond which the rope depends on the length of the prompt (dynamic NTK). The layer states of a longer
    /// prompt cannot begin another text.
    fn grows_after(&self) -> Option<usize> {
        self.geometry().grows_after
    }
}

const NO_DRAFTS: &str = "the head of this model drafts nothing";

/// The logits of all tokens, or of the first `first` ones.
fn logits_of(head: Head<'_>, features: &Array, first: Option<i32>) -> Result<Array> {
    match first {
        Some(first) => head.first(first, features),
        None => head.forward(features),
    }
}

/// How [`load`] reads a checkpoint.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// Floating-point weights are converted to this dtype; without it they stay as stored.
    pub dtype: Option<DType>,
    /// Whether a head for multi-token prediction is used ([`Model::enable_drafts`]).
    pub drafts: bool,
    /// The folder of a head for multi-token prediction, for a checkpoint without one.
    pub head: Option<&'a Path>,
    /// Whether published 8-bit weights become dense even if a packed form is exact.
    pub unpack: bool,
    /// Called with the number of parameters filled so far, and their total.
    pub progress: Option<&'a mut dyn FnMut(usize, usize)>,
}

/// A model and information about its checkpoint.
pub struct Loaded {
    /// The model, filled.
    pub model: Box<dyn Model>,
    /// Facts about it.
    pub info: ModelInfo,
}

/// Loads the checkpoint in a folder.
///
/// # Errors
/// The folder has no config.json or safetensors, the architecture is not known, or the tensors do
/// not fit it.
pub fn load(dir: &Path, options: LoadOptions<'_>) -> Result<Loaded> {
    Registry::default().load(dir, options)
}

/// Loads a checkpoint from its parsed config.json and opened files; `label` names it in errors.
///
/// # Errors
/// As [`load`].
pub fn load_from(
    label: &str,
    config: Value,
    weights: impl Into<Weights>,
    options: LoadOptions<'_>,
) -> Result<Loaded> {
    Registry::default().load_from(label, config, weights, options)
}

/// A model that is initialised instead of loaded: F32 values drawn from `seed`, as
/// [`initialise`](mlx_nn::init::initialise) describes, with the config's `initializer_range` (0.02) for embeddings.
/// `label` names the config in errors.
///
/// # Errors
/// The architecture is not known, its config is wrong, or asks for quantised weights.
pub fn initialised(label: &str, config: Value, seed: u64) -> Result<Loaded> {
    Registry::default().initialised(label, config, seed)
}
