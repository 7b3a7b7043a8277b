//! Which files of a model are downloaded, and which ones a folder lacks.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use mlx_core::files;
use serde_json::Value;

use super::{Name, gguf};
use crate::error::{Error, ErrorKind, Result};
use crate::text::sentence::file_of_module;

const CONFIG: &str = "config.json";
const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Configuration, tokenizers and templates. ModelOpt describes packed weights in a file of its own.
const SMALL: [&str; 18] = [
    CONFIG,
    "hf_quant_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "config_sentence_transformers.json",
    "modules.json",
    "sentence_bert_config.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "tekken.json",
    "tiktoken.model",
    "rwkv_vocab_v20230424.txt",
];
/// Tokenizer files. A model needs one of them.
const TOKENIZERS: [&str; 7] = [
    "tokenizer.json",
    "tokenizer.model",
    "tekken.json",
    "tiktoken.model",
    "vocab.json",
    "vocab.txt",
    "rwkv_vocab_v20230424.txt",
];
/// Weights of heads for multi-token prediction in separate files.
const SIDECARS: [&str; 3] = [
    "model-mtp.safetensors",
    "mtp.safetensors",
    "mtp/weights.safetensors",
];
/// The folder of further templates.
const TEMPLATES: &str = "additional_chat_templates/";
/// Most files of one model.
const MAX_FILES: usize = 10_000;

/// The files to download.
#[derive(Debug)]
pub(super) struct Chosen {
    /// All files except weights.
    pub(super) small: Vec<String>,
    pub(super) weights: Weights,
}

#[derive(Debug)]
pub(super) enum Weights {
    /// These files.
    Files(Vec<String>),
    /// The files that the index names.
    Index,
}

/// Chooses among the files of a model.
///
/// # Errors
/// A name leaves the model's folder, or the model has no configuration or no weights in safetensors.
pub(super) fn choose(name: &Name, all: &[String]) -> Result<Chosen> {
    if all.len() > MAX_FILES {
        let message = format!(
            "{name} has {} files; expected at most {MAX_FILES}",
            all.len()
        );
        return Err(Error::unsupported(message));
    }
    if let Some(file) = all.iter().find(|file| !is_inside(file)) {
        let message =
            format!("{name}: the hub lists a file {file:?}, which leaves the model's folder");
        return Err(Error::format(message));
    }
    let has = |wanted: &str| all.iter().any(|file| file == wanted);
    let has_weights = all.iter().any(|file| is_shard(file));
    if (name.variant().is_some() || !has_weights)
        && let Some(files) = gguf::choose(name, all)?
    {
        return Ok(Chosen {
            small: Vec::new(),
            weights: Weights::Files(files),
        });
    }
    if !has(CONFIG) {
        let message = format!("{name} has no {CONFIG}, so it is no model that can be loaded");
        return Err(Error::new(ErrorKind::Missing, message));
    }
    let is_small = |file: &&String| {
        let template = file.strip_suffix(".jinja").is_some_and(|rest| {
            !rest.contains('/')
                || rest
                    .strip_prefix(TEMPLATES)
                    .is_some_and(|rest| !rest.contains('/'))
        });
        SMALL.contains(&file.as_str()) || template || is_of_module(file, CONFIG)
    };
    let mut small: Vec<String> = all.iter().filter(is_small).cloned().collect();
    let sidecars = all.iter().filter(|file| is_sidecar(file)).cloned();
    let shards = || all.iter().filter(|file| is_shard(file)).cloned();
    let weights = if has(WHOLE) {
        Weights::Files([WHOLE.to_owned()].into_iter().chain(sidecars).collect())
    } else if has(INDEX) {
        small.push(INDEX.to_owned());
        Weights::Index
    } else if shards().chain(sidecars.clone()).next().is_some() {
        let files: BTreeSet<String> = shards().chain(sidecars).collect();
        Weights::Files(files.into_iter().collect())
    } else {
        return Err(no_weights(name, all));
    };
    Ok(Chosen { small, weights })
}

/// Whether a file has weights beside those of the model.
fn is_sidecar(file: &str) -> bool {
    SIDECARS.contains(&file) || is_of_module(file, WHOLE)
}

/// Whether a file is this one of a module of sentence-transformers, in a folder such as `2_Dense`.
fn is_of_module(file: &str, name: &str) -> bool {
    file_of_module(file) == Some(name)
}

/// The files of weights that the index in `dir` names, and sidecars.
///
/// # Errors
/// The index is malformed or names files that the model does not have.
pub(super) fn shards(dir: &Path, all: &[String]) -> Result<Vec<String>> {
    let named = indexed(dir)?;
    if let Some(absent) = named.iter().find(|file| !all.contains(file)) {
        let message = format!(
            "{}: {INDEX} names {absent:?}, which the hub does not have",
            dir.display()
        );
        return Err(Error::format(message));
    }
    let sidecars = all.iter().filter(|file| is_sidecar(file)).cloned();
    let files: BTreeSet<String> = named.into_iter().chain(sidecars).collect();
    Ok(files.into_iter().collect())
}

/// The files that an index names.
fn indexed(dir: &Path) -> Result<BTreeSet<String>> {
    let path = dir.join(INDEX);
    let fail = |what: String| Error::format(format!("{}: {what}", path.display()));
    let bytes = files::read(&path, files::JSON_LIMIT)?;
    let index: Value =
        serde_json::from_slice(&bytes).map_err(|error| fail(format!("not valid json: {error}")))?;
    let map = index["weight_map"].as_object();
    let map = map.ok_or_else(|| fail("weight_map is missing or no object".to_owned()))?;
    map.iter()
        .map(|(tensor, file)| match file.as_str() {
            Some(file)
                if file.ends_with(".safetensors") && is_inside(file) && !file.contains('/') =>
            {
                Ok(file.to_owned())
            }
            _ => Err(fail(format!(
                "{tensor}: {file} is not the name of a safetensors file here"
            ))),
        })
        .collect()
}

/// The files that a folder lacks for loading: its configuration or weights.
pub(super) fn missing(dir: &Path) -> Vec<String> {
    let lacks = |file: &str| !dir.join(file).is_file();
    let mut missing: Vec<String> = [CONFIG]
        .into_iter()
        .filter(|file| lacks(file))
        .map(str::to_owned)
        .collect();
    if !lacks(WHOLE) {
        return missing;
    }
    if dir.join(INDEX).is_file() {
        match indexed(dir) {
            Ok(files) => missing.extend(files.into_iter().filter(|file| lacks(file))),
            Err(_) => missing.push(INDEX.to_owned()),
        }
        return missing;
    }
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    if !names.any(|name| is_shard(&name) && !lacks(&name)) {
        missing.push(WHOLE.to_owned());
    }
    missing
}

/// Whether a folder has a tokenizer of any kind.
pub(super) fn has_tokenizer(dir: &Path) -> bool {
    TOKENIZERS.iter().any(|file| dir.join(file).is_file())
}

fn is_shard(file: &str) -> bool {
    file.starts_with("model") && file.ends_with(".safetensors") && !file.contains('/')
}

fn is_inside(file: &str) -> bool {
    let plain = |part| matches!(part, Component::Normal(_));
    let odd = |c: char| c == '\\' || c == ':' || c.is_control();
    !file.is_empty() && !file.contains(odd) && Path::new(file).components().all(plain)
}

fn no_weights(name: &Name, all: &[String]) -> Error {
    let ends = |suffixes: &[&str]| {
        all.iter()
            .find(|file| suffixes.iter().any(|end| file.ends_with(end)))
    };
    let found = if let Some(file) = ends(&["adapter_model.safetensors", "adapters.safetensors"]) {
        format!(
            "{file} is an adapter; give --adapter its folder, and --model the model that it is for"
        )
    } else if let Some(file) = ends(&[".bin", ".pt", ".pth", ".ckpt"]) {
        format!("{file} may run code when it is read (pickle), and is never fetched")
    } else {
        "there are no weights".to_owned()
    };
    Error::unsupported(format!("{name} has no model*.safetensors: {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(all: &[&str]) -> Result<Chosen> {
        let all: Vec<String> = all.iter().map(|&file| file.to_owned()).collect();
        choose(&Name::parse("org/name").unwrap(), &all)
    }

    #[test]
    fn only_what_a_model_needs() {
        let all = [
            ".gitattributes",
            "README.md",
            "config.json",
            "hf_quant_config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "pytorch_model.bin",
            "modeling.py",
            "onnx/model.onnx",
            "tokenizer.json",
            "chat_template.jinja",
            "additional_chat_templates/rag.jinja",
            "other/x.jinja",
            "mtp/weights.safetensors",
            "training_args.bin",
        ];
        let found = chosen(&all).unwrap();
        let small = [
            "config.json",
            "hf_quant_config.json",
            "tokenizer.json",
            "chat_template.jinja",
            "additional_chat_templates/rag.jinja",
        ];
        assert_eq!(found.small, small);
        let Weights::Files(weights) = found.weights else {
            panic!("model.safetensors goes before an index");
        };
        assert_eq!(weights, ["model.safetensors", "mtp/weights.safetensors"]);
        let found = chosen(&[
            "config.json",
            "model-00001.safetensors",
            "model.safetensors.index.json",
        ])
        .unwrap();
        assert!(matches!(found.weights, Weights::Index));
        assert_eq!(found.small, ["config.json", "model.safetensors.index.json"]);
        let found = chosen(&[
            "config.json",
            "model-mtp.safetensors",
            "model-1.safetensors",
        ])
        .unwrap();
        let Weights::Files(weights) = found.weights else {
            panic!("there is no index");
        };
        assert_eq!(weights, ["model-1.safetensors", "model-mtp.safetensors"]);
    }

    #[test]
    fn what_is_refused_is_named() {
        for (all, expected) in [
            (
                &["config.json", "pytorch_model.bin"][..],
                "pytorch_model.bin may run code",
            ),
            (
                &["config.json", "a-Q4_0.gguf", "a-Q8_0.gguf"],
                "a-Q4_0, a-Q8_0 (a name ends with the quantisation: org/name:Q4_K_M)",
            ),
            (&["config.json", "adapters.safetensors"], "--adapter"),
            (&["config.json"], "there are no weights"),
            (&["model.safetensors"], "no config.json"),
            (
                &["config.json", "../x.jinja"],
                "\"../x.jinja\", which leaves",
            ),
            (&["config.json", "/etc/x"], "leaves"),
            (&["config.json", "a\\..\\b.jinja"], "leaves"),
            (&["config.json", ""], "leaves"),
        ] {
            let error = chosen(all).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn an_index_names_files_of_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let index = dir.path().join(INDEX);
        let all = ["a.safetensors".to_owned()];
        for (text, expected) in [
            (
                r#"{"weight_map": {"w": "a.safetensors"}}"#,
                Ok(vec!["a.safetensors".to_owned()]),
            ),
            (
                r#"{"weight_map": {"w": "../a.safetensors"}}"#,
                Err("is not the name"),
            ),
            (r#"{"weight_map": {"w": "a.bin"}}"#, Err("is not the name")),
            (
                r#"{"weight_map": {"w": "b.safetensors"}}"#,
                Err("which the hub does not have"),
            ),
            (r#"{"weight_map": 1}"#, Err("no object")),
            ("{", Err("not valid json")),
        ] {
            std::fs::write(&index, text).unwrap();
            match (shards(dir.path(), &all), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(error), Err(expected)) => {
                    assert!(error.to_string().contains(expected), "{error}")
                }
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }
}
