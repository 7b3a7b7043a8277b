//! Converting checkpoint folders, and writing new ones so that they appear whole or not at all.

use std::fs;
use std::path::{Path, PathBuf};

use mlx_core::Safetensors;
use mlx_models::convert as models;
use serde_json::Value;

use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::text::files::Files;

pub use mlx_models::convert::{ConvertOptions, Converted, Mixed, Packing, Recipe, SHARD_BYTES};

/// Quantises, unpacks or casts the checkpoint in `files` into the new folder `out`, with its
/// tokenizer, templates and generation settings; `progress` is told the bytes so far and their total.
///
/// ```
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_core::{QuantMode, Scheme};
/// use mlx_infer::convert::{ConvertOptions, Packing, Recipe, convert};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let out = folder.path().join("small");
/// let recipe = Recipe::uniform(Scheme::new(QuantMode::Affine, 8, 64)?);
/// let options = ConvertOptions { packing: Packing::Quantize(recipe), ..Default::default() };
/// let files = mlx_infer::default_model_files();
/// convert(&files, &out, false, &options, &Default::default(), &mut |_, _| ())?;
/// let model = mlx_infer::LoadedModel::load(&out, Default::default())?;
/// assert!(model.info().quantization.is_some());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`new_checkpoint`] and of [`mlx_models::convert::convert`]; `cancel` stops it. `out` is
/// then as it was.
pub fn convert(
    files: &Files,
    out: &Path,
    replace: bool,
    options: &ConvertOptions,
    cancel: &CancelToken,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted> {
    new_checkpoint(files, out, replace, |dir| {
        let mut told = |done, total| {
            progress(done, total);
            if cancel.is_cancelled() {
                return Err(mlx_core::Error::new(
                    mlx_core::ErrorKind::Invalid,
                    "cancelled",
                ));
            }
            Ok(())
        };
        let (config, weights) = open(files)?;
        let converted =
            models::convert(&files.describe(), config, weights, dir, options, &mut told);
        converted.map_err(|error| match cancel.is_cancelled() {
            true => Error::new(ErrorKind::Cancelled, "cancelled; nothing was written"),
            false => error.into(),
        })
    })
}

/// The parsed config.json and the opened weights of a checkpoint.
///
/// # Errors
/// One of them is missing or malformed.
fn open(files: &Files) -> Result<(Value, Vec<Safetensors>)> {
    let missing = |name: &str| {
        let message = format!("{} has no {name}", files.describe());
        Error::new(ErrorKind::Missing, message)
    };
    let config = files.json("config.json")?;
    let config = config.ok_or_else(|| missing("config.json"))?;
    let weights = match files {
        Files::Directory(dir) => mlx_models::open_weights(dir)?,
        Files::Embedded { files, .. } => {
            let found = files.iter().find(|(name, _)| *name == "model.safetensors");
            let (_, bytes) = found.ok_or_else(|| missing("model.safetensors"))?;
            vec![Safetensors::from_static(bytes)?]
        }
    };
    Ok((config, weights))
}

/// Makes the folder `out`: `fill` writes `config.json` and weights into it, and the other files that
/// belong to a checkpoint come from `files` as they are. Everything happens in a folder beside `out`,
/// which then gets its name.
///
/// An `out` that is not empty is refused, or with `replace` replaced if it is a checkpoint.
///
/// # Errors
/// `out` cannot be replaced or is or holds the folder it is made from, `fill` fails, or a file cannot
/// be read or written. `out` is then as it was.
pub fn new_checkpoint<T>(
    files: &Files,
    out: &Path,
    replace: bool,
    fill: impl FnOnce(&Path) -> Result<T>,
) -> Result<T> {
    let parent = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let replaced = check(files, out, replace)?;
    fs::create_dir_all(parent).map_err(|error| io("make", parent, error))?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".converting-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The permissions of any new folder, which the process's mask then narrows.
        builder.permissions(fs::Permissions::from_mode(0o777));
    }
    let work = builder.tempdir_in(parent);
    let work = work.map_err(|error| io("make a folder in", parent, error))?;
    copy(files, work.path())?;
    let result = fill(work.path())?;
    if replaced {
        // Set aside, so that there is never a mixture of old and new files.
        let old = builder.tempdir_in(parent);
        let old = old.map_err(|error| io("make a folder in", parent, error))?;
        let aside = old.path().join("replaced");
        fs::rename(out, &aside).map_err(|error| io("replace", out, error))?;
        if let Err(error) = fs::rename(work.path(), out) {
            // Back to what there was; if that fails too, `aside` must survive.
            if fs::rename(&aside, out).is_err() {
                let kept = old.keep();
                return Err(io(
                    &format!("what was there is in {}; make", kept.display()),
                    out,
                    error,
                ));
            }
            return Err(io("make", out, error));
        }
    } else {
        fs::rename(work.path(), out).map_err(|error| io("make", out, error))?;
    }
    // It has another name now.
    let _ = work.keep();
    sync_folder(parent).map_err(|error| io("write", parent, error))?;
    Ok(result)
}

/// Whether there is a checkpoint at `out` to be replaced.
fn check(files: &Files, out: &Path, replace: bool) -> Result<bool> {
    let shown = out.display();
    let refuse = |message: String| Err(Error::new(ErrorKind::Argument, message));
    if out.file_name().is_none() {
        return refuse(format!("{shown} is not a name for a new folder"));
    }
    if let Files::Directory(source) = files
        && let (Ok(source), Ok(target)) = (source.canonicalize(), resolved(out))
        && source.starts_with(&target)
    {
        return refuse(format!(
            "{shown} is or holds the model's folder {}; choose another place",
            source.display()
        ));
    }
    let found = match fs::symlink_metadata(out) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io("look at", out, error)),
        Ok(found) => found,
    };
    if !found.is_dir() {
        return refuse(format!("{shown} exists and is not a folder"));
    }
    let mut entries = fs::read_dir(out).map_err(|error| io("read", out, error))?;
    if entries.next().is_none() {
        // Renaming takes the place of an empty folder.
        return Ok(cfg!(not(unix)));
    }
    if !replace {
        return refuse(format!(
            "{shown} is not empty, and it was not asked to be replaced; choose another folder"
        ));
    }
    if !out.join("config.json").is_file() {
        return refuse(format!(
            "{shown} has no config.json: only a checkpoint is replaced"
        ));
    }
    Ok(true)
}

/// The absolute path of something whose last part may not exist yet.
fn resolved(path: &Path) -> std::io::Result<PathBuf> {
    let mut missing = Vec::new();
    let mut at = std::path::absolute(path)?;
    loop {
        match at.canonicalize() {
            Ok(found) => return Ok(missing.iter().rev().fold(found, |at, part| at.join(part))),
            Err(error) => match (at.parent(), at.file_name()) {
                (Some(parent), Some(name)) => {
                    missing.push(name.to_owned());
                    at = parent.to_owned();
                }
                _ => return Err(error),
            },
        }
    }
}

/// Whether a file belongs to a checkpoint beside its weights and config.json: tokenizers, templates,
/// generation settings, code, licence.
fn is_copied(name: &str) -> bool {
    const ENDS: [&str; 7] = [
        ".json",
        ".jinja",
        ".model",
        ".txt",
        ".tiktoken",
        ".py",
        ".md",
    ];
    const STARTS: [&str; 2] = ["LICENSE", "NOTICE"];
    let inside = match name.rsplit_once('/') {
        None => !name.starts_with('.'),
        Some((folder, _)) => folder == "additional_chat_templates",
    };
    inside
        && (ENDS.iter().any(|end| name.ends_with(end))
            || STARTS.iter().any(|start| name.starts_with(start)))
        && name != "config.json"
        && !name.ends_with(".index.json")
}

fn copy(files: &Files, dir: &Path) -> Result<()> {
    for name in files.list()? {
        if !is_copied(&name) {
            continue;
        }
        let Some(bytes) = files.read(&name)? else {
            continue;
        };
        let path = dir.join(&name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| io("make", parent, error))?;
        }
        fs::write(&path, bytes).map_err(|error| io("write", &path, error))?;
    }
    Ok(())
}

/// A new name is on disk only when its folder is.
fn sync_folder(folder: &Path) -> std::io::Result<()> {
    if cfg!(unix) {
        fs::File::open(folder)?.sync_all()
    } else {
        Ok(())
    }
}

fn io(what: &str, path: &Path, error: std::io::Error) -> Error {
    let message = format!("cannot {what} {}: {error}", path.display());
    Error::new(ErrorKind::Io, message).with_source(error)
}
