//! The cases of `testdata/models`: configs, weights, mutations and goldens.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mlx_core::{Array, DType, Result, Safetensors, safetensors};
use mlx_models::{LoadOptions, Loaded};
use serde_json::Value;

use super::run::log_probs;
use crate::checkpoints::checkpoint;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Float,
    Quantized,
}

/// One wrong flag.
#[derive(Debug)]
pub struct Mutation {
    pub name: String,
    pub changes: String,
    config: Option<Value>,
    fill: BTreeMap<String, f32>,
    scale: BTreeMap<String, f32>,
}

impl Mutation {
    pub const TOKENS: &'static str = "tokens";
}

pub struct Case {
    pub name: String,
    pub model_type: String,
    pub kind: Kind,
    pub configs: Vec<String>,
    pub prompts: Vec<Vec<u32>>,
    pub tolerance: f32,
    pub mutations: Vec<Mutation>,
    dir: PathBuf,
}

/// The reference's results for one prompt of L tokens.
pub struct Golden {
    /// Log probabilities after each token of the prompt, L rows.
    pub log_probs: Vec<f32>,
    /// Log probabilities from which each of the 24 tokens was chosen.
    pub step_log_probs: Vec<f32>,
    pub tokens: Vec<u32>,
    /// The tokens whose log probabilities a row has, `[n]`; all V if absent.
    columns: Option<Array>,
}

impl Golden {
    /// The log probabilities of logits `[L, V]` that the golden has too.
    pub fn shown(&self, logits: &Array) -> Result<Vec<f32>> {
        let all = logits.subtract(logits.logsumexp(-1, true)?)?;
        match &self.columns {
            Some(columns) => all.take(columns, 1)?.to_vec(),
            None => all.to_vec(),
        }
    }
}

fn json(path: &Path) -> Value {
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    mlx_models::config::parse(text.as_bytes())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn numbers(value: &Value) -> BTreeMap<String, f32> {
    let map = value.as_object().into_iter().flatten();
    map.map(|(suffix, number)| (suffix.clone(), number.as_f64().unwrap() as f32))
        .collect()
}

impl Case {
    pub fn all() -> Vec<Case> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models");
        let index = json(&root.join("index.json"));
        index.as_array().unwrap().iter().map(Case::read).collect()
    }

    fn read(entry: &Value) -> Case {
        let name = entry["case"].as_str().unwrap().to_owned();
        let dir = checkpoint(&name);
        let golden = json(&dir.join("golden.json"));
        let ids = |value: &Value| {
            value
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_u64().unwrap() as u32)
                .collect()
        };
        let mutation = |value: &Value| Mutation {
            name: value["name"].as_str().unwrap().to_owned(),
            changes: value["changes"].as_str().unwrap().to_owned(),
            config: value.get("config").cloned(),
            fill: numbers(&value["fill"]),
            scale: numbers(&value["scale"]),
        };
        Case {
            model_type: entry["model_type"].as_str().unwrap().to_owned(),
            kind: match entry["kind"].as_str().unwrap() {
                "float" => Kind::Float,
                "quantized" => Kind::Quantized,
                other => panic!("unknown kind {other}"),
            },
            configs: golden["configs"].as_array().map_or_else(
                || vec!["config.json".to_owned()],
                |files| {
                    files
                        .iter()
                        .map(|file| file.as_str().unwrap().to_owned())
                        .collect()
                },
            ),
            prompts: golden["prompts"]
                .as_array()
                .unwrap()
                .iter()
                .map(ids)
                .collect(),
            tolerance: golden["tolerance"].as_f64().unwrap() as f32,
            mutations: golden["mutations"]
                .as_array()
                .into_iter()
                .flatten()
                .map(mutation)
                .collect(),
            name,
            dir,
        }
    }

    pub fn golden(&self, prompt: usize) -> Golden {
        let file = Safetensors::open(self.dir.join("golden.safetensors")).unwrap();
        let array = |name: &str| file.array(&format!("{name}.{prompt}")).unwrap();
        let tokens = array("tokens").to_vec::<i32>().unwrap();
        let tokens = tokens.into_iter().map(|token| token as u32).collect();
        let has_columns = file.names().any(|name| name == "columns");
        let columns = has_columns.then(|| file.array("columns").unwrap());
        let rows = |stored: &str, logits: &str| match columns {
            Some(_) => array(stored).to_vec().unwrap(),
            None => log_probs(&array(logits)).unwrap(),
        };
        Golden {
            log_probs: rows("logprobs", "logits"),
            step_log_probs: rows("step_logprobs", "step_logits"),
            tokens,
            columns,
        }
    }

    /// The model, in f32, with another config file or a wrong flag.
    pub fn load(&self, config: &str, mutation: Option<&Mutation>) -> Result<Loaded> {
        let mut value = self.config(config);
        let mut files = self.files();
        if let Some(mutation) = mutation {
            if let Some(patch) = &mutation.config {
                merge(&mut value, patch);
            }
            if !mutation.fill.is_empty() || !mutation.scale.is_empty() {
                files = files
                    .iter()
                    .map(|file| changed(file, mutation))
                    .collect::<Result<_>>()?;
            }
        }
        mlx_models::load_from(
            &self.name,
            value,
            files,
            LoadOptions {
                dtype: Some(DType::F32),
                ..LoadOptions::default()
            },
        )
    }

    /// A config file.
    pub fn config(&self, name: &str) -> Value {
        json(&self.dir.join(name))
    }

    /// The files of the weights.
    pub fn files(&self) -> Vec<Safetensors> {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(&self.dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| {
                path.file_name()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .starts_with("model")
            })
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "safetensors")
            })
            .collect();
        paths.sort();
        paths
            .iter()
            .map(|path| Safetensors::open(path).unwrap())
            .collect()
    }
}

/// The file with some tensors filled or multiplied, written and read again.
fn changed(file: &Safetensors, mutation: &Mutation) -> Result<Safetensors> {
    let of = |map: &BTreeMap<String, f32>, name: &str| {
        map.iter()
            .find(|(suffix, _)| name.ends_with(*suffix))
            .map(|(_, &number)| number)
    };
    let mut arrays = Vec::new();
    for name in file.names() {
        let mut array = file.array(name)?;
        if let Some(number) = of(&mutation.fill, name) {
            array = array.multiply(0.0)?.add(number)?;
        }
        if let Some(number) = of(&mutation.scale, name) {
            // Widened to f32 first, as in the reference.
            array = array.astype(DType::F32)?.multiply(number)?;
        }
        arrays.push((name.to_owned(), array));
    }
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model.safetensors");
    let arrays = arrays.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(&path, arrays, &BTreeMap::new())?;
    Safetensors::open(&path)
}

/// A merge patch of RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let map = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            map.shift_remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
