//! Models and adapters in the formats of other programs: GGUF for llama.cpp, PEFT's files.

use std::fs;
use std::path::Path;

use mlx_models::adapter::{self, AdapterFormat};
use mlx_models::convert as models;

use super::{Converted, GgufType, open, told};
use crate::error::{Error, ErrorKind, Result};
use crate::host::output::{Claim, io};
use crate::request::cancel::CancelToken;
use crate::text::chat::own_templates;
use crate::text::files::Files;
use crate::text::tokenizer::{Tokenizer, gguf};

/// Writes the checkpoint in `files` as the file `out` in GGUF, with its tokenizer and templates; `progress` gets the
/// bytes that are written so far and their total.
///
/// The file is read again before it appears: its model and its tokenizer are those of the checkpoint.
///
/// ```no_run
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_infer::Files;
/// use mlx_infer::convert::{GgufType, convert_to_gguf};
///
/// let files = Files::directory("Qwen3-0.6B")?;
/// let out = std::path::Path::new("qwen3-0.6b-q8_0.gguf");
/// convert_to_gguf(&files, out, false, GgufType::Q8_0, &Default::default(), &mut |_, _| ())?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `out` does not end in `.gguf`, exists and is not to be replaced, or another process writes it; the tokenizer has no
/// counterpart in GGUF; those of [`mlx_models::convert::convert_to_gguf`]; or `cancel` stopped it. `out` is then
/// unchanged.
pub fn convert_to_gguf(
    files: &Files,
    out: &Path,
    replace: bool,
    kind: GgufType,
    cancel: &CancelToken,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted> {
    let shown = out.display();
    let name = out
        .file_name()
        .filter(|_| out.extension().is_some_and(|end| end == "gguf"));
    let Some(name) = name else {
        let message = format!("{shown} is not a name for a file in GGUF, which ends in .gguf");
        return Err(Error::argument(message));
    };
    let claim = Claim::new(out)?;
    match fs::symlink_metadata(out) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(io("look at", out, error)),
        Ok(found) if !found.is_file() => {
            return Err(Error::argument(format!("{shown} exists and is not a file")));
        }
        Ok(_) if !replace => {
            return Err(Error::argument(format!(
                "{shown} exists, and it was not asked to be replaced; choose another name"
            )));
        }
        Ok(_) => {
            let same = |path: &Path| path.canonicalize().ok() == out.canonicalize().ok();
            if files.path().is_some_and(same) {
                let message = format!("{shown} is the model itself; choose another name");
                return Err(Error::argument(message));
            }
        }
    }
    let tokenizer = Tokenizer::load(files)?;
    let (templates, _) = own_templates(files)?;
    let path = claim.scratch()?.join(name);
    let (config, weights) = open(files)?;
    let mut of_text = None;
    let converted = models::convert_to_gguf(
        &files.describe(),
        config,
        weights,
        &path,
        kind,
        |rows| {
            gguf::write::metadata(&tokenizer, &templates, rows).map_err(|error| {
                let message = error.to_string();
                of_text = Some(error);
                mlx_core::Error::new(mlx_core::ErrorKind::Unsupported, message)
            })
        },
        &mut |done, total| told(cancel, progress, done, total),
    );
    let converted = converted.map_err(|error| match (of_text, cancel.is_cancelled()) {
        (Some(error), _) => of(files, &error),
        (None, true) => Error::new(ErrorKind::Cancelled, "cancelled; nothing was written"),
        (None, false) => error.into(),
    })?;
    let of_file = Tokenizer::load(&Files::directory(&path)?)?;
    gguf::write::check(&tokenizer, &of_file).map_err(|error| of(files, &error))?;
    claim.publish(&path)?;
    Ok(converted)
}

/// An error with the name of its checkpoint.
fn of(files: &Files, error: &Error) -> Error {
    Error::new(error.kind(), format!("{}: {error}", files.describe()))
}

/// Writes an adapter of the checkpoint in `files` in the other format: one of mlx-lm and this project as PEFT's, and
/// PEFT's as theirs. Returns the format of the new folder `out`. `base` is the model's name for PEFT.
///
/// # Errors
/// `out` is not empty, and not to be replaced or no adapter; another process writes it; those of
/// [`mlx_models::adapter::convert`]. `out` is then unchanged.
pub fn convert_adapter(
    files: &Files,
    adapter: &Path,
    base: Option<&str>,
    out: &Path,
    replace: bool,
) -> Result<AdapterFormat> {
    let shown = out.display();
    let claim = Claim::new(out)?;
    let entries = match fs::read_dir(out) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        entries => Some(entries.map_err(|error| io("read", out, error))?),
    };
    if entries.is_some_and(|mut entries| entries.next().is_some()) {
        if !replace {
            return Err(Error::argument(format!(
                "{shown} is not empty, and it was not asked to be replaced; choose another folder"
            )));
        }
        if !out.join(adapter::CONFIG).is_file() {
            return Err(Error::argument(format!(
                "{shown} has no {}: only an adapter is replaced",
                adapter::CONFIG
            )));
        }
        if out.canonicalize().ok() == adapter.canonicalize().ok() {
            let message = format!("{shown} is the adapter itself; choose another folder");
            return Err(Error::argument(message));
        }
    }
    let (config, weights) = open(files)?;
    let options = mlx_models::LoadOptions::default();
    let mut loaded = mlx_models::load_from(&files.describe(), config, weights, options)?;
    let work = claim.scratch()?;
    let format = adapter::convert(adapter, loaded.model.as_mut(), base, &work)?;
    claim.publish(&work)?;
    Ok(format)
}
