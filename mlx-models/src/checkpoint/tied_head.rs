//! Finds the output head of a model whose config ties it to the embedding, or whose files may have none.
//!
//! The tensors in the files decide, as in transformers: a head that differs from the embedding is used.

use mlx_core::{Array, DType, Result};
use mlx_nn::{Checkpoint, Rule, Rules};

/// The names of the head and the embedding, in every family.
const HEAD: &str = "lm_head";
const EMBEDDING: &str = "model.embed_tokens";

/// The arrays of a matrix, dense or quantised.
const ARRAYS: [&str; 5] = ["weight", "scales", "biases", "factor", "residues"];

/// The tensors in the files for a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadTensors {
    /// A matrix that differs from the embedding. The model is not tied, although its config ties
    /// it.
    Own,
    /// No tensor, or a copy of the embedding.
    Embedding,
    /// The only copy of the matrix: the files have no embedding.
    Only,
    /// A bias beside the embedding's matrix. The head becomes a layer of its own, which shares the matrix.
    Bias,
    /// No tensor, although the config does not tie the head: the files are those of a model for embeddings.
    Absent,
}

impl HeadTensors {
    /// Whether the model uses the embedding as its head.
    pub(crate) fn is_tied(self) -> bool {
        matches!(self, Self::Embedding | Self::Only)
    }

    /// Examines the tensors of a checkpoint whose config does not tie the head. Only `bare` files may lack it: in others
    /// it is a missing tensor.
    pub(crate) fn find_untied(checkpoint: &Checkpoint, bare: bool) -> Self {
        match bare && !checkpoint.names().any(|name| name.starts_with(HEAD)) {
            true => Self::Absent,
            false => Self::Own,
        }
    }

    /// Examines the tensors of a checkpoint whose config ties the head.
    pub(crate) fn find(checkpoint: &Checkpoint) -> Result<Self> {
        let array = |layer: &str, array: &str| checkpoint.array(&format!("{layer}.{array}"));
        let has_bias = checkpoint.contains(&format!("{HEAD}.bias"));
        if array(HEAD, ARRAYS[0])?.is_none() {
            return Ok(if has_bias {
                Self::Bias
            } else {
                Self::Embedding
            });
        }
        if has_bias {
            return Ok(Self::Own);
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
                Self::Bias => Some(Rule::copy(&format!("{EMBEDDING}.{array}"), &head)),
                Self::Own | Self::Absent => None,
                Self::Embedding => Some(Rule::drop(&head, "the head is the embedding")),
                Self::Only => Some(Rule::rename(&head, &format!("{EMBEDDING}.{array}"))),
            }
        };
        Rules::from(ARRAYS.into_iter().filter_map(rule))
    }
}

/// Whether two tensors hold the same numbers, even if their dtypes differ.
fn equal(a: Array, b: Array) -> Result<bool> {
    if a.shape() != b.shape() {
        return Ok(false);
    }
    let [a, b] = if a.dtype() == b.dtype() {
        [a, b]
    } else {
        [a.astype(DType::F32)?, b.astype(DType::F32)?]
    };
    a.array_equal(&b)?.item()
}
