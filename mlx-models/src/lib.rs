//! Language model architectures on MLX: `config.json` and safetensors in, logits out.
//!
//! A model's file reads like the model. Families that differ in values share
//! [`Decoder`](decoder::Decoder); Gemma has [its own](gemma::Gemma).
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

mod family;
mod gemma2;
mod gemma3;
mod llama;
mod mistral;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod registry;
mod weights;

pub mod adapter;
pub mod config;
pub mod convert;
pub mod decoder;
pub mod gemma;

use std::path::Path;

use mlx_core::{Array, DType, Result, Safetensors};
use mlx_nn::{Checkpoint, FillOptions, Head, LayerKind, Module, Rename, Step, Visit, fill};
use serde_json::Value;

use config::Config;
use config::quantization::Quantization;

pub use registry::known_types;
pub use weights::open as open_weights;

/// A language model: tokens in, logits out, and nothing about text or caches.
///
/// [`hidden`](Self::hidden) and [`logits`](Self::logits) are apart, so that a prompt runs the output
/// head on the positions that are read.
pub trait Model: Module {
    /// `tokens [B, L]` (U32 or I32) -> `[B, L, E]`, what the first layer reads.
    ///
    /// # Errors
    /// The tokens are no integers.
    fn embed(&self, tokens: &Array) -> Result<Array>;

    /// What layer `index` makes of its input: `[B, L, E] -> [B, L, E]`.
    ///
    /// # Errors
    /// The step has other rows or another width.
    ///
    /// # Panics
    /// There is no such layer: they are as many as [`layers`](Self::layers) tells.
    fn layer(&self, index: usize, x: &Array, step: &mut Step<'_>) -> Result<Array>;

    /// The final norm: `[.., E] -> [.., E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    fn norm(&self, x: &Array) -> Result<Array>;

    /// `tokens [B, L]` (U32 or I32) -> `[B, L, E]` after the final norm.
    ///
    /// # Errors
    /// The step has other rows or another width.
    fn hidden(&self, tokens: &Array, step: &mut Step<'_>) -> Result<Array> {
        let mut x = self.embed(tokens)?;
        for index in 0..self.layers().len() {
            x = self.layer(index, &x, step)?;
        }
        self.norm(&x)
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

    /// What each layer has to remember.
    fn layers(&self) -> &[LayerKind];

    /// The length beyond which positions are embedded differently (LongRoPE): a row that grows past
    /// it has to be computed anew.
    fn switches_after(&self) -> Option<usize> {
        None
    }
}

/// How [`load`] reads a checkpoint.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// Floating-point weights are converted to this; they stay as stored if not given.
    pub dtype: Option<DType>,
    /// Called with parameters filled and their total.
    pub progress: Option<&'a mut dyn FnMut(usize, usize)>,
}

/// A model and what its checkpoint says about it.
pub struct Loaded {
    /// The model, filled.
    pub model: Box<dyn Model>,
    /// Facts for people and for the layers above.
    pub info: ModelInfo,
}

/// Facts about a loaded model.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// `model_type`, given or told from the tensors.
    pub model_type: String,
    /// Rows of the embedding.
    pub vocab: i32,
    /// Positions the model was made for.
    pub max_positions: Option<usize>,
    /// The kind of each layer.
    pub layers: Vec<LayerKind>,
    /// Features of a token.
    pub hidden: i32,
    /// Key and value heads and their size: what a position costs in the caches.
    pub kv_heads: i32,
    /// Features of a head.
    pub head_dim: i32,
    /// Numbers in all weights, as if they were dense.
    pub n_parameters: usize,
    /// Bytes of all weights.
    pub weight_bytes: usize,
    /// The scheme of quantised weights without an entry of their own.
    pub quantization: Option<mlx_core::Scheme>,
    /// The dtype of the activations.
    pub dtype: DType,
    /// Keys of config.json that this version neither reads nor knows to be irrelevant.
    pub unread_keys: Vec<String>,
}

/// Loads the checkpoint in a folder.
///
/// # Errors
/// The folder has no config.json or safetensors, the architecture is not known, or the tensors do
/// not fit it.
pub fn load(dir: &Path, options: LoadOptions<'_>) -> Result<Loaded> {
    let config = weights::read_json(dir, "config.json")?;
    load_from(
        &dir.display().to_string(),
        config,
        weights::open(dir)?,
        options,
    )
}

/// Loads a checkpoint from its parsed config.json and opened files; `label` names it in errors.
///
/// # Errors
/// As [`load`].
pub fn load_from(
    label: &str,
    config: Value,
    files: Vec<Safetensors>,
    mut options: LoadOptions<'_>,
) -> Result<Loaded> {
    assemble(label, config, files, &mut options)?.finish(label)
}

/// A model that nothing was loaded into: F32 values drawn from `seed`, as
/// [`initialise`](mlx_nn::init::initialise) describes, with the config's `initializer_range` (0.02)
/// for embeddings. `label` names the config in errors.
///
/// # Errors
/// The architecture is not known, its config is wrong, or asks for quantised weights.
pub fn initialised(label: &str, config: Value, seed: u64) -> Result<Loaded> {
    let Built { mut assembled, .. } = Built::new(label, config, std::iter::empty())?;
    let config = &assembled.config;
    if assembled.quantization.default_scheme().is_some() {
        return Err(
            config.unsupported("quantised weights cannot be initialised: train dense ones first")
        );
    }
    let deviation = config.positive("initializer_range", Some(0.02))? as f32;
    mlx_nn::init::initialise(assembled.model.as_mut(), seed, deviation)?;
    assembled.finish(label)
}

/// A model of a config, without values, and how tensors are called in its files.
struct Built {
    assembled: Assembled,
    tied: bool,
    rename: fn(&str) -> Rename,
}

impl Built {
    fn new<'a>(label: &str, config: Value, tensors: impl Iterator<Item = &'a str>) -> Result<Self> {
        let outer = Config::new(&format!("{label}: config.json"), config)?;
        // Multimodal checkpoints describe their text model inside; some keys stay outside.
        let text = outer.object("text_config")?;
        let (model_type, architecture) = registry::find(&outer, tensors)?;
        let config = text.as_ref().unwrap_or(&outer);
        let tied = match (
            config.opt("tie_word_embeddings")?,
            outer.opt("tie_word_embeddings")?,
        ) {
            (Some(tied), _) | (None, Some(tied)) => tied,
            (None, None) => architecture.tied,
        };
        let quantization = Quantization::read(&outer, |path| weights::rename(path, tied))?;
        let model = (architecture.build)(config)?;
        Ok(Self {
            tied,
            rename: architecture.rename,
            assembled: Assembled {
                model,
                model_type,
                nested: text.is_some(),
                config: text.unwrap_or(outer),
                quantization,
            },
        })
    }
}

/// A model whose parameters are filled, and not read: on the CPU they refer to the files.
pub(crate) struct Assembled {
    pub model: Box<dyn Model>,
    pub model_type: &'static str,
    /// Of the text model.
    pub config: Config,
    /// Whether the text model's config.json is inside that of a multimodal checkpoint.
    pub nested: bool,
    pub quantization: Quantization,
}

pub(crate) fn assemble(
    label: &str,
    config: Value,
    files: Vec<Safetensors>,
    options: &mut LoadOptions<'_>,
) -> Result<Assembled> {
    let names = || files.iter().flat_map(Safetensors::names);
    let Built {
        mut assembled,
        tied,
        rename,
    } = Built::new(label, config, names())?;
    let checkpoint = Checkpoint::new(label, files, |name| {
        weights::full_rename(name, tied, rename)
    })?;
    let total = checkpoint.names().count();
    let quantization = &assembled.quantization;
    fill(
        assembled.model.as_mut(),
        &checkpoint,
        FillOptions {
            dtype: options.dtype,
            scheme: &|path| Ok(quantization.scheme(path)),
            optional: &|_| false,
            progress: &mut |done| {
                if let Some(progress) = &mut options.progress {
                    progress(done, total);
                }
            },
        },
    )?;
    Ok(assembled)
}

impl Assembled {
    /// Reads the values, and tells about them.
    fn finish(self, label: &str) -> Result<Loaded> {
        let Self {
            model,
            model_type,
            config,
            quantization,
            ..
        } = self;
        let mut weigh = Weigh::default();
        model.visit(&mut mlx_nn::Path::default(), &mut weigh)?;
        mlx_core::eval(&weigh.arrays)?;
        let hidden = config.size("hidden_size", Some(2304))?;
        let heads = config.size("num_attention_heads", Some(8))?;
        let info = ModelInfo {
            model_type: model_type.to_owned(),
            vocab: config.size("vocab_size", Some(262_208))?,
            max_positions: config.opt("max_position_embeddings")?,
            layers: model.layers().to_vec(),
            hidden,
            kv_heads: config.size("num_key_value_heads", Some(heads))?,
            head_dim: config.size("head_dim", Some((hidden / heads).max(1)))?,
            n_parameters: weigh.n_parameters,
            weight_bytes: weigh.bytes,
            quantization: quantization.default_scheme(),
            dtype: weigh.dtype.unwrap_or(DType::F32),
            unread_keys: config.unread(),
        };
        for key in &info.unread_keys {
            tracing::warn!(
                "{label}: config.json: {key} is not known to this version and has no effect"
            );
        }
        Ok(Loaded { model, info })
    }
}

/// Counts parameters and bytes, and collects the arrays.
#[derive(Default)]
struct Weigh {
    arrays: Vec<Array>,
    n_parameters: usize,
    bytes: usize,
    dtype: Option<DType>,
}

impl Visit for Weigh {
    fn weight(&mut self, _path: &mlx_nn::Path, weight: &mlx_nn::Weight) -> Result<()> {
        let elements = |shape: &[i32]| shape.iter().map(|&n| n as usize).product::<usize>();
        if let mlx_nn::Weight::Quantized { packed, .. } = weight {
            // `param` counts the packed words; the rest of the matrix is added here.
            self.n_parameters += elements(&weight.shape()) - elements(packed.shape());
        }
        Ok(())
    }

    fn param(&mut self, path: &mlx_nn::Path, param: &mlx_nn::Param) -> Result<()> {
        let value = param.value();
        self.bytes += value.nbytes();
        let name = path.as_str();
        if !name.ends_with(".scales") && !name.ends_with(".biases") {
            self.n_parameters += value.size();
        }
        if value.dtype().is_float() {
            self.dtype = self.dtype.or(Some(value.dtype()));
        }
        self.arrays.push(value.clone());
        Ok(())
    }

    fn derived(&mut self, array: &Array) -> Result<()> {
        self.arrays.push(array.clone());
        Ok(())
    }
}
