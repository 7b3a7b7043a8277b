//! Finding the files of a model in GGUF.

use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// The most files of a model.
const MOST_PARTS: usize = 1000;

/// The files of the model in GGUF that `path` names: a file whose name ends in `.gguf`, or a folder that has such a
/// file and no safetensors. A part of a split model (`…-00001-of-00003.gguf`) stands for all its parts, which are
/// returned in order. Files of image towers (`mmproj…`) in a folder are left out.
///
/// `None` if `path` is something else.
///
/// ```
/// use mlx_core::{DType, gguf, ones, save_gguf};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// assert_eq!(gguf::find(folder.path())?, None);
/// let path = folder.path().join("small.gguf");
/// save_gguf(&path, &[("token_embd.weight", ones(&[4, 8], DType::F16)?)])?;
/// assert_eq!(gguf::find(folder.path())?, Some(vec![path]));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The folder has several models, a part of a split model is absent, or the folder cannot be read.
pub fn find(path: impl AsRef<Path>) -> Result<Option<Vec<PathBuf>>> {
    let path = path.as_ref();
    if !path.is_dir() {
        return match path.is_file() && is_gguf(path) {
            true => parts(path).map(Some),
            false => Ok(None),
        };
    }
    let at = |error: std::io::Error| Error::from(error).context(path.display());
    let mut models: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(path).map_err(at)? {
        let file = entry.map_err(at)?.path();
        if file.extension().is_some_and(|end| end == "safetensors") {
            return Ok(None);
        }
        let is_tower = file
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"mmproj"));
        if is_gguf(&file) && !is_tower && file.is_file() {
            models.push(file);
        }
    }
    models.sort();
    let mut found: Option<Vec<PathBuf>> = None;
    for model in &models {
        match &found {
            None => found = Some(parts(model)?),
            Some(parts) if parts.contains(model) => {}
            Some(_) => {
                let names = models.iter().filter_map(|model| model.file_name());
                let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
                let message = format!(
                    "{} has several models in GGUF ({}); name one of the files",
                    path.display(),
                    names.join(", ")
                );
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        }
    }
    Ok(found)
}

fn is_gguf(path: &Path) -> bool {
    path.extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("gguf"))
}

/// The parts of a split model in order, or the file alone.
fn parts(path: &Path) -> Result<Vec<PathBuf>> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some((stem, count)) = name.and_then(split) else {
        return Ok(vec![path.to_owned()]);
    };
    let part = |number| path.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"));
    let parts: Vec<PathBuf> = (1..=count).map(part).collect();
    match parts.iter().find(|part| !part.is_file()) {
        None => Ok(parts),
        Some(absent) => Err(Error::new(
            ErrorKind::Io,
            format!(
                "{} is one of {count} parts, and {} does not exist",
                path.display(),
                absent.display()
            ),
        )),
    }
}

/// The stem and the number of parts in the name of a part, `stem-00001-of-00003.gguf`.
fn split(name: &str) -> Option<(&str, usize)> {
    let number = |digits: &str| match digits.len() {
        5 => digits.parse::<usize>().ok(),
        _ => None,
    };
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, at) = rest.rsplit_once('-')?;
    let (at, count) = (number(at)?, number(count)?);
    (1..=count.min(MOST_PARTS))
        .contains(&at)
        .then_some((stem, count))
        .filter(|(_, count)| *count <= MOST_PARTS)
}
