//! A checkpoint that is ready to generate.

pub(crate) mod adapters;
pub(crate) mod checked;
pub(crate) mod cost;
#[cfg(feature = "default-model")]
pub(crate) mod default_model;
pub(crate) mod finite;
pub(crate) mod forward;
pub(crate) mod frontend;

mod draft;
mod generation_config;
pub(crate) mod memory;
pub(crate) mod outline;
mod read;

use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mlx_core::{Array, DType, Scheme, fast, files};
use mlx_models::{
    DraftKind, Loaded, Model, ModelInfo, ModelTask, PoolingMode, Registry, SentenceModules,
};
use mlx_nn::shard::Ranks;
use mlx_nn::{CacheOptions, LayerKind, ModelCache, RowPart, StateCost};

use self::draft::DraftRoom;
use self::read::ModelParts;
pub use self::read::PartOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::model::frontend::Frontend;
use crate::request::generation::Prompt;
use crate::request::limits::Limits;
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
    /// Whether NaN among the logits means that the token cannot follow. Otherwise the request ends
    /// with an error.
    pub allow_nan: bool,
    /// The longest draft ([`Speculative`](crate::Speculative)), at most 8, for which layers with
    /// sliding windows have room: each ring gets this many positions more. Recurrent layers that
    /// compute their state again after a rejected draft need no room; others store this many more
    /// states in a step. If the number is not 0, the checkpoint's head for multi-token prediction
    /// drafts too, if it has one.
    pub max_draft: usize,
    /// Whether the checkpoint's head for multi-token prediction is left out, whatever `max_draft`
    /// is.
    pub no_head: bool,
    /// Whether blocks of a model in GGUF become dense if no packed form is exact (Q2_K, Q6_K). Without it such a model
    /// is refused.
    pub expand: bool,
    /// The ranks that share the model: each reads and holds its part ([`mlx_nn::shard`]).
    pub ranks: Ranks,
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
    /// What the last engine has stored for the next one. Its type is the engine's.
    engine_state: Cell<Option<Box<dyn Any>>>,
    /// The first weight with NaN, if the weights were searched for it.
    nan_weight: OnceCell<Option<String>>,
    /// The configs of the adapters, one after the other.
    adapter_config: Vec<u8>,
    /// The modules after the model that embed texts, once they were asked for.
    sentence: OnceCell<SentenceModules>,
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

    /// Loads the model that is part of the binary. Needs the feature `default-model`.
    ///
    /// # Errors
    /// The library of MLX is missing, or memory.
    #[cfg(feature = "default-model")]
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

    /// Like [`load_files`](Self::load_files), with these families of models, which may include a
    /// program's own.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with(
        registry: &Registry,
        files: Files,
        options: LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        Self::read(
            &ModelParts::of(registry, files, &options),
            options,
            progress,
        )
    }

    /// Attaches an adapter to the model: a folder from mlx-train, mlx-lm or PEFT.
    ///
    /// # Errors
    /// The folder holds no adapter, or one of another model. The model is then unchanged.
    pub fn load_adapter(&mut self, dir: impl AsRef<Path>) -> Result<()> {
        let config = dir.as_ref().join("adapter_config.json");
        let config = files::read_if_present(config, files::JSON_LIMIT)?;
        mlx_models::adapter::load(dir.as_ref(), self.model.as_mut())?;
        self.adapter_config.extend(config.unwrap_or_default());
        self.serial = next_serial();
        self.nan_weight = OnceCell::new();
        self.engine_state.take();
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
            engine_state: Cell::default(),
            nan_weight: OnceCell::new(),
            adapter_config: self.adapter_config.clone(),
            sentence: self.sentence.clone(),
            serial: next_serial(),
        };
        other.load_adapter(dir)?;
        Ok(other)
    }

    /// Information about the model.
    pub fn info(&self) -> &ModelInfo {
        self.frontend.info()
    }

    /// The model's tokenizer, chat template and checks of requests, which other threads can share.
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

    /// The same value with another model in it.
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

    /// The modules after the model that embed texts.
    ///
    /// # Errors
    /// A file of a module is malformed, or the module is not supported.
    pub(crate) fn sentence_modules(&self) -> Result<&SentenceModules> {
        if let Some(modules) = self.sentence.get() {
            return Ok(modules);
        }
        let hidden = self.info().hidden;
        let read = match self.frontend.folder() {
            Some(folder) => SentenceModules::read(folder, hidden)?,
            None => None,
        };
        let modules = read.unwrap_or_else(|| {
            let mode = match self.info().task {
                ModelTask::Generate | ModelTask::Headless => PoolingMode::Last,
                ModelTask::Embed | ModelTask::Classify(_) => PoolingMode::Mean,
            };
            SentenceModules::plain(mode, hidden)
        });
        Ok(self.sentence.get_or_init(|| modules))
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// The configs of the adapters, one after the other.
    pub(crate) fn adapter_config(&self) -> &[u8] {
        &self.adapter_config
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

    /// The bytes that the caches of rows may take on a GPU with memory of its own, if the caller sets
    /// no limit ([`Limits::cache_bytes`]); `None` on other devices.
    ///
    /// # Errors
    /// The memory of the device cannot be read.
    pub fn cache_room(&self) -> Result<Option<usize>> {
        let limits = Limits {
            cache_bytes: None,
            ..Limits::default()
        };
        Ok(memory::resolve(&limits, self, 1)?.cache_bytes)
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

    /// Takes the value that an engine has stored with [`set_engine_state`](Self::set_engine_state),
    /// if it has this type.
    pub(crate) fn take_engine_state<T: Any>(&self) -> Option<T> {
        self.engine_state
            .take()?
            .downcast()
            .ok()
            .map(|state| *state)
    }

    /// Stores a value for the next engine. It is dropped when the model gets an adapter or a draft
    /// model.
    pub(crate) fn set_engine_state(&self, value: impl Any) {
        self.engine_state.set(Some(Box::new(value)));
    }

    /// Loads a drafter, which guesses tokens for requests with [`speculative`](crate::GenerateOptions::speculative): a draft
    /// model, or a drafter that reads what the model has computed ([`DraftKind`](mlx_models::DraftKind)): a head of EAGLE-3, a DFlash drafter, or
    /// an assistant of Gemma 4.
    ///
    /// A draft model is a smaller one with the same vocabulary, which guesses tokens for
    /// requests with [`speculative`](crate::GenerateOptions::speculative). If there is also a head
    /// for multi-token prediction, the draft model drafts. Models of
    /// [`with_adapter`](Self::with_adapter) share it.
    ///
    /// Vocabularies may be padded to different sizes. The draft model computes in the dtype of
    /// [`LoadOptions::dtype`], and stores its keys and values as computed.
    ///
    /// # Errors
    /// As [`load`](Self::load), or a token has another id in the draft model's tokenizer. For a drafter that reads the
    /// model: it is that of another model, the model [drafts itself](LoadOptions::no_head), has a `context_len` or was loaded
    /// without `max_draft`, or other threads have its [`frontend`](Self::frontend). An assistant of Gemma 4 cannot read a
    /// model whose keys and values are divided among ranks.
    pub fn load_draft_model(&mut self, files: Files) -> Result<()> {
        self.frontend.check_generates()?;
        if draft::kind(&files)?.is_some() {
            return self.load_reader(&files);
        }
        let options = LoadOptions {
            dtype: self.options.dtype,
            expand: self.options.expand,
            max_draft: MOST,
            ..LoadOptions::default()
        };
        let name = files.describe();
        let registry = Registry::default();
        let parts = ModelParts::without_head(&registry, files);
        let draft = Self::read(&parts, options, &mut |_, _| ())?;
        let generates = draft.frontend.check_generates();
        let suits = generates
            .map_err(|error| error.to_string())
            .and_then(|()| draft::check_vocabulary(self, &draft));
        suits.map_err(|message| {
            let message = format!("draft model {name}: {message}");
            Error::new(ErrorKind::Unsupported, message)
        })?;
        self.draft = Some(Rc::new(draft));
        self.engine_state.take();
        Ok(())
    }

    /// Whether these are the files of a drafter that reads what the model has computed ([`DraftKind`](mlx_models::DraftKind)). Such a drafter
    /// takes the place of the model's own head, which [`LoadOptions::no_head`] leaves out.
    ///
    /// # Errors
    /// config.json is malformed, or describes a drafter of a kind that is not supported.
    pub fn reads_model(drafter: &Files) -> Result<bool> {
        Ok(draft::kind(drafter)?.is_some())
    }

    /// Loads a drafter that reads what the model has computed.
    fn load_reader(&mut self, files: &Files) -> Result<()> {
        let name = files.describe();
        let options = self.options;
        let reads_keys = draft::kind(files)? == Some(DraftKind::Gemma4Assistant);
        let refused = match (options.context_len, options.max_draft, options.ranks.size()) {
            (Some(_), ..) => Some("the model keeps only its last positions (context_len)"),
            (_, 0, _) => Some("the model was loaded without room for drafts (max_draft)"),
            (_, _, 2..) if reads_keys => {
                Some("the keys and values of the model, which it reads, are divided among ranks")
            }
            _ => None,
        };
        let refuse = |why: &str| {
            let message = format!("drafter {name}: {why}, so that no drafter can read it");
            Error::new(ErrorKind::Unsupported, message)
        };
        if let Some(why) = refused {
            return Err(refuse(why));
        }
        let Some(path) = files.path() else {
            return Err(refuse("the drafter has no folder"));
        };
        let Some(frontend) = Arc::get_mut(&mut self.frontend) else {
            return Err(refuse("the model is in use"));
        };
        let target = Loaded {
            model: self.model.duplicate()?,
            info: frontend.info().clone(),
        };
        let Loaded { model, info } = target.with_drafter(path, options.dtype)?;
        check_caches(&info, &cache_options(&options))?;
        frontend.replace(info, DraftRoom::new(model.as_ref(), &options));
        self.model = model;
        self.serial = next_serial();
        self.nan_weight = OnceCell::new();
        self.engine_state.take();
        Ok(())
    }

    /// The draft model, if there is one.
    pub fn draft_model(&self) -> Option<&LoadedModel> {
        self.draft.as_deref()
    }

    /// The longest draft that a row may bring to a step.
    pub(crate) fn draft_room(&self) -> usize {
        let room = self.frontend.draft_room();
        room.map_or(0, DraftRoom::longest)
    }

    /// The error for logits after these tokens that are not finite.
    pub(crate) fn not_finite(&self, tokens: &[u32]) -> Error {
        // The weights are searched once, not for each request.
        let known = self.nan_weight.get().cloned();
        let weight = known.map_or_else(|| finite::nan_weight(self.model()), Ok);
        if let Ok(weight) = &weight {
            self.nan_weight.get_or_init(|| weight.clone());
        }
        finite::explain(weight, self.model(), self.cache_options(), tokens)
    }

    /// The output head: `[.., E] -> [.., V]`.
    pub(crate) fn logits(&self, hidden: &Array) -> Result<Array> {
        self.allowed(self.model().logits(hidden)?)
    }

    /// The logits; NaN becomes minus infinity if the model was loaded with `allow_nan`.
    pub(crate) fn allowed(&self, logits: Array) -> Result<Array> {
        match self.options().allow_nan {
            false => Ok(logits),
            true => Ok(logits.isnan()?.select(f32::NEG_INFINITY, &logits)?),
        }
    }

    /// The features that the drafting head reads, of those of a step before and after the final norm;
    /// `None` without a head.
    pub(crate) fn head_features(&self, [x, hidden]: &[Array; 2]) -> Result<Option<Array>> {
        let head = self.model().draft_head();
        Ok(head.map(|head| head.input([x, hidden])).transpose()?)
    }

    /// Whether some layer has a recurrent state.
    pub(crate) fn is_recurrent(&self) -> bool {
        self.model().states().iter().any(is_recurrent)
    }
}

/// Whether a layer has a recurrent state.
pub(crate) fn is_recurrent(kind: &LayerKind) -> bool {
    matches!(kind, LayerKind::Recurrent(_))
}

fn cache_options(options: &LoadOptions) -> CacheOptions {
    CacheOptions {
        max_context: options.context_len,
        quantized: options.kv_quantization,
        slack: options.max_draft,
        ..CacheOptions::default()
    }
}

/// Checks that the keys and values of the layers can be packed as the options say.
///
/// # Errors
/// They cannot.
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
    /// Checks the options.
    ///
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
