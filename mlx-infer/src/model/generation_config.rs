//! `generation_config.json`: what it says about requests that do not say it themselves.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::request::json_options::RequestOptions;
use crate::text::files::Files;

const FILE: &str = "generation_config.json";

/// Settings with the same meaning and name here.
const SHARED: [&str; 5] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
];

/// Settings that change texts in transformers and have no effect here.
const UNUSED: [&str; 14] = [
    "bad_words_ids",
    "begin_suppress_tokens",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "guidance_scale",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "num_beams",
    "sequence_bias",
    "typical_p",
];

/// The options of the file, for a model with a vocabulary of this size.
///
/// # Errors
/// The file is malformed, or a setting has a value of another type.
pub(super) fn defaults(files: &Files, vocab: usize) -> Result<RequestOptions> {
    let fail =
        |what: &dyn std::fmt::Display| Error::format(format!("{}: {what}", files.locate(FILE)));
    let mut object = match files.json(FILE)? {
        None => return Ok(RequestOptions::default()),
        Some(Value::Object(object)) => object,
        Some(_) => return Err(fail(&"expected an object")),
    };
    if object.get("do_sample") == Some(&Value::Bool(false)) {
        object.insert("temperature".to_owned(), 0.into());
    }
    for (name, value) in &object {
        if UNUSED.contains(&name.as_str()) && !has_no_effect(value) {
            let place = files.locate(FILE);
            tracing::warn!("{place}: {name} has no effect here, unlike in transformers");
        }
    }
    let suppressed = match object.shift_remove("suppress_tokens") {
        None | Some(Value::Null) => Vec::new(),
        Some(ids) => Vec::<i64>::deserialize(ids)
            .map_err(|error| fail(&format!("suppress_tokens: {error}")))?,
    };
    object.retain(|name, _| SHARED.contains(&name.as_str()));
    if let Some(penalty) = object.shift_remove("repetition_penalty") {
        object.insert("repeat_penalty".to_owned(), penalty);
        object.insert("repeat_context".to_owned(), u32::MAX.into());
    }
    let mut options = RequestOptions::take_from(&mut object).map_err(|error| fail(&error))?;
    // Numbers that are no tokens of the model have no effect in transformers either.
    let ids = suppressed
        .into_iter()
        .filter_map(|id| u32::try_from(id).ok());
    let forbidden: BTreeMap<u32, f32> = ids
        .filter(|&id| (id as usize) < vocab)
        .map(|id| (id, f32::NEG_INFINITY))
        .collect();
    if !forbidden.is_empty() {
        options.logit_bias = Some(forbidden);
    }
    Ok(options)
}

/// Whether a setting of [`UNUSED`] has a value that changes nothing in transformers either.
fn has_no_effect(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number
            .as_f64()
            .is_some_and(|number| number == 0.0 || number == 1.0),
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: &Value) -> Result<RequestOptions> {
        defaults(&Files::given("here", [(FILE, config.to_string())]), 10)
    }

    #[test]
    fn suppressed_tokens_are_forbidden() {
        let options = read(&json!({"suppress_tokens": [7, -1, 3, 10], "top_k": 5})).unwrap();
        let bias = options.logit_bias.unwrap();
        assert_eq!(
            bias.into_iter().collect::<Vec<_>>(),
            [(3, f32::NEG_INFINITY), (7, f32::NEG_INFINITY)]
        );
        assert_eq!(options.top_k, Some(5));
        for none in [
            json!({}),
            json!({"suppress_tokens": null}),
            json!({"suppress_tokens": []}),
        ] {
            assert_eq!(read(&none).unwrap(), RequestOptions::default(), "{none}");
        }
        let error = read(&json!({"suppress_tokens": ["a"]}))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("generation_config.json: suppress_tokens: invalid type"),
            "{error}"
        );
    }

    #[test]
    fn values_without_effect_are_known() {
        for (value, expected) in [
            (json!(null), true),
            (json!(0), true),
            (json!(1.0), true),
            (json!([]), true),
            (json!(2), false),
            (json!([[5]]), false),
        ] {
            assert_eq!(has_no_effect(&value), expected, "{value}");
        }
    }
}
