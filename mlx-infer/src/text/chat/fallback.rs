//! Templates for checkpoints without one.
//!
//! The templates follow each family's published description of its turns. A checkpoint's own
//! template always takes precedence.
//! A family is recognised by its `model_type` and by its marks in the vocabulary, because the same architecture is also
//! trained with other marks, or without.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::text::files::Files;
use crate::text::tokenizer::Tokenizer;

struct Family {
    name: &'static str,
    /// Prefixes of the `model_type`s.
    model_types: &'static [&'static str],
    marks: &'static [&'static str],
    source: &'static str,
}

const FAMILIES: [Family; 3] = [
    Family {
        name: "Gemma 3",
        model_types: &["gemma"],
        marks: &["<start_of_turn>", "<end_of_turn>"],
        source: include_str!("fallback/gemma3.jinja"),
    },
    Family {
        name: "Qwen (ChatML)",
        model_types: &["qwen"],
        marks: &["<|im_start|>", "<|im_end|>"],
        source: include_str!("fallback/chatml.jinja"),
    },
    Family {
        name: "Llama 3",
        model_types: &["llama"],
        marks: &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        source: include_str!("fallback/llama3.jinja"),
    },
];

/// The template of the checkpoint's family.
pub(super) fn template_for(
    config: &Value,
    tokenizer: &Tokenizer,
    files: &Files,
) -> Result<&'static str> {
    let model_type = config
        .get("model_type")
        .and_then(Value::as_str)
        .unwrap_or("unknown");
    let fits = |family: &&Family| {
        family
            .model_types
            .iter()
            .any(|known| model_type.starts_with(known))
            && family
                .marks
                .iter()
                .all(|mark| tokenizer.token_to_id(mark).is_some())
    };
    FAMILIES.iter().find(fits).map(|family| family.source).ok_or_else(|| {
        let known: Vec<String> =
            FAMILIES.iter().map(|family| format!("{} (with {})", family.name, family.marks.join(" "))).collect();
        Error::unsupported(format!(
            "{} has no chat template, and none is built in for model_type {model_type:?} with this vocabulary; \
             built in: {}",
            files.describe(),
            known.join(", ")
        ))
    })
}
