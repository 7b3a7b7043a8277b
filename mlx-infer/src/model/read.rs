//! Reading a checkpoint, and a head for multi-token prediction that has a folder of its own.

use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use mlx_core::{DType, Device, DeviceKind, Safetensors};
use mlx_models::{Loaded, Model, Registry};
use serde_json::Value;

use super::draft::DraftRoom;
use super::{LoadOptions, LoadedModel, cache_options, check_caches, next_serial};
use crate::error::{Error, ErrorKind, Result};
use crate::model::frontend::{Frontend, check_ids, read_tokenizer};
use crate::text::chat::ChatTemplate;
use crate::text::files::Files;
use crate::text::tokenizer::Tokenizer;

/// What a model of [`LoadedModel::from_parts`] has beside its parameters and its tokenizer.
#[derive(Clone, Debug, Default)]
pub struct PartOptions {
    /// The tokens that end a text; by default those of the tokenizer.
    pub eos_ids: Option<Vec<u32>>,
    /// The source of a chat template. Without one, conversations are refused.
    pub chat_template: Option<String>,
    /// The dtype, the caches and the drafts, as in loading.
    pub load: LoadOptions,
}

/// What stands for `model_type` in a model without a config.json.
const OWN: &str = "own";
/// What stands for the folder of such a model.
const OWN_FILES: &str = "a model without files";

/// Whether a head for multi-token prediction drafts.
pub(super) fn head_drafts(options: &LoadOptions) -> bool {
    options.max_draft > 0 && options.context_len.is_none() && !options.no_head
}

/// The sources of a model.
pub(super) struct ModelParts<'a> {
    registry: &'a Registry,
    files: Files,
    /// The folder of a head for multi-token prediction, for a checkpoint without one.
    head: Option<&'a Path>,
    /// Whether the head for multi-token prediction drafts.
    head_drafts: bool,
}

impl<'a> ModelParts<'a> {
    /// The sources of a checkpoint with the head in it.
    pub(super) fn of(registry: &'a Registry, files: Files, options: &LoadOptions) -> Self {
        Self {
            registry,
            files,
            head: None,
            head_drafts: head_drafts(options),
        }
    }

    /// The sources of a checkpoint whose head, if it has one, drafts nothing.
    pub(super) fn without_head(registry: &'a Registry, files: Files) -> Self {
        Self {
            registry,
            files,
            head: None,
            head_drafts: false,
        }
    }
}

impl LoadedModel {
    /// Like [`load_files`](Self::load_files), with a drafting head for multi-token prediction from
    /// a separate folder. The folder has `mtp.*` in safetensors files, which may be those of
    /// another checkpoint of the same model, and a `config.json` if the head is quantised.
    ///
    /// # Errors
    /// As [`load`](Self::load); the folder has no head, or one of another model; the checkpoint has a head already, or is of a family
    /// without heads; or `options` leave no room for drafts.
    pub fn load_with_head(
        files: Files,
        head: impl AsRef<Path>,
        options: LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let registry = Registry::default();
        let parts = ModelParts {
            head: Some(head.as_ref()),
            ..ModelParts::of(&registry, files, &options)
        };
        if !parts.head_drafts {
            return Err(Error::argument(format!(
                "a head for multi-token prediction needs max_draft of at least 1 and no context_len, given {} and {:?}",
                options.max_draft, options.context_len
            )));
        }
        Self::read(&parts, options, progress)
    }

    /// A model that a program has made or trained, without files. Its layers leave training mode.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use mlx_infer::{GenerateOptions, LoadedModel, PartOptions, Tokenizer};
    /// use serde_json::json;
    ///
    /// let config = json!({
    ///     "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    ///     "num_attention_heads": 2, "vocab_size": 5000, "rms_norm_eps": 1e-5
    /// });
    /// let model = mlx_models::initialised("mine", config, 7)?.model;
    /// let tokenizer = Tokenizer::load(&mlx_infer::default_model_files())?;
    /// let model = LoadedModel::from_parts(model, tokenizer, PartOptions::default())?;
    /// let options = GenerateOptions { max_tokens: 4, ..Default::default() };
    /// println!("{}", model.generate("The red fox", &options)?.text()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A parameter has no value, an option is out of range, the chat template is malformed or has no tokenizer, or a token
    /// that ends a text is not in the vocabulary.
    pub fn from_parts(
        mut model: Box<dyn Model>,
        tokenizer: impl Into<Option<Tokenizer>>,
        options: PartOptions,
    ) -> Result<Self> {
        let started = Instant::now();
        let PartOptions {
            eos_ids,
            chat_template,
            load,
        } = options;
        load.check()?;
        super::memory::bound()?;
        let tokenizer = tokenizer.into();
        if head_drafts(&load) {
            model.enable_drafts();
        }
        model.train(false)?;
        if let Some(dtype) = load.dtype {
            model.set_dtype(dtype)?;
        }
        let Loaded { model, info } = Loaded::of(OWN, model)?;
        check_caches(&info, &cache_options(&load))?;
        let eos_ids = eos_ids.unwrap_or_else(|| {
            let of_tokenizer = tokenizer.as_ref().map(Tokenizer::eos_ids);
            of_tokenizer.unwrap_or_default().to_vec()
        });
        check_ids(&eos_ids, info.vocab as usize)?;
        let template = chat_template.map(|source| match &tokenizer {
            Some(tokenizer) => ChatTemplate::from_source(&source, tokenizer),
            None => Err(Error::argument("a chat template needs a tokenizer")),
        });
        let files = Files::given(OWN_FILES, [("", ""); 0]);
        let frontend = Frontend::new(info, files, tokenizer, eos_ids);
        let frontend = match template.transpose()? {
            Some(template) => frontend.with_template(template),
            None => frontend,
        };
        Ok(Self::assembled(model, frontend, load, started))
    }

    fn assembled(
        model: Box<dyn Model>,
        frontend: Frontend,
        options: LoadOptions,
        started: Instant,
    ) -> Self {
        let frontend = frontend.drafting(DraftRoom::new(model.as_ref(), &options));
        Self {
            model,
            frontend: Arc::new(frontend),
            options,
            draft: None,
            load_time: started.elapsed(),
            metrics: Cell::default(),
            engine_state: Cell::default(),
            nan_weight: OnceCell::new(),
            adapter_config: Vec::new(),
            sentence: OnceCell::new(),
            serial: next_serial(),
        }
    }

    pub(super) fn read(
        parts: &ModelParts<'_>,
        options: LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let started = Instant::now();
        options.check()?;
        super::memory::bound()?;
        let files = &parts.files;
        // The small files come first, so that their faults are found before the weights are read.
        let (tokenizer, eos_ids) = read_tokenizer(files)?;
        let model_options = mlx_models::LoadOptions {
            dtype: options.dtype,
            drafts: parts.head_drafts,
            head: parts.head,
            progress: Some(progress),
            unpack: false,
            expand: options.expand,
            ranks: options.ranks,
        };
        let Loaded { model, info } = match files.path() {
            Some(path) => parts.registry.load(path, model_options)?,
            None => load_embedded(parts.registry, files, model_options)?,
        };
        check_caches(&info, &cache_options(&options))?;
        let frontend = Frontend::new(info, files.clone(), tokenizer, eos_ids);
        Ok(Self::assembled(model, frontend, options, started))
    }
}

fn load_embedded(
    registry: &Registry,
    files: &Files,
    options: mlx_models::LoadOptions<'_>,
) -> Result<Loaded> {
    let (config, weights, dtype) = embedded(files, options.dtype)?;
    let options = mlx_models::LoadOptions { dtype, ..options };
    Ok(registry.load_from(&files.describe(), config, vec![weights], options)?)
}

/// Config and weights of files that are in memory, and the dtype for them if the caller wants `dtype`.
pub(super) fn embedded(
    files: &Files,
    dtype: Option<DType>,
) -> Result<(Value, Safetensors, Option<DType>)> {
    let missing = |name: &str| {
        Error::new(
            ErrorKind::Missing,
            format!("{} has no {name}", files.describe()),
        )
    };
    let config = files
        .json("config.json")?
        .ok_or_else(|| missing("config.json"))?;
    let bytes = files.read("model.safetensors")?;
    let bytes = bytes.ok_or_else(|| missing("model.safetensors"))?;
    let weights = Safetensors::from_cow(bytes)?;
    // The model that is part of the program is stored in bf16 but was measured in f32, and MLX computes bf16 slowly on a
    // CPU.
    let is_built_in = matches!(files, Files::Embedded { .. });
    let wide = is_built_in && Device::default_device()?.kind == DeviceKind::Cpu;
    Ok((config, weights, dtype.or(wide.then_some(DType::F32))))
}
