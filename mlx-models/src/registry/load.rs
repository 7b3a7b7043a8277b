//! Loading and initialising models of a registry's families.

use std::path::Path;

use mlx_core::{DType, Result, Safetensors};
use mlx_nn::shard::Ranks;
use serde_json::Value;

use super::Registry;
use crate::checkpoint::{Weights, weights};
use crate::model::{Model, ModelInfo};
use crate::registry::assemble;

/// How [`load`] reads a checkpoint.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// The dtype to which floating-point weights are converted; `None` keeps the stored dtype.
    pub dtype: Option<DType>,
    /// Whether a head for multi-token prediction is used ([`Model::enable_drafts`]).
    pub drafts: bool,
    /// The folder of a head for multi-token prediction, for a checkpoint without one.
    pub head: Option<&'a Path>,
    /// Whether published 8-bit weights become dense even if a packed form is exact.
    pub unpack: bool,
    /// Whether blocks of a model in GGUF become dense if no packed form is exact (Q2_K, Q6_K). Without it such a model
    /// is refused.
    pub expand: bool,
    /// The ranks that share the model ([`mlx_nn::shard`]): each reads and holds its part. The thread that uses the model
    /// has [joined](mlx_nn::shard::join) their group. By default one process has all of it.
    pub ranks: Ranks,
    /// Called with the number of parameters filled so far, and their total.
    pub progress: Option<&'a mut dyn FnMut(usize, usize)>,
}

/// What a rank would hold of a model ([`Registry::outline`]).
#[derive(Clone, Debug)]
pub struct Outline {
    /// The rank's sizes: bytes of its weights, layers with its heads.
    pub info: ModelInfo,
    /// All numbers of ranks, from 2 on, that divide the heads of every layer. Empty if no layer has heads, and for a
    /// process alone.
    pub counts: Vec<usize>,
}

/// A model and information about its checkpoint.
pub struct Loaded {
    /// The model with its weights.
    pub model: Box<dyn Model>,
    /// Information about the checkpoint.
    pub info: ModelInfo,
}

impl Loaded {
    /// A model that a program has made and given values, without files. Its parameters are
    /// evaluated. `model_type` names the model in messages. If it is that of a family, it also
    /// selects what depends on the family, such as the syntax of tool calls.
    ///
    /// ```
    /// use mlx_models::{Loaded, Model};
    /// use serde_json::json;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let config = json!({
    ///     "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    ///     "num_attention_heads": 2, "vocab_size": 40, "rms_norm_eps": 1e-5
    /// });
    /// let model = mlx_models::initialised("mine", config, 7)?.model;
    /// let loaded = Loaded::of("mine", model)?;
    /// assert_eq!(loaded.info.vocab, 40);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A parameter has no value, or an evaluation fails.
    pub fn of(model_type: &str, model: Box<dyn Model>) -> Result<Self> {
        let info = assemble::info(model_type, model.as_ref(), true)?;
        Ok(Self { model, info })
    }
}

impl Registry {
    /// [`load`](fn@crate::load) with the families of this registry.
    ///
    /// # Errors
    /// The same as those of [`load`](fn@crate::load).
    pub fn load(&self, dir: impl AsRef<Path>, options: LoadOptions<'_>) -> Result<Loaded> {
        let dir = dir.as_ref();
        let (config, weights) = weights::open_checkpoint(dir)?;
        self.load_from(&dir.display().to_string(), config, weights, options)
    }

    /// [`load_from`](crate::load_from) with the families of this registry.
    ///
    /// # Errors
    /// The same as those of [`load_from`](crate::load_from).
    pub fn load_from(
        &self,
        label: &str,
        config: Value,
        weights: impl Into<Weights>,
        mut options: LoadOptions<'_>,
    ) -> Result<Loaded> {
        let (mut assembled, _) =
            assemble::filled(self, label, config, weights.into(), &mut options)?;
        if options.drafts {
            assembled.model.enable_drafts();
        }
        assembled.divide_states(options.ranks);
        assembled.finish(label)
    }

    /// What [`load`](Self::load) with these options would hold in memory, by the sizes in the files: their data are not
    /// read, so a model may be larger than this machine. A model in GGUF is read. The group of the ranks is not needed.
    ///
    /// # Errors
    /// The same as those of [`load`](fn@crate::load), but for data that are wrong. The ranks do not divide the model.
    pub fn outline(&self, dir: impl AsRef<Path>, options: LoadOptions<'_>) -> Result<Outline> {
        let dir = dir.as_ref();
        let (config, weights) = weights::open_checkpoint(dir)?;
        self.outline_from(&dir.display().to_string(), config, weights, options)
    }

    /// [`outline`](Self::outline) of a checkpoint's parsed config.json and opened files; `label` names it in errors.
    ///
    /// # Errors
    /// The same as those of [`outline`](Self::outline).
    pub fn outline_from(
        &self,
        label: &str,
        config: Value,
        weights: impl Into<Weights>,
        mut options: LoadOptions<'_>,
    ) -> Result<Outline> {
        let mut weights = weights.into();
        for files in [&mut weights.model, &mut weights.head] {
            let blank = files.drain(..).map(Safetensors::without_data);
            *files = blank.collect();
        }
        let (mut assembled, _) = assemble::filled(self, label, config, weights, &mut options)?;
        if options.drafts {
            assembled.model.enable_drafts();
        }
        assembled.divide_states(options.ranks);
        let counts = assembled.sharded.counts.iter().map(|&n| n as usize);
        Ok(Outline {
            counts: counts.collect(),
            info: assembled.described(false)?.info,
        })
    }

    /// [`initialised`](fn@crate::initialised) with the families of this registry.
    ///
    /// # Errors
    /// The same as those of [`initialised`](fn@crate::initialised).
    pub fn initialised(&self, label: &str, config: Value, seed: u64) -> Result<Loaded> {
        let mut assembled = assemble::empty(self, label, config)?;
        let config = &assembled.config;
        if assembled.quantization.default_scheme().is_some() || assembled.stored.is_some() {
            return Err(config
                .unsupported("quantised weights cannot be initialised: train dense ones first"));
        }
        let deviation = config.positive("initializer_range", Some(0.02))? as f32;
        mlx_nn::init::initialise(assembled.model.as_mut(), seed, deviation)?;
        assembled.finish(label)
    }
}

/// Loads the checkpoint in a folder, or a model in GGUF ([`open_checkpoint`](crate::open_checkpoint)).
///
/// A model in GGUF is F32, or BF16 if all its matrices are; [`LoadOptions::dtype`] sets another dtype, to which scales
/// of packed weights are rounded too.
///
/// # Errors
/// The folder has no config.json or safetensors, the family is not known, or the tensors do not fit
/// the model.
pub fn load(dir: impl AsRef<Path>, options: LoadOptions<'_>) -> Result<Loaded> {
    Registry::default().load(dir, options)
}

/// Loads a checkpoint from its parsed config.json and opened files; `label` names it in errors.
///
/// # Errors
/// The same as those of [`load`].
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
/// The family is not known, or the config is malformed or has quantised weights.
pub fn initialised(label: &str, config: Value, seed: u64) -> Result<Loaded> {
    Registry::default().initialised(label, config, seed)
}
