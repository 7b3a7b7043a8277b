//! Finding the files of a checkpoint.

use std::collections::BTreeSet;
use std::path::Path;

use mlx_core::safetensors::NonFinite;
use mlx_core::{Error, ErrorKind, Result, Safetensors, files};
use serde_json::Value;

use super::gguf::{self, GgufTensors};
use crate::config::TOKEN_MAP;
use crate::config::parse;

/// Reads a JSON file of a checkpoint folder.
///
/// # Errors
/// The path is no ordinary file, or the file is too large or not JSON.
pub(crate) fn read_json(dir: &Path, name: &str) -> Result<Value> {
    let path = dir.join(name);
    let text = files::read(&path, files::JSON_LIMIT)?;
    parse(&text)
        .map_err(|error| Error::new(ErrorKind::Format, format!("{}: {error}", path.display())))
}

/// Files of a head for multi-token prediction beside the model's own: the published names, and the name that
/// [`convert`](crate::convert::convert) writes.
pub(crate) const HEADS: [&str; 3] = [
    "model-mtp.safetensors",
    "mtp.safetensors",
    "mtp/weights.safetensors",
];

/// The settings of ModelOpt beside config.json.
const QUANTIZATION: &str = "hf_quant_config.json";

/// The safetensors files of a checkpoint.
pub struct Weights {
    /// The files of the model.
    pub model: Vec<Safetensors>,
    /// The files of a head for multi-token prediction that is not in the model's files. Families without such a head
    /// ignore them.
    pub head: Vec<Safetensors>,
    /// The content of `hf_quant_config.json`, in which ModelOpt describes packed weights. It counts
    /// if config.json has no `quantization_config`.
    pub quantization: Option<Value>,
    /// The tensors of a model in GGUF, in place of files in safetensors.
    pub(crate) gguf: Option<GgufTensors>,
}

impl Weights {
    /// All files.
    pub fn files(&self) -> impl Iterator<Item = &Safetensors> {
        self.model.iter().chain(&self.head)
    }
}

impl From<Vec<Safetensors>> for Weights {
    fn from(model: Vec<Safetensors>) -> Self {
        Self {
            model,
            head: Vec::new(),
            quantization: None,
            gguf: None,
        }
    }
}

/// Opens the safetensors files of a folder, by the first rule that applies: `model.safetensors`
/// alone, the files that the index `model.safetensors.index.json` names, or all
/// `model*.safetensors`. transformers has the first two rules, in this order. A head for
/// multi-token prediction may be in `mtp.safetensors`, `model-mtp.safetensors` or
/// `mtp/weights.safetensors` beside them.
///
/// # Errors
/// The folder has no such files, the index names absent files or files outside the folder, or a
/// file is malformed.
pub fn open(dir: &Path) -> Result<Weights> {
    let names = names(dir)?;
    if names.is_empty() {
        return Err(Error::new(
            ErrorKind::Io,
            format!(
                "{}: no model*.safetensors here; other formats are not supported",
                dir.display()
            ),
        ));
    }
    let heads = heads(dir).filter(|name| !names.contains(*name));
    let open = |name: &str| Safetensors::open(dir.join(name));
    let beside = dir.join(QUANTIZATION).is_file();
    let quantization = beside.then(|| read_json(dir, QUANTIZATION)).transpose()?;
    Ok(Weights {
        quantization,
        model: names.iter().map(|name| open(name)).collect::<Result<_>>()?,
        head: heads.map(open).collect::<Result<_>>()?,
        gguf: None,
    })
}

/// The parsed config.json and the opened weights of a checkpoint: a folder with config.json and safetensors, or a model
/// in GGUF ([`mlx_core::gguf::find`]), whose metadata become the config.json.
///
/// # Errors
/// The path is neither, or a file is malformed; of a model in GGUF also an architecture, a tensor or a type of tensors
/// that is not known.
pub fn open_checkpoint(path: &Path) -> Result<(Value, Weights)> {
    if let Some(parts) = gguf::find(path)? {
        let (config, tensors) = gguf::open(&parts)?;
        let weights = Weights {
            model: Vec::new(),
            head: Vec::new(),
            quantization: None,
            gguf: Some(tensors),
        };
        return Ok((config, weights));
    }
    Ok((read_config(path)?, open(path)?))
}

/// config.json, with the kinds of tokens if there is such a file.
fn read_config(dir: &Path) -> Result<Value> {
    let mut config = read_json(dir, "config.json")?;
    let name = format!("{TOKEN_MAP}.json");
    if dir.join(&name).is_file() {
        let has_text = config.get("text_config").is_some_and(Value::is_object);
        let text = match has_text {
            true => &mut config["text_config"],
            false => &mut config,
        };
        if let Some(keys) = text.as_object_mut()
            && !keys.contains_key(TOKEN_MAP)
        {
            keys.insert(TOKEN_MAP.to_owned(), read_json(dir, &name)?);
        }
    }
    Ok(config)
}

/// Opens the files of a folder that may hold a head for multi-token prediction: the files of the head alone if there
/// are some, else all files of the checkpoint.
///
/// # Errors
/// The folder has no such files, or one is malformed.
pub(crate) fn open_head(dir: &Path) -> Result<Vec<Safetensors>> {
    let mut names: BTreeSet<String> = heads(dir).map(str::to_owned).collect();
    if names.is_empty() {
        names = self::names(dir)?;
    }
    if names.is_empty() {
        let message = format!(
            "{}: no safetensors of a head for multi-token prediction here",
            dir.display()
        );
        return Err(Error::new(ErrorKind::Io, message));
    }
    let open = |name: &String| Safetensors::open(dir.join(name));
    names.iter().map(open).collect()
}

/// The names in [`HEADS`] that the folder contains.
fn heads(dir: &Path) -> impl Iterator<Item = &'static str> {
    HEADS.into_iter().filter(|name| dir.join(name).is_file())
}

/// The names of a model's files, by the first rule that applies.
fn names(dir: &Path) -> Result<BTreeSet<String>> {
    const WHOLE: &str = "model.safetensors";
    const INDEX: &str = "model.safetensors.index.json";
    if dir.join(WHOLE).is_file() {
        return Ok(BTreeSet::from([WHOLE.to_owned()]));
    }
    if dir.join(INDEX).exists() {
        return index(dir, &read_json(dir, INDEX)?);
    }
    let entries =
        std::fs::read_dir(dir).map_err(|error| Error::from(error).context(dir.display()))?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("model") && name.ends_with(".safetensors"))
        .filter(|name| !HEADS.contains(&name.as_str()))
        .collect())
}

/// The NaN and infinite elements of a checkpoint's files, in the order of the files.
///
/// # Errors
/// A file cannot be read.
pub fn non_finite(weights: &Weights) -> Result<Option<NonFinite>> {
    let mut all: Option<NonFinite> = None;
    for file in weights.files() {
        let Some(found) = file.non_finite()? else {
            continue;
        };
        match &mut all {
            None => all = Some(found),
            Some(all) => {
                all.tensors += found.tensors;
                all.elements += found.elements;
            }
        }
    }
    Ok(all)
}

fn index(dir: &Path, index: &Value) -> Result<BTreeSet<String>> {
    let fail = |message: String| {
        Error::new(
            ErrorKind::Format,
            format!("{}: model.safetensors.index.json: {message}", dir.display()),
        )
    };
    let map = index.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| fail("weight_map is missing or no object".to_owned()))?;
    map.iter()
        .map(|(tensor, file)| {
            let file = file
                .as_str()
                .ok_or_else(|| fail(format!("{tensor}: the file is no string")))?;
            let plain = Path::new(file).file_name().and_then(|name| name.to_str()) == Some(file);
            if !plain || !file.ends_with(".safetensors") {
                return Err(fail(format!(
                    "{tensor}: {file:?} is not the name of a safetensors file here"
                )));
            }
            if !dir.join(file).is_file() {
                return Err(fail(format!("{tensor}: {file} does not exist")));
            }
            Ok(file.to_owned())
        })
        .collect()
}
