//! Finding the files of a checkpoint.

use std::collections::BTreeSet;
use std::path::Path;

use mlx_core::safetensors::NonFinite;
use mlx_core::{Error, ErrorKind, Result, Safetensors, files};
use serde_json::Value;

use crate::config::parse;

/// Reads a JSON file of a checkpoint folder.
///
/// # Errors
/// It is no ordinary file, too large, or not JSON.
pub(crate) fn read_json(dir: &Path, name: &str) -> Result<Value> {
    let path = dir.join(name);
    let text = files::read(&path, files::JSON_LIMIT)?;
    parse(&text)
        .map_err(|error| Error::new(ErrorKind::Format, format!("{}: {error}", path.display())))
}

/// Opens the safetensors files of a folder, by the first rule that applies: `model.safetensors` alone, the
/// files that its index names, or all `model*.safetensors`. transformers has the first two, in this order.
///
/// # Errors
/// There are none, the index names files outside the folder or absent ones, or one is malformed.
pub fn open(dir: &Path) -> Result<Vec<Safetensors>> {
    const WHOLE: &str = "model.safetensors";
    const INDEX: &str = "model.safetensors.index.json";
    let names: BTreeSet<String> = if dir.join(WHOLE).is_file() {
        BTreeSet::from([WHOLE.to_owned()])
    } else if dir.join(INDEX).exists() {
        index(dir, &read_json(dir, INDEX)?)?
    } else {
        let entries =
            std::fs::read_dir(dir).map_err(|error| Error::from(error).context(dir.display()))?;
        entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("model") && name.ends_with(".safetensors"))
            .collect()
    };
    if names.is_empty() {
        return Err(Error::new(
            ErrorKind::Io,
            format!(
                "{}: no model*.safetensors here; other formats are not supported",
                dir.display()
            ),
        ));
    }
    names
        .iter()
        .map(|name| Safetensors::open(dir.join(name)))
        .collect()
}

/// The NaN and infinite elements of a checkpoint's files, in the order of the files.
///
/// # Errors
/// A file cannot be read.
pub fn non_finite(files: &[Safetensors]) -> Result<Option<NonFinite>> {
    let mut all: Option<NonFinite> = None;
    for file in files {
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
