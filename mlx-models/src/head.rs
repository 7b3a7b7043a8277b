//! Finds the output head of a model whose config ties it to the embedding.
//!
//! The tensors in the files decide, as in transformers: a head that differs from the embedding is used.

use mlx_core::{Array, DType, Result};
use mlx_nn::{Checkpoint, Rule, Rules};

/// The names of the head and the embedding, in every family.
const HEAD: &str = "lm_head";
const EMBEDDING: &str = "model.embed_tokens";

/// The arrays of a matrix, dense or quantised.
const ARRAYS: [&str; 3] = ["weight", "scales", "biases"];

/// The tensors in the files for a head that the config ties to the embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadTensors {
    /// A matrix of its own: the model is not tied, although its config says so.
    Own,
    /// No tensor, or a copy of the embedding.
    Embedding,
    /// The only copy of the matrix: the files have no embedding.
    Only,
}

impl HeadTensors {
    /// Examines the tensors of a checkpoint.
    pub(crate) fn find(checkpoint: &Checkpoint) -> Result<Self> {
        let array = |layer: &str, array: &str| checkpoint.array(&format!("{layer}.{array}"));
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

    /// The rules for the head's tensors.
    pub(crate) fn rules(self) -> Rules {
        let rule = |array: &str| {
            let head = format!("{HEAD}.{array}");
            match self {
                Self::Own => None,
                Self::Embedding => Some(Rule::drop(&head, "the head is the embedding")),
                Self::Only => Some(Rule::rename(&head, &format!("{EMBEDDING}.{array}"))),
            }
        };
        Rules::from(ARRAYS.into_iter().filter_map(rule))
    }
}

/// Whether two tensors hold the same numbers, also in different dtypes.
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
