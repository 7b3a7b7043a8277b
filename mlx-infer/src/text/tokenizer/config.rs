//! Reads `tokenizer_config.json` and the older files with settings as transformers does.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::error::{Error, Result};
use crate::text::files::Files;

const CONFIG: &str = "tokenizer_config.json";

/// The special tokens that every tokenizer of transformers has by name, in its order.
const NAMED: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// A token in a configuration: only its text, or its text and matching options.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ConfigToken {
    Text(String),
    Full(AddedToken),
}

impl ConfigToken {
    pub(super) fn content(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Full(token) => &token.content,
        }
    }
}

/// The settings that change ids or text.
#[derive(Debug, Default)]
pub(super) struct TokenizerConfig {
    pub(super) class: Option<String>,
    /// Whether it names Python code for a tokenizer.
    pub(super) has_code: bool,
    /// Name and token, the standard names first; `None` if the file has null.
    pub(super) named: Vec<(String, Option<ConfigToken>)>,
    pub(super) extra: Vec<ConfigToken>,
    /// Whether the files contain `extra_special_tokens`, even as an empty list.
    pub(super) has_extra: bool,
    pub(super) add_bos: Option<bool>,
    pub(super) add_eos: Option<bool>,
    pub(super) added: BTreeMap<u32, AddedToken>,
    pub(super) clean_up: bool,
    pub(super) clean_up_bpe: bool,
    pub(super) split_special: bool,
    pub(super) add_prefix_space: Option<bool>,
    pub(super) legacy: bool,
    /// BERT: whether letters become small, whether Chinese characters are words, and whether
    /// accents are removed; `None` if that follows from the letters.
    pub(super) lower_case: bool,
    pub(super) chinese_chars: bool,
    pub(super) strip_accents: Option<bool>,
}

impl TokenizerConfig {
    /// Reads the files next to `tokenizer.json`, which itself has the `added_tokens` given in
    /// `in_tokenizer_json`.
    pub(super) fn load(files: &Files, in_tokenizer_json: &[(u32, AddedToken)]) -> Result<Self> {
        let mut values = object(files, CONFIG)?.unwrap_or_default();
        if truthy(values.get("fix_mistral_regex")) {
            return Err(Error::unsupported(format!(
                "{}: fix_mistral_regex is not supported; save the tokenizer again with the corrected pattern",
                files.locate(CONFIG)
            )));
        }
        if !truthy(values.get("extra_special_tokens"))
            && let Some(old) = values.shift_remove("additional_special_tokens")
        {
            values.insert("extra_special_tokens".to_owned(), old);
        }
        let mut custom = custom_named(&mut values)?;
        let added = match values.get("added_tokens_decoder") {
            Some(found) => added_tokens_decoder(found)?,
            None => {
                merge_special_tokens_map(files, &mut values, &mut custom)?;
                legacy_added_tokens(files, &values, in_tokenizer_json)?
            }
        };
        // Beside a map of names the older key counts too, or that of special_tokens_map.json.
        if !values.contains_key("extra_special_tokens")
            && let Some(old) = values.shift_remove("additional_special_tokens")
        {
            values.insert("extra_special_tokens".to_owned(), old);
        }
        let by_content: BTreeMap<&str, &AddedToken> = added
            .values()
            .map(|token| (token.content.as_str(), token))
            .collect();
        let mut named = Vec::new();
        for name in NAMED {
            let Some(value) = values.get(name) else {
                continue;
            };
            let token =
                optional_token(name, value)?.map(|token| match by_content.get(token.content()) {
                    Some(full) => ConfigToken::Full((*full).clone()),
                    None => token,
                });
            named.push((name.to_owned(), token));
        }
        named.extend(custom.into_iter().map(|(name, token)| (name, Some(token))));
        Ok(Self {
            class: string(&values, "tokenizer_class"),
            has_code: match values.get("auto_map") {
                Some(Value::Object(map)) => truthy(map.get("AutoTokenizer")),
                other => truthy(other),
            },
            named,
            extra: token_list(values.get("extra_special_tokens"))?,
            has_extra: values.contains_key("extra_special_tokens"),
            add_bos: values.get("add_bos_token").map(|flag| truthy(Some(flag))),
            add_eos: values.get("add_eos_token").map(|flag| truthy(Some(flag))),
            clean_up: truthy(values.get("clean_up_tokenization_spaces")),
            clean_up_bpe: truthy(
                values
                    .get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"),
            ),
            split_special: truthy(values.get("split_special_tokens")),
            add_prefix_space: values.get("add_prefix_space").and_then(Value::as_bool),
            legacy: truthy(values.get("legacy")),
            lower_case: values
                .get("do_lower_case")
                .is_none_or(|flag| truthy(Some(flag))),
            chinese_chars: values
                .get("tokenize_chinese_chars")
                .is_none_or(|flag| truthy(Some(flag))),
            strip_accents: values.get("strip_accents").and_then(Value::as_bool),
            added,
        })
    }

    /// Sets a named token, unless the configuration mentions it.
    pub(super) fn default_named(&mut self, name: &str, content: &str) {
        if self.named.iter().any(|(found, _)| found == name) {
            return;
        }
        let full = self.added.values().find(|token| token.content == content);
        let token = full.map_or_else(
            || ConfigToken::Text(content.to_owned()),
            |full| ConfigToken::Full(full.clone()),
        );
        // The order is that of transformers, in which missing tokens get their ids.
        let rank = |name: &str| {
            NAMED
                .iter()
                .position(|known| *known == name)
                .unwrap_or(NAMED.len())
        };
        let at = self
            .named
            .iter()
            .take_while(|(found, _)| rank(found) < rank(name))
            .count();
        self.named.insert(at, (name.to_owned(), Some(token)));
    }

    /// The text of a named token.
    pub(super) fn named_content(&self, name: &str) -> Option<&str> {
        let (_, token) = self.named.iter().find(|(found, _)| found == name)?;
        token.as_ref().map(ConfigToken::content)
    }
}

/// Reads a JSON file that must have an object.
pub(super) fn object(files: &Files, name: &str) -> Result<Option<Map<String, Value>>> {
    match files.json(name)? {
        None => Ok(None),
        Some(Value::Object(values)) => Ok(Some(values)),
        Some(other) => Err(Error::format(format!(
            "{}: expected a json object, found {}",
            files.locate(name),
            kind(&other)
        ))),
    }
}

/// Removes the named tokens that are specific to this model: `image_token` and the like.
fn custom_named(values: &mut Map<String, Value>) -> Result<Vec<(String, ConfigToken)>> {
    let is_custom = |(name, value): &(&String, &Value)| {
        name.ends_with("_token") && !NAMED.contains(&name.as_str()) && value.is_string()
    };
    let names: Vec<String> = values
        .iter()
        .filter(is_custom)
        .map(|(name, _)| name.clone())
        .collect();
    let mut custom = Vec::new();
    for name in names {
        if let Some(value) = values.shift_remove(&name) {
            custom.push((name.clone(), token(&name, &value)?));
        }
    }
    take_extra_map(values, &mut custom)?;
    Ok(custom)
}

/// Takes `extra_special_tokens` if it is a map of names instead of a list.
fn take_extra_map(
    values: &mut Map<String, Value>,
    custom: &mut Vec<(String, ConfigToken)>,
) -> Result<()> {
    if !values
        .get("extra_special_tokens")
        .is_some_and(Value::is_object)
    {
        return Ok(());
    }
    if let Some(Value::Object(extra)) = values.shift_remove("extra_special_tokens") {
        for (name, value) in extra {
            let token = token(&name, &value)?;
            match custom.iter_mut().find(|(found, _)| *found == name) {
                Some((_, slot)) => *slot = token,
                None => custom.push((name, token)),
            }
        }
    }
    Ok(())
}

/// Applies `special_tokens_map.json`, which overrides the configuration unless that lists added
/// tokens.
fn merge_special_tokens_map(
    files: &Files,
    values: &mut Map<String, Value>,
    custom: &mut Vec<(String, ConfigToken)>,
) -> Result<()> {
    for (name, value) in object(files, "special_tokens_map.json")?.unwrap_or_default() {
        let value = match value {
            Value::Object(mut token) if name != "extra_special_tokens" => {
                token.insert("special".to_owned(), Value::Bool(true));
                Value::Object(token)
            }
            other => other,
        };
        let name = if name == "additional_special_tokens"
            && !values.contains_key("extra_special_tokens")
        {
            "extra_special_tokens".to_owned()
        } else {
            name
        };
        values.insert(name, value);
    }
    take_extra_map(values, custom)
}

/// Added tokens from the places that were used before `added_tokens_decoder`.
fn legacy_added_tokens(
    files: &Files,
    values: &Map<String, Value>,
    in_tokenizer_json: &[(u32, AddedToken)],
) -> Result<BTreeMap<u32, AddedToken>> {
    let mut added = BTreeMap::new();
    if let Some(old) = object(files, "added_tokens.json")? {
        let mut special = Vec::new();
        for name in NAMED {
            if let Some(token) = values
                .get(name)
                .map(|value| optional_token(name, value))
                .transpose()?
            {
                special.extend(token);
            }
        }
        special.extend(token_list(values.get("extra_special_tokens"))?);
        for (content, id) in old {
            let id = id
                .as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| {
                    Error::format(format!(
                        "{}: id of {content:?} is {id}",
                        files.locate("added_tokens.json")
                    ))
                })?;
            let is_special = special.iter().any(|token| token.content() == content);
            added.insert(id, AddedToken::from(content, is_special));
        }
    }
    added.extend(in_tokenizer_json.iter().cloned());
    Ok(added)
}

fn added_tokens_decoder(value: &Value) -> Result<BTreeMap<u32, AddedToken>> {
    let Value::Object(entries) = value else {
        return Err(Error::format(format!(
            "{CONFIG}: added_tokens_decoder: expected an object, found {}",
            kind(value)
        )));
    };
    let mut added = BTreeMap::new();
    for (id, value) in entries {
        let number = id.parse().map_err(|_| {
            Error::format(format!(
                "{CONFIG}: added_tokens_decoder: {id:?} is not a token id"
            ))
        })?;
        added.insert(
            number,
            added_token(&format!("{CONFIG}: added_tokens_decoder.{id}"), value)?,
        );
    }
    Ok(added)
}

fn token_list(value: Option<&Value>) -> Result<Vec<ConfigToken>> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| token("extra_special_tokens", item))
            .collect(),
        Some(other) => Err(Error::format(format!(
            "{CONFIG}: extra_special_tokens: expected a list of tokens, found {}",
            kind(other)
        ))),
    }
}

fn optional_token(name: &str, value: &Value) -> Result<Option<ConfigToken>> {
    if value.is_null() {
        Ok(None)
    } else {
        token(name, value).map(Some)
    }
}

fn token(name: &str, value: &Value) -> Result<ConfigToken> {
    match value {
        Value::String(text) => Ok(ConfigToken::Text(text.clone())),
        Value::Object(_) => added_token(&format!("{CONFIG}: {name}"), value).map(ConfigToken::Full),
        other => Err(Error::format(format!(
            "{CONFIG}: {name}: expected a string or an added token, found {}",
            kind(other)
        ))),
    }
}

/// An added token in its serialised form. A missing flag is false, except that `normalized` is then
/// the opposite of `special`.
pub(super) fn added_token(name: &str, value: &Value) -> Result<AddedToken> {
    let Some(content) = value.get("content").and_then(Value::as_str) else {
        return Err(Error::format(format!(
            "{name}: an added token without content: {value}"
        )));
    };
    let flag = |key: &str| value.get(key).and_then(Value::as_bool);
    let special = flag("special").unwrap_or(false);
    Ok(AddedToken::from(content, special)
        .single_word(flag("single_word").unwrap_or(false))
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .normalized(flag("normalized").unwrap_or(!special)))
}

/// The text under a key.
pub(super) fn string(values: &Map<String, Value>, key: &str) -> Option<String> {
    values.get(key).and_then(Value::as_str).map(str::to_owned)
}

fn truthy(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(items)) => !items.is_empty(),
        Some(_) => true,
    }
}

/// The JSON type of a value, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
