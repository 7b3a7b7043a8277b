//! The choice of the blocks of positions that queries of attention over heads see (Qwen 4): a small attention scores
//! whole blocks, and a query sees those with the highest scores.

use mlx_core::{Array, DType, Result};

use super::split_heads;
use crate::choice::{best, products, whole_blocks, with_tails};
use crate::linear::Linear;
use crate::norm::RmsNorm;
use crate::normed::Input;
use crate::rope::Rope;
use crate::step::{KeptVectors, Step};

/// Sizes of the indexer of an [`Attention`](super::Attention).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockIndexConfig {
    /// Query heads.
    pub heads: i32,
    /// Features of a head, and of the key of each position. The layer keeps that key in F32, in a state of its own.
    pub dim: i32,
    /// Successive positions that are chosen together, by the mean of their keys.
    pub block: i32,
    /// The number of positions of chosen blocks, a multiple of `block`. A query also sees the positions up to its own
    /// after the last whole block.
    pub top: i32,
    /// Epsilon of the norms of queries and keys.
    pub norm_eps: f32,
}

/// Scores whole blocks for every query, and chooses the best. Fields are named as in published checkpoints.
#[derive(Clone, Debug)]
pub(super) struct BlockIndexer {
    /// The queries of all heads, and the key.
    index_qk_proj: Linear,
    q_layernorm: RmsNorm,
    k_layernorm: RmsNorm,
    /// The rope of the attention, over the first features of a head.
    rope: Option<Rope>,
    config: BlockIndexConfig,
}

crate::module!(BlockIndexer { index_qk_proj, q_layernorm, k_layernorm } plain { rope, config });

impl BlockIndexer {
    pub(super) fn empty(config: BlockIndexConfig, hidden: i32, rope: Option<Rope>) -> Result<Self> {
        let BlockIndexConfig { heads, dim, .. } = config;
        Ok(Self {
            index_qk_proj: Linear::empty(hidden, (heads + 1) * dim, false)?,
            q_layernorm: RmsNorm::empty(dim, config.norm_eps)?,
            k_layernorm: RmsNorm::empty(dim, config.norm_eps)?,
            rope,
            config,
        })
    }

    /// Chooses positions for the step's queries: Bool `[1, T, S]`; `None` if no row is longer than the number of
    /// positions that a query may see. `state` is the layer state that keeps the keys.
    pub(super) fn select(
        &self,
        x: Input<'_>,
        state: usize,
        step: &mut Step<'_>,
    ) -> Result<Option<Array>> {
        let BlockIndexConfig {
            heads,
            dim,
            block,
            top,
            ..
        } = self.config;
        let both = self.index_qk_proj.forward(x)?;
        let k = both.slice_axis(-1, heads * dim, (heads + 1) * dim)?;
        let k = k.expand_dims(1)?.astype(DType::F32)?;
        let KeptVectors { vectors, visible } = step.keep(state, &k)?;
        if visible.dim(-1)? <= top {
            return Ok(None);
        }
        let q = split_heads(&both.slice_axis(-1, 0, heads * dim)?, dim)?;
        let q = self.q_layernorm.forward(&q)?;
        let q = match &self.rope {
            Some(rope) => rope.forward(&q, step)?,
            None => q,
        };
        let scores = products(&q.astype(DType::F32)?, &self.keys(&vectors, step)?, step)?; // [T, H, P]
        let scores = scores.multiply((dim as f32).powf(-0.5))?.maximum(0.0)?;
        let scores = scores.sum(1, false)?.expand_dims(0)?;
        let chosen = best(&scores, &whole_blocks(&visible, block)?, top / block)?;
        let chosen = with_tails(&chosen, &visible, block, step)?;
        visible.logical_and(&chosen)?.stop_gradient().map(Some)
    }

    /// The keys `[B, P, D]` of whole blocks, F32, from those of all positions, `[B, S, D]`: their mean, normed and
    /// rotated by the first position of the block.
    fn keys(&self, kept: &Array, step: &Step<'_>) -> Result<Array> {
        let BlockIndexConfig { dim, block, .. } = self.config;
        let [b, longest, _] = kept.dims()?;
        let n = longest / block;
        let whole = kept.slice_axis(1, 0, n * block)?;
        let means = whole.reshape(&[b, n, block, dim])?.mean(2, false)?;
        let means = self.k_layernorm.forward(&means)?.expand_dims(1)?;
        let keys = match &self.rope {
            Some(rope) => rope.of_rows(&means, block, step)?,
            None => means,
        };
        keys.squeeze(1)?.astype(DType::F32)
    }
}
