//! The ids that end a text.

use serde_json::{Map, Value};

use super::config::object;
use crate::error::{Error, Result};
use crate::text::files::Files;

/// The ids of the first source that has some (generation_config.json, config.json, its
/// `text_config` or `llm_config`), and the id of the tokenizer. transformers' `generate` stops only at those of the
/// first source, but a chat template ends turns with the tokenizer's end token, and files that were
/// edited by hand often name only one.
pub(super) fn ids(
    files: &Files,
    model: &Map<String, Value>,
    of_tokenizer: Option<u32>,
) -> Result<Vec<u32>> {
    let generation = object(files, "generation_config.json")?.unwrap_or_default();
    let text = model.get("text_config").or_else(|| model.get("llm_config"));
    let text = text.and_then(Value::as_object);
    let sources = [
        ("generation_config.json", Some(&generation)),
        ("config.json", Some(model)),
        ("config.json", text),
    ];
    for (name, values) in sources {
        let Some(value) = values.and_then(|values| values.get("eos_token_id")) else {
            continue;
        };
        let ids = id_list(value).ok_or_else(|| {
            Error::format(format!(
                "{}: eos_token_id: expected an id or a list of ids, found {value}",
                files.locate(name)
            ))
        })?;
        if !ids.is_empty() {
            let other = of_tokenizer.filter(|id| !ids.contains(id));
            return Ok(ids.into_iter().chain(other).collect());
        }
    }
    Ok(of_tokenizer.into_iter().collect())
}

/// One id or a list of them. Null and negative numbers, which some files use for "none", are ignored.
fn id_list(value: &Value) -> Option<Vec<u32>> {
    let one = |value: &Value| match value {
        Value::Null => Some(None),
        Value::Number(number) if number.as_i64().is_some_and(|id| id < 0) => Some(None),
        Value::Number(number) => u32::try_from(number.as_u64()?).ok().map(Some),
        _ => None,
    };
    let found = match value {
        Value::Array(items) => items.iter().map(one).collect::<Option<Vec<_>>>()?,
        single => vec![one(single)?],
    };
    let mut ids = Vec::new();
    for id in found.into_iter().flatten() {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Some(ids)
}
