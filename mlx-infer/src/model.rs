//! A checkpoint that is ready to generate.

pub(crate) mod default_model;
pub(crate) mod finite;
pub(crate) mod forward;
pub(crate) mod frontend;

mod draft;
pub(crate) mod memory;
mod read;

use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mlx_core::{DType, Scheme, fast};
use mlx_models::{Model, ModelInfo, Registry};
use mlx_nn::{CacheOptions, ModelCache, RowPart, StateCost};

use self::read::Parts;
use crate::error::{Error, Result};
use crate::model::frontend::Frontend;
use crate::request::generation::Prompt;
use crate::request::metrics::Metrics;
use crate::request::speculative::MOST;
use crate::text::chat::{ChatTemplate, Message, RenderOptions};
use crate::text::files::Files;
use crate::text::tokenizer::Tokenizer;

/// Options for loading a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadOptions {
    /// Every layer keeps only this many of the last tokens: its cache is a ring of that length.
    pub context_len: Option<usize>,
    /// Floating-point weights are converted to this; by default they stay as stored.
    pub dtype: Option<DType>,
    /// Keys and values are stored packed in this scheme from the first token on: affine, 4 or 8 bits. A model's
    /// `head_dim` must be a multiple of the group size.
    pub kv_quantization: Option<Scheme>,
    /// NaN among the logits means that the token cannot follow. Otherwise the request ends with an error.
    pub allow_nan: bool,
    /// The longest draft ([`Speculative`](crate::Speculative)), at most 8, that layers with sliding windows leave room for: so many positions
    /// more in each ring. Recurrent layers that compute their state again where a draft is rejected need none, others keep so many states
    /// more in a step. If it is not 0, a head for multi-token prediction that the checkpoint has drafts, too.
    pub max_draft: usize,
    /// A head for multi-token prediction that the checkpoint has is not loaded, whatever `max_draft` is.
    pub no_head: bool,
}

/// A model with its tokenizer, chat template and end tokens. It stays on the thread that loaded it.
///
/// ```
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_infer::{GenerateOptions, LoadedModel, Message};
/// # use std::ops::ControlFlow;
/// let model = LoadedModel::load_default()?;
/// let question = Message::new("user", "What is 20 + 22?");
/// let answer = model
///     .chat(&[question], &Default::default(), &GenerateOptions::default())?
///     .run(|_| ControlFlow::Continue(()))?;
/// assert_eq!(answer.text.as_deref(), Some("42"));
/// # Ok(())
/// # }
/// ```
pub struct LoadedModel {
    model: Box<dyn Model>,
    frontend: Arc<Frontend>,
    options: LoadOptions,
    /// A smaller model that drafts for this one.
    draft: Option<Rc<LoadedModel>>,
    load_time: Duration,
    metrics: Cell<Metrics>,
    /// What the last engine has left for the next one. The type is the engine's.
    left: Cell<Option<Box<dyn Any>>>,
    /// The first weight with NaN, if the weights were searched for it.
    pub(crate) nan_weight: OnceCell<Option<String>>,
    /// Distinguishes the models of a process; a model gets a new number when it gets an adapter.
    serial: u64,
}

static SERIALS: AtomicU64 = AtomicU64::new(0);

fn next_serial() -> u64 {
    SERIALS.fetch_add(1, Ordering::Relaxed)
}

impl LoadedModel {
    /// Loads the checkpoint in a folder: `config.json`, `*.safetensors`, and the tokenizer's files. Without a tokenizer
    /// only ids can be generated.
    ///
    /// # Errors
    /// Files are missing or malformed, the architecture is not known, or the tensors do not fit it.
    pub fn load(dir: impl AsRef<Path>, options: LoadOptions) -> Result<Self> {
        Self::load_files(Files::directory(dir.as_ref())?, options, &mut |_, _| ())
    }

    /// Loads the model that is part of the binary.
    ///
    /// # Errors
    /// This build has no such model.
    pub fn load_default() -> Result<Self> {
        Self::load_files(
            default_model::files(),
            LoadOptions::default(),
            &mut |_, _| (),
        )
    }

    /// Loads a checkpoint from a folder or from embedded files. `progress` gets the number of parameters that were read
    /// and their total.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_files(
        files: Files,
        options: LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        Self::load_with(&Registry::default(), files, options, progress)
    }

    /// [`load_files`](Self::load_files) with these families of models, which may include a program's own.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with(
        registry: &Registry,
        files: Files,
        options: LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        Self::read(&Parts::of(registry, files, &options), options, progress)
    }

    /// Attaches an adapter to the model: a folder from mlx-train, mlx-lm or PEFT.
    ///
    /// # Errors
    /// The folder holds no adapter, or one of another model. The model is then unchanged.
    pub fn load_adapter(&mut self, dir: impl AsRef<Path>) -> Result<()> {
        mlx_models::adapter::load(dir.as_ref(), self.model.as_mut())?;
        self.serial = next_serial();
        self.nan_weight = OnceCell::new();
        self.left.take();
        Ok(())
    }

    /// The same model with another adapter. The arrays are shared, so it needs only the memory of the adapter.
    ///
    /// # Errors
    /// The folder holds no adapter, or one of another model; or models of this family do not support a second copy.
    pub fn with_adapter(&self, dir: impl AsRef<Path>) -> Result<Self> {
        let mut other = Self {
            model: self.model.duplicate()?,
            frontend: self.frontend.clone(),
            options: self.options,
            draft: self.draft.clone(),
            load_time: self.load_time,
            metrics: Cell::default(),
            left: Cell::default(),
            nan_weight: OnceCell::new(),
            serial: next_serial(),
        };
        other.load_adapter(dir)?;
        Ok(other)
    }

    /// Facts about the model.
    pub fn info(&self) -> &ModelInfo {
        self.frontend.info()
    }

    /// The model's text side, which other threads can share.
    pub fn frontend(&self) -> &Arc<Frontend> {
        &self.frontend
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// The checkpoint has none that is supported.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.frontend.tokenizer()
    }

    /// The chat template: the checkpoint's own, or the built-in one of its family.
    ///
    /// # Errors
    /// There is no tokenizer or no template, or it is malformed.
    pub fn chat_template(&self) -> Result<&ChatTemplate> {
        self.frontend.chat_template()
    }

    /// The tokens that end a text.
    pub fn eos_ids(&self) -> &[u32] {
        self.frontend.eos_ids()
    }

    /// The options with which the model was loaded.
    pub fn options(&self) -> LoadOptions {
        self.options
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// The metrics of the last generation that has finished.
    pub fn metrics(&self) -> Metrics {
        self.metrics.get()
    }

    /// The ids of a conversation, followed by the start of the answer.
    ///
    /// # Errors
    /// The template refuses the conversation.
    pub fn chat_ids(&self, messages: &[Message], render: &RenderOptions) -> Result<Vec<u32>> {
        self.frontend.chat_ids(messages, render)
    }

    /// The ids of a prompt.
    ///
    /// # Errors
    /// The prompt is empty, or a text without a tokenizer.
    pub(crate) fn prompt_ids(&self, prompt: Prompt) -> Result<Vec<u32>> {
        self.frontend.prompt_ids(prompt)
    }

    /// The same value with another model inside.
    #[cfg(test)]
    pub(crate) fn map(self, change: impl FnOnce(Box<dyn Model>) -> Box<dyn Model>) -> Self {
        Self {
            model: change(self.model),
            ..self
        }
    }

    pub(crate) fn tokenizer_if_any(&self) -> Option<&Tokenizer> {
        self.frontend.tokenizer_if_any()
    }

    pub(crate) fn model(&self) -> &dyn Model {
        self.model.as_ref()
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    pub(crate) fn vocab(&self) -> usize {
        self.info().vocab as usize
    }

    pub(crate) fn cache_options(&self) -> CacheOptions {
        cache_options(&self.options)
    }

    /// The cost of each layer's state.
    pub fn state_costs(&self) -> Vec<StateCost> {
        let sizes = self.model.geometry();
        let costs = sizes.costs(self.info().dtype, &self.cache_options());
        costs.expect("loading has checked it")
    }

    /// The arrays of a row in each of the layers' states.
    pub(crate) fn row_parts(&self) -> Result<Vec<Vec<RowPart>>> {
        let sizes = self.model.geometry();
        Ok(sizes.row_parts(self.info().dtype, &self.cache_options())?)
    }

    /// An empty cache with this number of rows.
    pub(crate) fn new_cache(&self, rows: usize) -> ModelCache {
        ModelCache::new(self.model.states(), rows, self.cache_options())
    }

    pub(crate) fn set_metrics(&self, metrics: Metrics) {
        self.metrics.set(metrics);
    }

    /// What was left with [`leave`](Self::leave), if it is of this type. It is taken out.
    pub(crate) fn take_left<T: Any>(&self) -> Option<T> {
        self.left.take()?.downcast().ok().map(|left| *left)
    }

    /// Leaves a value with the model for the next engine. It is dropped when the model gets an adapter or a draft model.
    pub(crate) fn leave(&self, value: impl Any) {
        self.left.set(Some(Box::new(value)));
    }
}

fn cache_options(options: &LoadOptions) -> CacheOptions {
    CacheOptions {
        max_context: options.context_len,
        quantized: options.kv_quantization,
        slack: options.max_draft,
        ..CacheOptions::default()
    }
}

/// # Errors
/// The heads of a layer cannot be packed as the options say.
fn check_caches(info: &ModelInfo, options: &CacheOptions) -> Result<()> {
    let costs = info.geometry.costs(info.dtype, options);
    costs.map(drop).map_err(|error| {
        let scheme = options.quantized.map(|scheme| scheme.to_string());
        Error::unsupported(format!(
            "keys and values of {}, {error}; they cannot be kept in {}",
            info.model_type,
            scheme.unwrap_or_default()
        ))
    })
}

impl LoadOptions {
    /// # Errors
    /// A value is outside its range.
    fn check(&self) -> Result<()> {
        if self.context_len == Some(0) {
            return Err(Error::argument("context_len must be at least 1, given 0"));
        }
        if let Some(scheme) = self.kv_quantization {
            fast::check_packing(scheme)
                .map_err(|error| Error::unsupported(format!("kv_quantization: {error}")))?;
        }
        if self.max_draft > MOST {
            return Err(Error::argument(format!(
                "max_draft must be at most {}, given {}",
                MOST, self.max_draft
            )));
        }
        match self.dtype {
            None | Some(DType::F32 | DType::F16 | DType::BF16) => Ok(()),
            Some(dtype) => Err(Error::unsupported(format!(
                "weights cannot be computed in {dtype}; known: f32, bf16, f16"
            ))),
        }
    }
}
