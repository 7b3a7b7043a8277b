//! One vector for each block of positions.

use mlx_core::ops::concat;
use mlx_core::{Array, DType, Result};

use super::with_end;
use crate::linear::Linear;
use crate::module::Param;
use crate::norm::RmsNorm;
use crate::normed::Input;
use crate::rope::Rope;
use crate::step::Step;
use crate::step::blocks::{self, Blocks, nothing_like};

/// A block's vector is a sum of projections of its tokens, weighted for each feature by a softmax over the tokens of gates
/// plus a number for each place. It is normed, and its end is turned by the block's first position. If blocks reach into
/// the block before them, tokens have two vectors and gates: the first for the block after theirs, the second for their
/// own.
#[derive(Clone, Debug)]
pub(super) struct Compressor {
    kv_proj: Linear,
    gate_proj: Linear,
    /// `[size, width]`
    position_bias: Param,
    kv_norm: RmsNorm,
    rope: Rope,
    dim: i32,
    size: i32,
    reach: i32,
}

crate::module!(Compressor { kv_proj, gate_proj, position_bias, kv_norm } plain { rope, dim, size, reach });

impl Compressor {
    pub(super) fn empty(
        hidden: i32,
        dim: i32,
        (size, reach): (i32, i32),
        eps: f32,
        rope: Rope,
    ) -> Result<Self> {
        let width = dim * reach / size;
        Ok(Self {
            kv_proj: Linear::empty(hidden, width, false)?,
            gate_proj: Linear::empty(hidden, width, false)?,
            position_bias: Param::empty(&[size, width])?.never_narrowed(),
            kv_norm: RmsNorm::empty(dim, eps)?,
            rope,
            dim,
            size,
            reach,
        })
    }

    pub(super) fn rope(&self) -> &Rope {
        &self.rope
    }

    /// The vectors of all whole blocks, `[B, P, D]`, and which of them queries may see. They are kept in state `state`, in a
    /// dtype of its own or that of the features, and the last inputs in state `last`.
    pub(super) fn forward(
        &self,
        x: Input<'_>,
        (state, dtype): (usize, Option<DType>),
        last: usize,
        step: &mut Step<'_>,
    ) -> Result<Option<(Array, Array)>> {
        let both = Linear::forward_all([&self.kv_proj, &self.gate_proj], x)?;
        let inputs = concat(&both, -1)?;
        let (size, reach) = (self.size as usize, self.reach as usize);
        let completed = blocks::completed(step, last, &inputs, (size, reach))?;
        let dtype = dtype.unwrap_or(inputs.dtype());
        let vectors = match completed {
            Some(blocks) => Some(self.vectors(&blocks)?.astype(dtype)?),
            None => None,
        };
        let nothing = nothing_like(&inputs, self.dim)?.astype(dtype)?;
        blocks::keep(step, state, vectors.as_ref(), &nothing, size)
    }

    /// `[C, D]`
    fn vectors(&self, blocks: &Blocks) -> Result<Array> {
        let (dim, size, reach) = (self.dim, self.size, self.reach);
        let width = self.position_bias.shape()[1];
        let inputs = blocks.inputs.astype(DType::F32)?;
        let bias = self.position_bias.get()?.astype(DType::F32)?;
        let count = blocks.numbers.dim(0)?;
        // Vectors or gates of the tokens from place `begin` on, of feature `first` on.
        let of = |begin: i32, first: i32| {
            let tokens = inputs.slice_axis(1, begin, begin + size)?;
            tokens.slice_axis(2, first, first + dim)
        };
        let gates = |begin: i32, first: i32| {
            of(begin, width + first)?.add(bias.slice_axis(1, first, first + dim)?)
        };
        let (values, gates) = match reach == size {
            true => (of(0, 0)?, gates(0, 0)?),
            false => {
                // Before the first block there is none.
                let is_later = blocks.numbers.greater(0)?.reshape(&[count, 1, 1])?;
                let before = is_later.select(&gates(0, 0)?, f32::NEG_INFINITY)?;
                let values = concat(&[of(0, 0)?, of(size, dim)?], 1)?;
                (values, concat(&[before, gates(size, dim)?], 1)?)
            }
        };
        let sums = values.multiply(gates.softmax(1)?)?.sum(1, false)?;
        let sums = self.kv_norm.forward(&sums.astype(blocks.inputs.dtype())?)?;
        let firsts = blocks.numbers.multiply(size)?.expand_dims(0)?;
        let sums = sums.reshape(&[1, 1, count, dim])?;
        let turned = with_end(&sums, self.rope.dims(), |end| self.rope.at(end, &firsts))?;
        turned.reshape(&[count, dim])
    }
}
