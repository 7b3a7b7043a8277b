//! Language model architectures on MLX: `config.json` and safetensors in, logits out.
//!
//! [`load`](fn@load) reads a checkpoint folder and returns a [`Model`]. A family is one file that
//! turns a config into a model. Most families share the pre-norm
//! [`Decoder`](decoders::pre_norm::Decoder), and [`decoders`] has other orders of operations. Text,
//! sampling and scheduling are in `mlx-infer`, training is in `mlx-train`.
//!
//! | transformers, PEFT | mlx-lm | here |
//! |---|---|---|
//! | `AutoModelForCausalLM.from_pretrained` | `load` | [`load`](fn@load), [`load_from`] |
//! | `AutoModelForCausalLM.from_config` | | [`initialised`] |
//! | `PreTrainedModel` | `nn.Module` with `model`, `lm_head` | [`Model`] |
//! | `PretrainedConfig` | `ModelArgs` | [`config::Config`], [`Geometry`] |
//! | `AutoConfig.register`, `AutoModel.register` | `MODEL_REMAPPING` | [`Registry::with`], [`Family`] |
//! | conversion mapping of weights | `sanitize` | [`Family::names`], [`mlx_nn::Rules`] |
//! | `AutoModel` of an encoder, `SentenceTransformer` | | [`Encoder`], [`SentenceModules`] |
//! | `DynamicCache` | `make_prompt_cache` | [`mlx_nn::ModelCache`] of [`Model::states`] |
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
//! let loaded = load(dir, LoadOptions::default())?;
//! let model = loaded.model.as_ref();
//! let mut cache = ModelCache::new(model.states(), 1, CacheOptions::default());
//!
//! // A step is a transaction: open it, run the model, commit the tokens that are kept.
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

mod checkpoint;
mod draft_heads;
mod families;
mod model;
mod registry;

pub mod adapter;
pub mod config;
pub mod convert;
pub mod decoders;
pub mod encoders;

#[doc(no_inline)]
pub use {mlx_core, mlx_nn};

pub use checkpoint::gguf::{gguf_architectures, gguf_written_types};
pub use checkpoint::weights::{open as open_weights, open_checkpoint};
pub use checkpoint::{Names, Weights};
pub use decoders::{causal_lm as causal, pre_norm as decoder};
pub use encoders::{PoolingMode, SentenceModules};
pub use model::{
    DraftHead, Drafting, Encoder, Geometry, HeadInfo, LayerGeometry, Model, ModelInfo, ModelTask,
    TextGroup, Texts, TrainableHead, kv_heads,
};
pub use registry::{
    DraftKind, Family, LoadOptions, Loaded, Outline, Registry, Source, encoder_types, initialised,
    known_types, load, load_from,
};

/// Earlier names in [`decoders`].
#[doc(hidden)]
pub mod parallel {
    pub use crate::decoders::parallel_residual::{
        ParallelResidual as Parallel, ParallelResidualLayer as Layer,
    };
}

/// Earlier names in [`decoders`].
#[doc(hidden)]
pub mod postnorm {
    pub use crate::decoders::post_norm::{PostNorm, PostNormLayer as Layer};
}

/// Earlier names in [`decoders`].
#[doc(hidden)]
pub mod sandwich {
    pub use crate::decoders::pre_and_post_norm::{
        PreAndPostNorm as Sandwich, PreAndPostNormLayer as Layer,
    };
}

/// Earlier names in [`decoders`].
#[doc(hidden)]
pub mod single {
    pub use crate::decoders::single_mixer::{
        MixerConfig, SingleMixer as Single, SingleMixerLayer as Layer,
    };
}
