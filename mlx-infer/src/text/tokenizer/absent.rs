//! Checkpoints without a supported tokenizer.

use super::{FILE, convert};
use crate::error::{Error, ErrorKind, Result};
use crate::text::files::Files;

/// Whether a tokenizer that failed to load is of a supported kind: tokenizer.json, or a file that is converted for its
/// class.
pub(crate) fn is_readable(files: &Files, error: &Error) -> Result<bool> {
    if files.read(FILE)?.is_some() {
        return Ok(true);
    }
    Ok(![ErrorKind::Missing, ErrorKind::Unsupported].contains(&error.kind()))
}

/// The error for such a checkpoint. It contains the command that converts the existing file.
pub(super) fn error(files: &Files) -> Result<Error> {
    let names = files.list()?;
    let is_other = |name: &&String| {
        ["vocab.json", "vocab.txt"].contains(&name.as_str()) || name.ends_with(".tiktoken")
    };
    let place = files.describe();
    let known = convert::NAMES.join(", ");
    Ok(match names.iter().find(is_other) {
        Some(other) if other.ends_with(".tiktoken") => Error::unsupported(format!(
            "{place} has {other} but no {FILE}; its special tokens are in Python code alone: convert it in that folder, with these tokens in the \
             list, by python3 -c \"from transformers.convert_slow_tokenizer import TikTokenConverter as C; C('{other}', \
             extra_special_tokens=[]).converted().save('{FILE}')\""
        )),
        Some(other) => Error::unsupported(format!(
            "{place} has {other} but none of {FILE}, {known}: convert it in that folder by python3 -c \"from transformers import \
             AutoTokenizer as T; T.from_pretrained('.').save_pretrained('.')\""
        )),
        None => Error::new(ErrorKind::Missing, format!("{place} has no {FILE}")),
    })
}
