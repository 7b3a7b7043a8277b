//! Attention that is sparse in blocks of positions by a pattern that does not depend on the text
//! (Phi 3 small, arXiv:2404.14219).

use std::ops::Range;

use mlx_core::ops::create;
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use crate::step::Step;

/// The blocks of positions that queries see: the last ones, and every `stride`-th, from a number on that differs by
/// head.
///
/// ```
/// use mlx_nn::BlockPattern;
///
/// let pattern = BlockPattern { block: 64, local: 16, stride: 8 };
/// assert_eq!(pattern.reach(), 1024);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPattern {
    /// Positions of a block.
    pub block: i32,
    /// The number of blocks up to the query's own that the queries of all heads see.
    pub local: i32,
    /// Head h also sees each block n of which `n + h + 1` is a multiple of this. Heads and blocks count from 0.
    pub stride: i32,
}

impl BlockPattern {
    /// The length of a text up to which queries see all positions before their own.
    pub fn reach(&self) -> usize {
        self.block.max(0) as usize * self.local.max(0) as usize
    }
}

/// The pattern of an attention's heads.
#[derive(Clone, Debug)]
pub(super) struct HeadPattern {
    of: BlockPattern,
    /// I32 `[H, 1, 1]`: 1 for the first head, 2 for the second.
    numbers: Array,
}

impl HeadPattern {
    pub(super) fn new(of: BlockPattern, heads: i32) -> Result<Self> {
        if of.block < 1 || of.local < 1 || of.stride < 1 {
            let message = format!("{of:?}: sizes must be at least 1");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let numbers: Vec<i32> = (1..=heads).collect();
        Ok(Self {
            of,
            numbers: Array::from_slice(&numbers, &[heads, 1, 1])?,
        })
    }

    /// Leaves the pattern of these heads.
    pub(super) fn keep(&mut self, own: &Range<i32>) -> Result<()> {
        let numbers = self.numbers.slice_axis(0, own.start, own.end)?;
        self.numbers = numbers.contiguous()?;
        Ok(())
    }

    /// The positions that the queries of each head see among those up to their own: Bool `[H, T, S]`; `None` if no row
    /// is so long that they miss any. `layer` is the state of the keys.
    pub(super) fn select(&self, layer: usize, step: &mut Step<'_>) -> Result<Option<Array>> {
        let BlockPattern {
            block,
            local,
            stride,
        } = self.of;
        if !step.any_beyond(self.of.reach()) {
            return Ok(None);
        }
        let columns = step.columns(layer)?;
        let n = (columns + block - 1) / block;
        let blocks = create::arange(0.0, f64::from(n), 1.0, DType::I32)?;
        let own = step.positions().floor_divide(block)?.expand_dims(-1)?;
        let near = blocks.greater(&own.subtract(local)?)?; // [1, T, P]
        let strided = blocks.add(&self.numbers)?.remainder(stride)?.equal(0)?; // [H, 1, P]
        let seen = near.logical_or(&strided)?;
        let [heads, tokens, _] = seen.dims()?;
        let each = seen
            .expand_dims(-1)?
            .broadcast_to(&[heads, tokens, n, block])?;
        let each = each.reshape(&[heads, tokens, n * block])?;
        each.slice_axis(-1, 0, columns).map(Some)
    }
}
