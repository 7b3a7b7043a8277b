//! From `model_type` to a constructor.

use std::collections::BTreeSet;

use mlx_core::Result;
use mlx_nn::Rename;

use crate::config::Config;
use crate::{Model, gemma2, gemma3, llama, mistral, phi3, qwen2, qwen3, qwen3_moe};

/// What a model is built from.
pub(crate) struct Source<'a> {
    /// Of the text model. `tie_word_embeddings` says what the tensors say.
    pub config: &'a Config,
    /// Whether the config is inside that of a multimodal checkpoint.
    pub nested: bool,
    /// The names of the tensors, as the model's parameters are called; none where a model is initialised.
    #[allow(dead_code)] // the families so far have no optional parts
    pub tensors: &'a BTreeSet<String>,
}

/// A family of models.
pub(crate) struct Architecture {
    /// The `model_type`s it answers to.
    pub types: &'static [&'static str],
    pub build: fn(&Source<'_>) -> Result<Box<dyn Model>>,
    /// What its own rule makes of a published name without the multimodal prefix.
    pub rename: fn(&Config, &str) -> Rename,
    /// What `tie_word_embeddings` is without a value.
    pub tied: bool,
}

macro_rules! build {
    ($family:ident) => {
        |source| Ok(Box::new($family::load(source.config)?))
    };
}

fn keep(_config: &Config, name: &str) -> Rename {
    Rename::To(name.to_owned())
}

const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        types: &["llama"],
        build: build!(llama),
        rename: keep,
        tied: false,
    },
    Architecture {
        types: &["mistral"],
        build: build!(mistral),
        rename: keep,
        tied: false,
    },
    Architecture {
        types: &["qwen2"],
        build: build!(qwen2),
        rename: keep,
        tied: false,
    },
    Architecture {
        types: &["qwen3"],
        build: build!(qwen3),
        rename: keep,
        tied: false,
    },
    Architecture {
        types: &["qwen3_moe"],
        build: build!(qwen3_moe),
        rename: qwen3_moe::rename,
        tied: false,
    },
    Architecture {
        types: &["gemma2"],
        build: build!(gemma2),
        rename: keep,
        tied: true,
    },
    Architecture {
        types: &["gemma3_text", "gemma3"],
        build: |source| Ok(Box::new(gemma3::load(source)?)),
        rename: keep,
        tied: true,
    },
    Architecture {
        types: &["phi3"],
        build: build!(phi3),
        rename: keep,
        tied: false,
    },
];

/// Every `model_type` that can be loaded.
pub fn known_types() -> Vec<&'static str> {
    ARCHITECTURES
        .iter()
        .flat_map(|architecture| architecture.types)
        .copied()
        .collect()
}

/// Whether a config ties the head to the embedding.
pub(crate) fn ties(config: &serde_json::Map<String, serde_json::Value>) -> bool {
    let model_type = config.get("model_type").and_then(|name| name.as_str());
    let family = ARCHITECTURES
        .iter()
        .find(|family| model_type.is_some_and(|name| family.types.contains(&name)));
    match config
        .get("tie_word_embeddings")
        .filter(|value| !value.is_null())
    {
        Some(tied) => tied == true,
        None => family.is_some_and(|family| family.tied),
    }
}

/// The family of a config; without `model_type` the tensors' names tell qwen2 from qwen3.
///
/// # Errors
/// An unknown type, or none and tensors that do not tell.
pub(crate) fn find<'a>(
    config: &Config,
    mut tensors: impl Iterator<Item = &'a str>,
) -> Result<(&'static str, &'static Architecture)> {
    let name = match config.opt::<String>("model_type")? {
        Some(name) => name,
        None => {
            let told = tensors.find_map(|name| match name.rsplit_once("self_attn.")?.1 {
                "q_norm.weight" => Some("qwen3"),
                "q_proj.bias" => Some("qwen2"),
                _ => None,
            });
            told.map(str::to_owned).ok_or_else(|| {
                config.error(
                    "model_type is missing, and the tensors are neither those of qwen2 (biases on \
                     q_proj) nor of qwen3 (q_norm)",
                )
            })?
        }
    };
    ARCHITECTURES
        .iter()
        .find_map(|architecture| {
            let known = architecture.types.iter().find(|&&known| known == name)?;
            Some((*known, architecture))
        })
        .ok_or_else(|| {
            config.unsupported(format!(
                "model_type {name:?} is not supported; known: {}",
                known_types().join(", ")
            ))
        })
}
