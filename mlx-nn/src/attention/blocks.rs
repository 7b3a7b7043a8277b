//! The choice of the blocks of positions that queries see (MiniMax M3): a small attention scores all positions, and a query
//! sees the blocks that hold the highest scores, and its own.

use std::ops::Range;

use mlx_core::ops::{concat, create};
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use super::{Attention, split_heads};
use crate::choice::{best, products};

use crate::linear::Linear;
use crate::norm::RmsNorm;
use crate::normed::Input;
use crate::rope::Rope;
use crate::step::{KeptVectors, Step};

/// Sizes of the choice of blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockChoice {
    /// Heads that choose. Each chooses for as many neighbouring query heads of the attention.
    pub heads: i32,
    /// Features of such a head, and of the single key of each position.
    pub dim: i32,
    /// Positions of a block.
    pub block: i32,
    /// The number of blocks that a query sees.
    pub top: i32,
    /// The number of blocks up to the query's own that are among them in any case.
    pub local: i32,
    /// Epsilon of the norms of queries and keys.
    pub norm_eps: f32,
    /// The number that is added to the weights of these norms.
    pub norm_offset: f32,
}

/// Scores every position for every query, and chooses the best blocks for each head. The keys are a second state of the
/// layer.
#[derive(Clone, Debug)]
pub(super) struct BlockChooser {
    q_proj: Linear,
    k_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    rope: Rope,
    /// I32 `[H]`: the head that chooses for each query head.
    choosers: Array,
    config: BlockChoice,
}

crate::module!(BlockChooser { q_proj, k_proj, q_norm, k_norm } plain { rope, choosers, config });

impl Attention {
    /// The attention with queries that see only chosen blocks of positions. `rope` rotates the queries and keys of the
    /// choice.
    ///
    /// # Errors
    /// A size is less than 1, or the query heads are not a multiple of the heads that choose.
    pub fn with_blocks(self, config: BlockChoice, rope: Rope) -> Result<Self> {
        let hidden = self.q_proj.weight().shape()[1];
        let queries = self.query_heads();
        let BlockChoice {
            heads, block, top, ..
        } = config;
        if heads < 1 || queries % heads != 0 || block < 1 || top < 1 || config.dim < 1 {
            let message = format!(
                "{heads} heads of {} choose {top} blocks of {block} for {queries} query heads: sizes must be at least 1, \
                 and query heads a multiple of heads",
                config.dim
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let each = queries / heads;
        let choosers: Vec<i32> = (0..queries).map(|head| head / each).collect();
        let norm = || RmsNorm::with_offset(config.dim, config.norm_eps, config.norm_offset);
        let chooser = BlockChooser {
            q_proj: Linear::empty(hidden, config.heads * config.dim, false)?,
            k_proj: Linear::empty(hidden, config.dim, false)?,
            q_norm: norm()?,
            k_norm: norm()?,
            rope,
            choosers: Array::from_slice(&choosers, &[queries])?,
            config,
        };
        Ok(Self {
            chooser: Some(chooser),
            ..self
        })
    }
}

impl BlockChooser {
    /// Leaves the choice for these query heads.
    pub(super) fn keep(&mut self, own: &Range<i32>) -> Result<()> {
        let choosers = self.choosers.slice_axis(0, own.start, own.end)?;
        self.choosers = choosers.contiguous()?;
        Ok(())
    }

    /// Chooses positions for the queries of each head from the token's features: Bool `[H, T, S]`; `None` if queries
    /// see all blocks of all rows. `state` is the layer state that keeps the keys, in F32 as scores are computed.
    pub(super) fn select(
        &self,
        x: Input<'_>,
        state: usize,
        step: &mut Step<'_>,
    ) -> Result<Option<Array>> {
        let BlockChoice { block, top, .. } = self.config;
        let k = self.heads(&self.k_proj.forward(x)?, &self.k_norm, step)?;
        let KeptVectors { vectors, visible } = step.keep(state, &k)?;
        if i64::from(visible.dim(-1)?) <= i64::from(top) * i64::from(block) {
            return Ok(None);
        }
        let q = self.heads(&self.q_proj.forward(x)?, &self.q_norm, step)?;
        let scores = products(&q, &vectors, step)?.swapaxes(0, 1)?;
        let blocks = self.blocks(&visible.select(&scores, f32::NEG_INFINITY)?, step)?;
        let [heads, tokens, n] = blocks.dims()?;
        let chosen = best(&blocks, &blocks.greater(f32::NEG_INFINITY)?, top)?;
        let each = chosen
            .expand_dims(-1)?
            .broadcast_to(&[heads, tokens, n, block])?;
        let each = each.reshape(&[heads, tokens, n * block])?;
        let each = each.slice_axis(-1, 0, visible.dim(-1)?)?;
        let seen = visible.logical_and(&each)?.take(&self.choosers, 0)?;
        seen.stop_gradient().map(Some)
    }

    /// Normed and rotated heads of a projection: F32 `[1, H, T, D]`.
    fn heads(&self, x: &Array, norm: &RmsNorm, step: &Step<'_>) -> Result<Array> {
        let heads = norm.forward(&split_heads(x, self.config.dim)?)?;
        self.rope.forward(&heads, step)?.astype(DType::F32)
    }

    /// The highest of the scores `[H, T, S]` in each block, and infinity for blocks that are always seen: `[H, T, P]`.
    fn blocks(&self, scores: &Array, step: &Step<'_>) -> Result<Array> {
        let BlockChoice { block, local, .. } = self.config;
        let [heads, tokens, longest] = scores.dims()?;
        let n = (longest + block - 1) / block;
        let rest = create::zeros(&[heads, tokens, n * block - longest], DType::F32)?;
        let whole = concat(&[scores, &rest.add(f32::NEG_INFINITY)?], -1)?;
        let highest = whole.reshape(&[heads, tokens, n, block])?.max(-1, false)?;
        let own = step.positions().floor_divide(block)?.expand_dims(-1)?;
        let places = create::arange(0.0, f64::from(n), 1.0, DType::I32)?;
        let near = places.greater(&own.subtract(local)?)?;
        let near = near.logical_and(&places.less_equal(&own)?)?;
        near.select(f32::INFINITY, &highest)
    }
}
