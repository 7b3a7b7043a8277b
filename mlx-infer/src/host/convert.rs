//! Conversion of checkpoints, and new checkpoint folders that appear whole or not at all.

use std::fs;
use std::path::Path;

use mlx_core::Safetensors;
pub use mlx_core::safetensors::{NonFinite, Vanishing};
use mlx_models::{Weights, convert as models};
use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::host::output::{Claim, io, resolved};
use crate::request::cancel::CancelToken;
use crate::text::files::Files;
use crate::text::sentence::file_of_module;

mod exchange;

pub use exchange::{convert_adapter, convert_to_gguf};
pub use mlx_models::adapter::AdapterFormat;
pub use mlx_models::convert::{
    ConvertOptions, Converted, GgufType, Mixed, Packing, Recipe, SHARD_BYTES,
};

/// Quantises, unpacks or casts the checkpoint in `files` into the new folder `out`, with its tokenizer, templates and
/// generation settings; `progress` gets the bytes that are written so far and their total.
///
/// ```
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_core::{QuantMode, Scheme};
/// use mlx_infer::convert::{ConvertOptions, Packing, Recipe, convert};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let out = folder.path().join("small");
/// let recipe = Recipe::uniform(Scheme::new(64, 8, QuantMode::Affine)?);
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
/// Those of [`NewCheckpoint`] and of [`mlx_models::convert::convert`], or `cancel` stopped it. `out` is then unchanged.
pub fn convert(
    files: &Files,
    out: &Path,
    replace: bool,
    options: &ConvertOptions,
    cancel: &CancelToken,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted> {
    NewCheckpoint::begin(files, out, replace)?.write(|dir| {
        let mut told = |done, total| told(cancel, progress, done, total);
        let (config, weights) = open(files)?;
        let converted =
            models::convert(&files.describe(), config, weights, dir, options, &mut told);
        converted.map_err(|error| match cancel.is_cancelled() {
            true => Error::new(ErrorKind::Cancelled, "cancelled; nothing was written"),
            false => error.into(),
        })
    })
}

/// Tells the caller how far a conversion is; an error if it is to stop.
fn told(
    cancel: &CancelToken,
    progress: &mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
) -> mlx_core::Result<()> {
    progress(done, total);
    match cancel.is_cancelled() {
        true => Err(mlx_core::Error::new(
            mlx_core::ErrorKind::Invalid,
            "cancelled",
        )),
        false => Ok(()),
    }
}

/// The NaN and infinite elements of a checkpoint's weights; `None` if all are finite. Reads all of the weights.
///
/// # Errors
/// The weights are missing or malformed, or cannot be read.
pub fn non_finite(files: &Files) -> Result<Option<NonFinite>> {
    let (_, weights) = open(files)?;
    Ok(models::non_finite(&weights)?)
}

/// The parsed config.json and the opened weights of a checkpoint.
///
/// # Errors
/// One of them is missing or malformed.
fn open(files: &Files) -> Result<(Value, Weights)> {
    let missing = |name: &str| {
        let message = format!("{} has no {name}", files.describe());
        Error::new(ErrorKind::Missing, message)
    };
    if let Files::Gguf { path, .. } = files {
        return Ok(mlx_models::open_checkpoint(path)?);
    }
    let config = files.json("config.json")?;
    let config = config.ok_or_else(|| missing("config.json"))?;
    let weights = match files.path() {
        Some(dir) => mlx_models::open_weights(dir)?,
        None => {
            let found = files.read("model.safetensors")?;
            let bytes = found.ok_or_else(|| missing("model.safetensors"))?;
            vec![Safetensors::from_cow(bytes)?].into()
        }
    };
    Ok((config, weights))
}

/// A checkpoint folder that is being made. It is claimed at the start, and appears complete or not
/// at all.
/// The caller writes `config.json` and the weights; the other files of the checkpoint are copied
/// unchanged from its source. Everything is written into a hidden folder, which then replaces `out`
/// in one step.
#[derive(Debug)]
pub struct NewCheckpoint<'a> {
    files: &'a Files,
    out: &'a Path,
    claim: Claim,
    replaces: bool,
}

impl<'a> NewCheckpoint<'a> {
    /// Claims `out` for a checkpoint that is made from `files`.
    ///
    /// An `out` that is not empty is refused. With `replace` it is replaced if it is a checkpoint: its weights, their
    /// index and the files that are written again are removed; all other files stay.
    ///
    /// # Errors
    /// `out` cannot be replaced, is the source folder or contains it, or another process writes it.
    pub fn begin(files: &'a Files, out: &'a Path, replace: bool) -> Result<Self> {
        if out.file_name().is_none() {
            let message = format!("{} is not a name for a new folder", out.display());
            return Err(Error::argument(message));
        }
        // The claim restores a folder that a killed process had set aside, so `out` is only checked after it.
        let claim = Claim::new(out)?;
        let replaces = check(files, out, replace)?;
        Ok(Self {
            files,
            out,
            claim,
            replaces,
        })
    }

    /// Makes the folder: `fill` gets its path and writes `config.json` and the weights into it.
    ///
    /// # Errors
    /// `fill` fails, or a file cannot be read or written. `out` is then unchanged.
    pub fn write<T>(self, fill: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let work = self.claim.scratch()?;
        copy(self.files, &work)?;
        let result = fill(&work)?;
        if self.replaces {
            keep(self.out, &work, "")?;
        }
        self.claim.publish(&work)?;
        Ok(result)
    }
}

/// Whether there is a checkpoint at `out` to be replaced.
fn check(files: &Files, out: &Path, replace: bool) -> Result<bool> {
    let shown = out.display();
    let refuse = |message: String| Err(Error::argument(message));
    if let Some(source) = files.path()
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
        return Ok(false);
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

/// Moves the files of the folder `old` that stay into the folder `new`: all that `new` does not
/// have, except for the weights of the old checkpoint. Files are linked, so that both folders are
/// complete until `old` is removed; on a file system without links they are copied. `within` is the
/// path of both in the checkpoint.
fn keep(old: &Path, new: &Path, within: &str) -> Result<()> {
    for entry in fs::read_dir(old).map_err(|error| io("read", old, error))? {
        let entry = entry.map_err(|error| io("read", old, error))?;
        let name = entry.file_name();
        let path = name.to_str().map(|name| format!("{within}{name}"));
        if path.as_deref().is_some_and(is_weights) {
            continue;
        }
        let inside = path.map_or_else(|| "?/".to_owned(), |path| path + "/");
        let (from, to) = (entry.path(), new.join(&name));
        let fail = |error| io("keep", &from, error);
        let is_dir = entry.file_type().map_err(fail)?.is_dir();
        match fs::symlink_metadata(&to) {
            Ok(found) if found.is_dir() != is_dir => {
                let what = if is_dir { "a folder" } else { "not a folder" };
                let message = format!("{} is {what} and cannot be replaced", from.display());
                return Err(Error::argument(message));
            }
            Ok(found) if !found.is_dir() => continue,
            Ok(_) => keep(&from, &to, &inside)?,
            Err(_) if is_dir => {
                fs::create_dir(&to).map_err(fail)?;
                keep(&from, &to, &inside)?;
                let permissions = entry.metadata().map_err(fail)?.permissions();
                fs::set_permissions(&to, permissions).map_err(fail)?;
            }
            Err(_) => {
                if fs::hard_link(&from, &to).is_err() {
                    fs::copy(&from, &to).map_err(fail)?;
                }
            }
        }
    }
    Ok(())
}

/// Whether a checkpoint writer, of this project or another, gives files this name: the weights, whole or in shards,
/// their index, those of a head for multi-token prediction, and descriptions of packed weights.
fn is_weights(name: &str) -> bool {
    let shard = |name: &str| {
        let (number, count) = name.split_once("-of-")?;
        let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        Some(digits(number) && digits(count))
    };
    match name.strip_prefix("model") {
        Some(".safetensors" | ".safetensors.index.json" | "-mtp.safetensors") => true,
        Some(rest) => rest
            .strip_prefix('-')
            .and_then(|rest| shard(rest.strip_suffix(".safetensors")?))
            .unwrap_or(false),
        None => {
            matches!(name, "mtp.safetensors" | "mtp/weights.safetensors")
                || OF_WEIGHTS.contains(&name)
        }
    }
}

/// Files in which ModelOpt, AutoGPTQ and AutoAWQ describe how the weights beside them are packed.
const OF_WEIGHTS: [&str; 3] = [
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
];

/// Whether a file besides weights and config.json belongs to a checkpoint: tokenizers, templates, generation settings,
/// modules of sentence-transformers, code, licence.
fn is_copied(name: &str) -> bool {
    if let Some(file) = file_of_module(name) {
        return ["config.json", "model.safetensors"].contains(&file);
    }
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
        && !OF_WEIGHTS.contains(&name)
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
