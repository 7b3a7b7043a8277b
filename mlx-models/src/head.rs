//! Which tensors are the output head of a model whose config ties it to the embedding.
//!
//! The file is the authority, as in transformers: a head that differs from the embedding is used.

use mlx_core::{Array, DType, Result, Safetensors};
use mlx_nn::Rename;

/// Our names, which every family gives its tensors.
const HEAD: &str = "lm_head";
const EMBEDDING: &str = "model.embed_tokens";

/// The arrays of a matrix, dense or quantised.
const ARRAYS: [&str; 3] = ["weight", "scales", "biases"];

/// What is in the files in the place of a tied head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadTensors {
    /// A matrix of its own: the model is not tied, whatever its config says.
    Own,
    /// Nothing, or the embedding again.
    Embedding,
    /// The matrix that is missing in the embedding's place.
    Only,
}

impl HeadTensors {
    /// Looks at the tensors of `files`, which `rename` gives our names.
    pub(crate) fn find(files: &[Safetensors], rename: &impl Fn(&str) -> Rename) -> Result<Self> {
        let array = |layer: &str, array: &str| -> Result<Option<Array>> {
            let wanted = Rename::To(format!("{layer}.{array}"));
            for file in files {
                if let Some(name) = file.names().find(|name| rename(name) == wanted) {
                    return file.array(name).map(Some);
                }
            }
            Ok(None)
        };
        if array(HEAD, ARRAYS[0])?.is_none() {
            return Ok(Self::Embedding);
        }
        if array(EMBEDDING, ARRAYS[0])?.is_none() {
            return Ok(Self::Only);
        }
        for name in ARRAYS {
            let same = match (array(HEAD, name)?, array(EMBEDDING, name)?) {
                (None, None) => true,
                (Some(head), Some(embedding)) => equal(head, embedding)?,
                _ => false,
            };
            if !same {
                return Ok(Self::Own);
            }
        }
        Ok(Self::Embedding)
    }

    /// The parameter that a tensor (or module) of this name fills, if any.
    pub(crate) fn rename(self, name: String) -> Option<String> {
        let part = match name.strip_prefix(HEAD) {
            Some("") => Some(""),
            Some(rest) => rest.strip_prefix('.').filter(|part| ARRAYS.contains(part)),
            None => None,
        };
        match (self, part) {
            (Self::Own, _) | (_, None) => Some(name),
            (Self::Embedding, Some(_)) => None,
            (Self::Only, Some("")) => Some(EMBEDDING.to_owned()),
            (Self::Only, Some(part)) => Some(format!("{EMBEDDING}.{part}")),
        }
    }
}

/// Whether two tensors hold the same numbers, of whatever dtype.
fn equal(a: Array, b: Array) -> Result<bool> {
    if a.shape() != b.shape() {
        return Ok(false);
    }
    let [a, b] = if a.dtype() == b.dtype() {
        [a, b]
    } else {
        [a.astype(DType::F32)?, b.astype(DType::F32)?]
    };
    a.array_equal(&b, false)?.item()
}
