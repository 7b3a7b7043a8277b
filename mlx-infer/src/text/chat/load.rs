//! Finds the chat templates of a checkpoint.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::error::{Error, Result};
use crate::text::files::Files;
use crate::text::tokenizer::json_kind;

/// The name of a single template.
pub(super) const DEFAULT: &str = "default";

/// Templates in separate files, by name.
fn from_jinja_files(files: &Files) -> Result<BTreeMap<String, String>> {
    let mut sources = BTreeMap::new();
    if let Some(source) = files.text("chat_template.jinja")? {
        sources.insert(DEFAULT.to_owned(), source);
    }
    for name in files.list()? {
        let template = name
            .strip_prefix("additional_chat_templates/")
            .and_then(|rest| rest.strip_suffix(".jinja"));
        // Other files are not read; weights, for example, are not text.
        let Some(template) = template else { continue };
        if let Some(source) = files.text(&name)? {
            sources.insert(template.to_owned(), source);
        }
    }
    Ok(sources)
}

/// The templates that a checkpoint has, by name, and whether a caller may choose among them by name. No entries if it
/// has none.
pub(crate) fn own(files: &Files) -> Result<(BTreeMap<String, String>, bool)> {
    let sources = from_jinja_files(files)?;
    if !sources.is_empty() {
        let is_named = sources.len() > 1 || !sources.contains_key(DEFAULT);
        return Ok((sources, is_named));
    }
    for file in ["tokenizer_config.json", "chat_template.json"] {
        if let Some(found) = from_json(files, file)? {
            return Ok(found);
        }
    }
    Ok((sources, false))
}

/// Templates by name, and whether a caller may choose among them by name.
type Found = Option<(BTreeMap<String, String>, bool)>;

/// `chat_template` of a JSON file: a template, a list of named ones, or a map of them. Also returns whether they have
/// names.
fn from_json(files: &Files, file: &str) -> Result<Found> {
    let json = files.json(file)?.unwrap_or_default();
    let wrong = |found: &Json| {
        Error::format(format!(
            "{}: chat_template: expected a text or a list of {{name, template}}, found {}",
            files.locate(file),
            json_kind(found)
        ))
    };
    match json.get("chat_template") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(source)) => Ok(Some((
            BTreeMap::from([(DEFAULT.to_owned(), source.clone())]),
            false,
        ))),
        Some(Json::Array(list)) => {
            let mut sources = BTreeMap::new();
            for entry in list {
                let text = |key: &str| entry.get(key).and_then(Json::as_str).map(str::to_owned);
                let (Some(name), Some(source)) = (text("name"), text("template")) else {
                    return Err(wrong(entry));
                };
                sources.insert(name, source);
            }
            Ok(Some((sources, true)))
        }
        Some(Json::Object(map)) => {
            let text = |(name, source): (&String, &Json)| match source {
                Json::String(source) => Ok((name.clone(), source.clone())),
                other => Err(wrong(other)),
            };
            Ok(Some((map.iter().map(text).collect::<Result<_>>()?, true)))
        }
        Some(other) => Err(wrong(other)),
    }
}
