//! Models in GGUF, llama.cpp's format: one file, or the parts of one, with the metadata, the tokenizer and the weights.
//!
//! The metadata become the config.json of a family, and the tensors those of a checkpoint in MLX's dialect. Blocks stay
//! packed where a scheme of MLX has the same values; all others are expanded if that is asked for. [`describe`] and
//! [`written`] are the way back.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use mlx_core::gguf::Gguf;
use mlx_core::{DType, Error, ErrorKind, Result};
use mlx_nn::Decoded;
use serde_json::{Value, json};

mod architectures;
mod config;
mod metadata;
mod tensors;
mod written;

use super::stored::Reading;
use config::Metadata;
use tensors::Tensor;

pub(crate) use metadata::{Described, GgufSizes, describe};

/// The tensors of a model in GGUF.
pub(crate) struct GgufTensors {
    tensors: Vec<Tensor>,
    dtype: DType,
    described: String,
}

/// The `general.architecture`s that are read.
pub fn gguf_architectures() -> Vec<&'static str> {
    architectures::ALL.iter().map(|row| row.name).collect()
}

/// The `model_type`s that [`convert_to_gguf`](crate::convert::convert_to_gguf) writes.
pub fn gguf_written_types() -> Vec<&'static str> {
    metadata::WRITTEN.iter().map(|(name, _)| *name).collect()
}

/// The config.json and the tensors of a model whose files are `parts`.
///
/// # Errors
/// A file is malformed, the architecture or a tensor is not known, or a key is missing.
pub(crate) fn open(parts: &[PathBuf]) -> Result<(Value, GgufTensors)> {
    let open = |path: &PathBuf| Gguf::open(path).map(Rc::new);
    let files = parts.iter().map(open).collect::<Result<Vec<_>>>()?;
    let borrowed: Vec<&Gguf> = files.iter().map(Rc::as_ref).collect();
    let metadata = Metadata::of(&borrowed)?;
    let mut config = metadata.config()?;
    let tensors = tensors::named(&files, metadata.architecture(), &config)?;
    if let Some(entry) = tensors::quantization(&tensors) {
        config.insert("quantization".to_owned(), entry);
    }
    let dtype = tensors::dtype(&tensors);
    let name = match dtype {
        DType::BF16 => "bfloat16",
        _ => "float32",
    };
    config.insert("torch_dtype".to_owned(), json!(name));
    let described = tensors::described(&tensors);
    Ok((
        Value::Object(config),
        GgufTensors {
            tensors,
            dtype,
            described,
        },
    ))
}

impl GgufTensors {
    /// The dtype of the model, unless another is asked for.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The types of the matrices, for users.
    pub(crate) fn described(&self) -> &str {
        &self.described
    }

    /// The tensors as parameters.
    ///
    /// # Errors
    /// Blocks of a type have no packed form, and `reading` does not allow to expand them.
    pub(crate) fn decoded(self, label: &str, reading: Reading) -> Result<Decoded> {
        let dtype = reading.dtype.unwrap_or(self.dtype);
        tensors::decoded(self.tensors, label, dtype, reading.expand)
    }
}

/// The files in GGUF that a path names, as [`mlx_core::gguf::find`] does; an error for a file in another format.
pub(crate) fn find(path: &Path) -> Result<Option<Vec<PathBuf>>> {
    let found = mlx_core::gguf::find(path)?;
    if found.is_none() && path.is_file() {
        let message = format!(
            "{} is a file, and its name does not end in .gguf; expected a checkpoint's folder, or a file in GGUF",
            path.display()
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(found)
}
