//! The facts about a model that lists show.

use mlx_core::QuantMode;
use mlx_models::{ModelInfo, ModelTask};
use serde_json::Value;

use crate::model::outline::info_in_files;
use crate::serve::state::Loaded;
use crate::text::files::Files;

/// The facts about a model that lists show. What is not known is `None` or empty.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct About {
    /// `model_type`.
    pub(in super::super) family: String,
    pub(in super::super) is_gguf: bool,
    /// The number of elements of all weights.
    pub(in super::super) parameters: Option<usize>,
    /// The bytes of all weights, or of their files.
    pub(in super::super) bytes: usize,
    /// The dtype, or the scheme of packed weights.
    pub(in super::super) precision: String,
    /// The context length in tokens.
    pub(in super::super) context: Option<usize>,
    pub(in super::super) hidden: Option<i64>,
    pub(in super::super) layers: Option<i64>,
    pub(in super::super) vocab: Option<i64>,
    /// The source of the chat template.
    pub(in super::super) template: Option<String>,
    /// What it can do, in Ollama's words.
    pub(in super::super) capabilities: Vec<&'static str>,
    /// The parameters of requests that give none, one on each line.
    pub(in super::super) defaults: String,
}

impl About {
    pub(super) fn of_loaded(loaded: &Loaded) -> Self {
        let frontend = loaded.frontend();
        let info = frontend.info();
        let format = loaded.reply_format().ok();
        let generates = frontend.check_generates().is_ok();
        let capabilities = [
            ("completion", generates),
            (
                "embedding",
                matches!(info.task, ModelTask::Embed | ModelTask::Headless),
            ),
            ("tools", generates && format.is_some()),
            (
                "thinking",
                generates && format.is_some_and(|format| format.has_reasoning()),
            ),
            ("insert", generates && loaded.infill("suffix").is_ok()),
        ];
        let capabilities = capabilities.into_iter().filter(|(_, has)| *has);
        let template = frontend.chat_template().ok();
        let template = template.and_then(|template| template.source("default"));
        let defaults = &loaded.defaults.sampling;
        Self {
            is_gguf: frontend.is_gguf(),
            template: template.map(str::to_owned),
            capabilities: capabilities.map(|(name, _)| name).collect(),
            defaults: format!(
                "temperature {}\ntop_p {}\ntop_k {}\nmin_p {}\nrepeat_penalty {}",
                defaults.temperature,
                defaults.top_p,
                defaults.top_k,
                defaults.min_p,
                defaults.repeat_penalty
            ),
            ..Self::of_info(info)
        }
    }

    /// The facts about the model without those about its texts.
    fn of_info(info: &ModelInfo) -> Self {
        Self {
            family: info.model_type.clone(),
            parameters: Some(info.n_parameters),
            bytes: info.weight_bytes,
            precision: match info.quantization {
                None => info.dtype.to_string().to_uppercase(),
                Some(scheme) if scheme.mode == QuantMode::Affine => format!("Q{}", scheme.bits),
                Some(scheme) => scheme.mode.to_string().to_uppercase(),
            },
            context: info.max_positions,
            hidden: Some(info.hidden.into()),
            layers: Some(info.layers.len() as i64),
            vocab: Some(info.vocab.into()),
            ..Self::default()
        }
    }

    /// What the files of a model say that was never loaded: the sizes and names of its tensors are read, and no data.
    /// Files that cannot be read say nothing: loading reports them.
    pub(super) fn of_files(files: &Files, bytes: usize) -> Self {
        let config = files.json("config.json").ok().flatten().unwrap_or_default();
        let number = |key: &str| {
            let inner = ["text_config", "llm_config"].iter();
            let mut inner = inner.filter_map(|part| config[*part][key].as_i64());
            config[key].as_i64().or_else(|| inner.next())
        };
        let of_tokenizer = || {
            let config = files.json("tokenizer_config.json").ok().flatten()?;
            config["chat_template"].as_str().map(str::to_owned)
        };
        let template = files.text("chat_template.jinja").ok().flatten();
        let template = template.or_else(of_tokenizer);
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let family = word(&config["model_type"]);
        let is_encoder = mlx_models::encoder_types().contains(&family.as_str());
        let info = info_in_files(files);
        let task = match &info {
            Some(info) => info.task,
            None if is_encoder => ModelTask::Embed,
            None => ModelTask::Generate,
        };
        let capabilities = match task {
            ModelTask::Generate if template.is_some() => vec!["completion", "tools"],
            ModelTask::Generate => vec!["completion"],
            ModelTask::Embed | ModelTask::Headless => vec!["embedding"],
            ModelTask::Classify(_) => Vec::new(),
        };
        let of_config = || Self {
            family,
            context: number("max_position_embeddings").and_then(|n| usize::try_from(n).ok()),
            hidden: number("hidden_size"),
            layers: number("num_hidden_layers"),
            vocab: number("vocab_size"),
            ..Self::default()
        };
        Self {
            is_gguf: files.architecture().is_some(),
            bytes,
            template,
            capabilities,
            ..info.as_ref().map_or_else(of_config, Self::of_info)
        }
    }
}
