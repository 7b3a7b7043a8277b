//! [`Layout`]: the shapes of an adapter's arrays, which follow from its layer's operation.

use mlx_core::{Array, Error, ErrorKind, Result};

use super::{AdapterSlot, Lora};
use crate::shard::Cut;
use crate::weight::Weight;

/// The operation of a layer with its matrix. It determines the shapes of the adapter, which are mlx-lm's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `x @ weight.T` with a matrix `[out, in]`: A `[in, rank]`, B `[rank, out]`, m `[out]`.
    Linear,
    /// Lookup of rows of a table `[V, E]`: A `[V, rank]`, B `[rank, E]`, m `[V]`. A tied head is adapted too.
    Embedding,
    /// `x @ weight[expert].T` with a stack `[n, out, in]`: A `[n, rank, in]`, B `[n, out, rank]`,
    /// m `[n, out]`.
    Experts,
}

impl Layout {
    /// The shapes of A, B and m beside a matrix of the shape `weight`; `None` if the matrix has
    /// another number of dimensions.
    pub fn shapes(self, weight: &[i32], rank: i32) -> Option<[Vec<i32>; 3]> {
        Some(match (self, weight) {
            (Self::Linear, &[outputs, inputs]) => {
                [vec![inputs, rank], vec![rank, outputs], vec![outputs]]
            }
            (Self::Embedding, &[vocab, hidden]) => {
                [vec![vocab, rank], vec![rank, hidden], vec![vocab]]
            }
            (Self::Experts, &[n, outputs, inputs]) => [
                vec![n, rank, inputs],
                vec![n, outputs, rank],
                vec![n, outputs],
            ],
            _ => return None,
        })
    }

    /// This rank's part of an adapter's array, `lora_a`, `lora_b` or `m`, beside `weight`, of which this process may hold
    /// a part ([`shard`](mod@crate::shard)). An array that fits no whole matrix is returned as it is.
    ///
    /// # Errors
    /// The array is `m`, and the process holds columns of the matrix: the lengths of its rows are not known.
    pub fn part(self, weight: &Weight, part: &str, array: Array) -> Result<Array> {
        let Some(cut) = weight.held()? else {
            return Ok(array);
        };
        let ndim = weight.shape().len();
        let axis = match (self, part, ndim - 1 - cut.axis) {
            (_, "m", 0) => {
                let message = "DoRA adapters of layers whose inputs are divided among ranks are not supported; merge the adapter first";
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            (Self::Linear, "lora_a", 0) => 0,
            (Self::Linear, "lora_b", 1) => 1,
            (Self::Embedding, "lora_a", 1) => 0,
            (Self::Embedding, "lora_b", 0) => 1,
            (Self::Experts, "lora_a", 0) => 2,
            (Self::Experts, "lora_b", 1) => 1,
            (Self::Experts, "m", 1) => 1,
            (Self::Experts, _, 2) | (_, "m", 1) => 0,
            _ => return Ok(array),
        };
        match Cut::new(array.shape(), axis, cut.ranges.clone()) {
            Ok(own)
                if array.shape().get(axis) == cut.whole_shape(&weight.shape()).get(cut.axis) =>
            {
                own.of(&array)
            }
            _ => Ok(array),
        }
    }

    /// The rank of an adapter, from the shape of its A.
    pub fn rank(self, a: &[i32]) -> Option<i32> {
        match (self, a) {
            (Self::Linear | Self::Embedding, &[_, rank]) | (Self::Experts, &[_, rank, _]) => {
                Some(rank)
            }
            _ => None,
        }
    }

    /// The length of the vectors that A multiplies first: a new A is uniform in ±1 over the root of it.
    pub(super) fn inputs(self, weight: &[i32]) -> i32 {
        let inputs = match self {
            Self::Linear | Self::Experts => weight.last(),
            Self::Embedding => weight.first(),
        };
        inputs.copied().unwrap_or(1).max(1)
    }
}

/// A layer that can have an adapter, as visitors that change nothing get it.
#[derive(Clone, Copy, Debug)]
pub struct AdaptableLayer<'a> {
    /// The operation of the layer with the matrix.
    pub layout: Layout,
    /// The matrix.
    pub weight: &'a Weight,
    /// The adapter, if one is attached.
    pub lora: Option<&'a Lora>,
    /// The place of adapters by row ([`set_row_adapters`](super::set_row_adapters)); `None` for a layer that keeps its
    /// matrix in another form, too.
    pub by_row: Option<&'a AdapterSlot>,
}

/// A layer that can have an adapter, as visitors get it: its matrix and its adapter.
#[derive(Debug)]
pub struct Adaptable<'a> {
    /// The operation of the layer with the matrix.
    pub layout: Layout,
    /// The matrix.
    pub weight: &'a mut Weight,
    /// The adapter, if one is attached. Most layers have none.
    pub lora: &'a mut Option<Box<Lora>>,
    /// Whether inputs are rounded to 8 bits; `None` for a layer that cannot round them
    /// ([`round_inputs`](crate::quantize::round_inputs)).
    pub rounds: Option<&'a mut bool>,
}
