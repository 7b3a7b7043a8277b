//! The choice of the positions that a query of latent attention sees: a small attention scores all
//! positions, and the query sees those with the highest scores (DeepSeek-V3.2's sparse attention). In GLM 5.3 it scores
//! pools of positions instead.

use mlx_core::ops::concat;
use mlx_core::{Array, DType, Result};

use crate::attention::split_heads;
use crate::choice::{best, products, whole_blocks, with_tails};
use crate::linear::Linear;
use crate::module::Param;
use crate::norm::LayerNorm;
use crate::normed::Input;
use crate::rope::Rope;
use crate::step::{KeptVectors, Step};

/// Sizes of an indexer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexConfig {
    /// Query heads.
    pub heads: i32,
    /// Features of a head, and of the single key of each position.
    pub dim: i32,
    /// The number of positions that a query sees.
    pub top: i32,
    /// Whether its rope pairs neighbouring dimensions.
    pub interleaved: bool,
    /// Whether its rope rotates the last features of a head, not the first.
    pub rotates_end: bool,
    /// Epsilon of the norm of keys.
    pub norm_eps: f32,
    /// The positions of a pool. Whole pools are chosen, `top / pool` of them, by one key for each; a query also sees
    /// the positions up to its own after the last whole pool. `None`: single positions are chosen.
    pub pool: Option<i32>,
}

impl IndexConfig {
    /// The numbers that are stored for each position: the key and, with pools, its gates.
    pub fn kept_dim(&self) -> i32 {
        match self.pool {
            Some(_) => 2 * self.dim,
            None => self.dim,
        }
    }
}

/// Scores every position for every query, and chooses the best. Fields are named as in published checkpoints.
#[derive(Clone, Debug)]
pub(super) struct Indexer {
    wq_b: Linear,
    wk: Linear,
    k_norm: LayerNorm,
    weights_proj: Linear,
    pool: Option<PoolWeights>,
    rope: Option<Rope>,
    config: IndexConfig,
}

crate::module!(Indexer { wq_b, wk, k_norm, weights_proj, pool } plain { rope, config });

/// The weights by which the key of a pool is a sum of those of its positions, for each feature: a softmax of a
/// projection of the token's features plus a number for each place in the pool.
#[derive(Clone, Debug)]
struct PoolWeights {
    gate: Linear,
    /// `[pool, D]`
    places: Param,
}

crate::module!(PoolWeights { gate, places });

impl Indexer {
    pub(super) fn empty(
        config: IndexConfig,
        hidden: i32,
        query_rank: i32,
        rope: Option<Rope>,
    ) -> Result<Self> {
        let IndexConfig { heads, dim, .. } = config;
        Ok(Self {
            wq_b: Linear::empty(query_rank, heads * dim, false)?,
            wk: Linear::empty(hidden, dim, false)?,
            k_norm: LayerNorm::empty(dim, config.norm_eps, true)?,
            weights_proj: Linear::empty(hidden, heads, false)?,
            pool: match config.pool {
                Some(pool) => Some(PoolWeights {
                    gate: Linear::empty(hidden, dim, false)?,
                    places: Param::empty(&[pool, dim])?,
                }),
                None => None,
            },
            rope,
            config,
        })
    }

    /// Chooses positions for the step's queries from the token's features and the compressed queries:
    /// Bool `[1, T, S]`; `None` if no row is longer than the number of positions that a query may see. `state` is the layer state
    /// that keeps the keys, in F32 as scores are computed.
    pub(super) fn select(
        &self,
        x: Input<'_>,
        compressed: Input<'_>,
        state: usize,
        step: &mut Step,
    ) -> Result<Option<Array>> {
        let IndexConfig {
            heads, dim, top, ..
        } = self.config;
        let k = self.k_norm.forward(&self.wk.forward(x)?)?.expand_dims(1)?;
        let k = self.rotated(k, step)?.astype(DType::F32)?;
        let k = match &self.pool {
            Some(pool) => {
                let gates = pool.gate.forward(x)?.astype(DType::F32)?;
                concat(&[k, gates.expand_dims(1)?], -1)?
            }
            None => k,
        };
        let KeptVectors { vectors, visible } = step.keep(state, &k)?;
        if visible.dim(-1)? <= top {
            return Ok(None);
        }
        let q = split_heads(&self.wq_b.forward(compressed)?, dim)?;
        let q = self.rotated(q, step)?.astype(DType::F32)?;
        let weights = self.weights_proj.forward(x)?.astype(DType::F32)?;
        let weights = weights.multiply((heads as f32).powf(-0.5))?;
        let weights = weights.squeeze(0)?.expand_dims(-1)?;
        let scores = |keys: &Array| {
            let scores = products(&q, keys, step)?; // [T, H, S]
            let scores = scores.multiply((dim as f32).powf(-0.5))?.maximum(0.0)?;
            scores.multiply(&weights)?.sum(1, false)?.expand_dims(0)
        };
        let chosen = match &self.pool {
            Some(pool) => {
                let n = pool.places.shape()[0];
                let seen = whole_blocks(&visible, n)?;
                let chosen = best(&scores(&pool.keys(&vectors)?)?, &seen, top / n)?;
                with_tails(&chosen, &visible, n, step)?
            }
            None => best(&scores(&vectors)?, &visible, top)?,
        };
        visible.logical_and(&chosen)?.stop_gradient().map(Some)
    }

    fn rotated(&self, x: Array, step: &Step) -> Result<Array> {
        let Some(rope) = &self.rope else {
            return Ok(x);
        };
        if !self.config.rotates_end {
            return rope.forward(&x, step);
        }
        let (dim, rotated) = (self.config.dim, rope.dims());
        let end = rope.forward(&x.slice_axis(-1, dim - rotated, dim)?, step)?;
        concat(&[x.slice_axis(-1, 0, dim - rotated)?, end], -1)
    }
}

impl PoolWeights {
    /// The keys `[B, P, D]` of whole pools from what is stored for each position, `[B, S, 2 D]`.
    fn keys(&self, kept: &Array) -> Result<Array> {
        let [pool, dim] = self.places.get()?.dims()?;
        let [b, longest, _] = kept.dims()?;
        let n = longest / pool;
        let whole = kept.slice_axis(1, 0, n * pool)?;
        let whole = whole.reshape(&[b, n, pool, 2 * dim])?;
        let gates = whole.slice_axis(-1, dim, 2 * dim)?;
        let places = self.places.get()?.astype(DType::F32)?;
        let weights = gates.add(places)?.softmax(2)?;
        let keys = whole.slice_axis(-1, 0, dim)?.multiply(weights)?;
        keys.sum(2, false)
    }
}
