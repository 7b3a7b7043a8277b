//! The files that sentence-transformers writes beside a checkpoint: prompts, the longest text, and
//! how a reranker scores.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::text::files::Files;

/// The settings of these files. Without the files there are none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SentenceSettings {
    /// Texts that are put before a text, by name.
    pub(crate) prompts: BTreeMap<String, String>,
    /// The name of the prompt for texts without one.
    pub(crate) default_prompt: Option<String>,
    /// The most tokens of a text.
    pub(crate) max_tokens: Option<usize>,
    /// Whether letters become small before the tokenizer reads them.
    pub(crate) lower_case: bool,
    /// The number of leading features that are kept.
    pub(crate) dimensions: Option<usize>,
    /// Whether the logit of a reranker becomes a number from 0 to 1.
    pub(crate) has_sigmoid: bool,
    /// The ids of a reranker's answers, yes and no, if the files name them.
    pub(crate) answers: Option<(u32, Option<u32>)>,
}

const SENTENCE: &str = "config_sentence_transformers.json";
const BERT: &str = "sentence_bert_config.json";
const TOKENIZER: &str = "tokenizer_config.json";
const MODULES: &str = "modules.json";
const CONFIG: &str = "config.json";
/// transformers writes this and larger numbers for a tokenizer without a limit.
const NO_LIMIT: u64 = 1 << 40;

/// The name of a file of a module, if `path` is one: `config.json` for `1_Pooling/config.json`.
pub(crate) fn file_of_module(path: &str) -> Option<&str> {
    let (folder, file) = path.split_once('/')?;
    let (number, name) = folder.split_once('_')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !name.is_empty() && !file.contains('/')).then_some(file)
}

impl SentenceSettings {
    /// Reads the files.
    ///
    /// # Errors
    /// A file is malformed, or a value is not supported.
    pub(crate) fn read(files: &Files) -> Result<Self> {
        let sentence = object(files, SENTENCE)?;
        let bert = object(files, BERT)?;
        let config = object(files, CONFIG)?;
        let size = |map: &Map<String, Value>, file: &str, key: &str| match map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value
                .as_f64()
                .filter(|number| *number >= 1.0)
                .map(|number| Some(number as u64))
                .ok_or_else(|| {
                    wrong(
                        files,
                        file,
                        &format!("{key} must be a number from 1"),
                        value,
                    )
                }),
        };
        let tokenizer = object(files, TOKENIZER)?;
        let limit = match size(&bert, BERT, "max_seq_length")? {
            Some(limit) => Some(limit),
            None => size(&tokenizer, TOKENIZER, "model_max_length")?,
        };
        let mut prompts = BTreeMap::new();
        if let Some(Value::Object(given)) = sentence.get("prompts") {
            for (name, text) in given {
                if let Some(text) = text.as_str() {
                    prompts.insert(name.clone(), text.to_owned());
                }
            }
        }
        let name = sentence.get("default_prompt_name").and_then(Value::as_str);
        if let Some(name) = name.filter(|name| !prompts.contains_key(*name)) {
            let what = format!("default_prompt_name {name:?} is not among prompts");
            return Err(Error::format(format!("{}: {what}", files.locate(SENTENCE))));
        }
        Ok(Self {
            default_prompt: name.map(str::to_owned),
            prompts,
            max_tokens: limit
                .filter(|limit| *limit < NO_LIMIT)
                .map(|limit| limit as usize),
            lower_case: bert.get("do_lower_case") == Some(&Value::Bool(true)),
            dimensions: size(&sentence, SENTENCE, "truncate_dim")?.map(|dim| dim as usize),
            has_sigmoid: has_sigmoid(&config, &sentence)?,
            answers: answers(files)?,
        })
    }
}

/// Whether a reranker's logit goes through a sigmoid. It does unless a file says otherwise.
fn has_sigmoid(config: &Map<String, Value>, sentence: &Map<String, Value>) -> Result<bool> {
    let inside = config
        .get("sentence_transformers")
        .and_then(|inside| inside.get("activation_fn"));
    let name = inside
        .or(config.get("sbert_ce_default_activation_function"))
        .or(sentence.get("activation_fn"))
        .and_then(Value::as_str);
    // Other paths than those of torch are not run, as in sentence-transformers.
    match name.filter(|name| name.starts_with("torch.")) {
        None => Ok(true),
        Some(name) if name.ends_with(".Sigmoid") => Ok(true),
        Some(name) if name.ends_with(".Identity") => Ok(false),
        Some(name) => Err(Error::unsupported(format!(
            "the activation {name} of a reranker is not supported; known: Sigmoid, Identity"
        ))),
    }
}

/// The ids of the module that turns the logits of a decoder into a score.
fn answers(files: &Files) -> Result<Option<(u32, Option<u32>)>> {
    let list = files.json(MODULES)?;
    let modules = list.as_ref().and_then(Value::as_array);
    let is_score = |module: &&Value| {
        let kind = module.get("type").and_then(Value::as_str);
        kind.is_some_and(|kind| kind.ends_with(".LogitScore"))
    };
    let Some(module) = modules.into_iter().flatten().find(is_score) else {
        return Ok(None);
    };
    let path = module.get("path").and_then(Value::as_str).unwrap_or("");
    let name = format!("{path}/config.json");
    let config = object(files, &name)?;
    let id = |key: &str| {
        let id = config.get(key).and_then(Value::as_u64);
        id.and_then(|id| u32::try_from(id).ok())
    };
    match id("true_token_id") {
        Some(yes) => Ok(Some((yes, id("false_token_id")))),
        None => Err(Error::format(format!(
            "{}: true_token_id is missing",
            files.locate(&name)
        ))),
    }
}

fn object(files: &Files, name: &str) -> Result<Map<String, Value>> {
    match files.json(name)? {
        None => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map),
        Some(other) => Err(wrong(files, name, "expected an object", &other)),
    }
}

fn wrong(files: &Files, name: &str, expected: &str, found: &Value) -> Error {
    Error::format(format!("{}: {expected}, found {found}", files.locate(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Result<SentenceSettings> {
        SentenceSettings::read(&Files::given("here", files.iter().copied()))
    }

    #[test]
    fn settings_come_from_their_files() {
        let settings = read(&[
            (
                SENTENCE,
                r#"{"prompts": {"query": "q: ", "document": null}, "default_prompt_name": "query", "truncate_dim": 8}"#,
            ),
            (BERT, r#"{"max_seq_length": 128, "do_lower_case": true}"#),
            (TOKENIZER, r#"{"model_max_length": 512}"#),
            (
                CONFIG,
                r#"{"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}"#,
            ),
            (
                MODULES,
                r#"[{"type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore", "path": "1_S"}]"#,
            ),
            (
                "1_S/config.json",
                r#"{"true_token_id": 3, "false_token_id": 4}"#,
            ),
        ]);
        let expected = SentenceSettings {
            prompts: BTreeMap::from([("query".to_owned(), "q: ".to_owned())]),
            default_prompt: Some("query".to_owned()),
            max_tokens: Some(128),
            lower_case: true,
            dimensions: Some(8),
            has_sigmoid: false,
            answers: Some((3, Some(4))),
        };
        assert_eq!(settings.unwrap(), expected);
        let unlimited = read(&[(TOKENIZER, r#"{"model_max_length": 1e30}"#)]).unwrap();
        assert_eq!(unlimited.max_tokens, None);
        assert!(unlimited.has_sigmoid);
    }

    #[test]
    fn modules_have_folders_with_numbers() {
        assert_eq!(file_of_module("1_Pooling/config.json"), Some("config.json"));
        for other in [
            "config.json",
            "Pooling/config.json",
            "x_1/config.json",
            "1_/config.json",
            "_a/b",
            "1_a/b/c",
        ] {
            assert_eq!(file_of_module(other), None, "{other}");
        }
    }

    #[test]
    fn faults_are_named() {
        for (file, text, fault) in [
            (
                SENTENCE,
                r#"{"default_prompt_name": "x"}"#,
                "default_prompt_name \"x\"",
            ),
            (
                BERT,
                r#"{"max_seq_length": 0}"#,
                "max_seq_length must be a number from 1, found 0",
            ),
            (BERT, "[]", "expected an object, found []"),
            (
                CONFIG,
                r#"{"sbert_ce_default_activation_function": "torch.nn.Tanh"}"#,
                "torch.nn.Tanh",
            ),
        ] {
            let error = read(&[(file, text)]).unwrap_err().to_string();
            assert!(error.contains(fault), "{error}");
        }
    }
}
