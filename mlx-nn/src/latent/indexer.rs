//! The choice of the positions that a query of latent attention sees: a small attention scores all
//! positions, and the query sees those with the highest scores (DeepSeek-V3.2's sparse attention). In GLM 5.3 it scores
//! pools of positions instead.

use std::ops::Range;

use mlx_core::ops::{concat, create, create::zeros};
use mlx_core::{Array, DType, Result, fast};

use crate::attention::split_heads;
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
        if step.longest() <= top as usize {
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
                let (keys, seen) = pool.pools(&vectors, &visible)?;
                let n = pool.places.shape()[0];
                let chosen = best(&scores(&keys)?, &seen, top / n)?;
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
    /// The keys `[B, P, D]` of whole pools, and which of them queries see, `[1, T, P]`, from what is
    /// stored for each position, `[B, S, 2 D]`, and which of these queries see, `[1, T, S]`.
    fn pools(&self, kept: &Array, visible: &Array) -> Result<(Array, Array)> {
        let [pool, dim] = self.places.get()?.dims()?;
        let [b, longest, _] = kept.dims()?;
        let n = longest / pool;
        let whole = kept.slice_axis(1, 0, n * pool)?;
        let whole = whole.reshape(&[b, n, pool, 2 * dim])?;
        let gates = whole.slice_axis(-1, dim, 2 * dim)?;
        let places = self.places.get()?.astype(DType::F32)?;
        let weights = gates.add(places)?.softmax(2)?;
        let keys = whole.slice_axis(-1, 0, dim)?.multiply(weights)?;
        let seen = visible.slice_axis(-1, 0, n * pool)?;
        let seen = seen.reshape(&[1, -1, n, pool])?;
        let seen = seen.slice_axis(-1, pool - 1, pool)?.squeeze(-1)?;
        Ok((keys.sum(2, false)?, seen))
    }
}

/// The `top` places with the best scores among those that are seen, all Bool or F32 `[.., T, S]`.
pub(crate) fn best(scores: &Array, seen: &Array, top: i32) -> Result<Array> {
    let top = top.min(scores.dim(-1)?);
    let scores = seen.select(scores, f32::NEG_INFINITY)?;
    let best = scores.negative()?.argpartition(top - 1, -1)?;
    let best = best.slice_axis(-1, 0, top)?;
    let chosen = zeros(scores.shape(), DType::Bool)?;
    let yes = Array::scalar(true)?.broadcast_to(best.shape())?;
    let chosen = chosen.put_along_axis(&best, &yes, -1)?;
    seen.logical_and(&chosen)
}

/// The positions of chosen pools, `[1, T, P]`, and those after the last pool that is whole at the query's position:
/// `[1, T, S]`.
fn with_tails(chosen: &Array, visible: &Array, pool: i32, step: &Step) -> Result<Array> {
    let [_, tokens, longest] = visible.dims()?;
    let n = chosen.dim(-1)?;
    let each = chosen
        .expand_dims(-1)?
        .broadcast_to(&[1, tokens, n, pool])?;
    let rest = zeros(&[1, tokens, longest - n * pool], DType::Bool)?;
    let each = concat(&[each.reshape(&[1, tokens, n * pool])?, rest], -1)?;
    let first = step
        .positions()
        .add(1)?
        .floor_divide(pool)?
        .multiply(pool)?;
    let places = create::arange(0.0, f64::from(longest), 1.0, DType::I32)?;
    each.logical_or(&places.greater_equal(&first.expand_dims(-1)?)?)
}

/// Queries `[1, H, T, D]` with the keys `[B, S, D]` of their rows: `[T, H, S]`. Single tokens of rows
/// are multiplied by the keys of their rows as by the matrices of experts, because there is a kernel
/// for that product. Its result does not depend on the other tokens.
pub(crate) fn products(q: &Array, keys: &Array, step: &Step) -> Result<Array> {
    let [_, heads, tokens, dim] = q.dims()?;
    let q = q.squeeze(0)?.swapaxes(0, 1)?; // [T, H, D]
    let rows: Vec<Range<usize>> = step.places().collect();
    let single = |places: &Range<usize>| places.len() <= 1;
    let mut parts = Vec::new();
    let mut row = 0;
    while row < rows.len() {
        let run = rows[row..]
            .iter()
            .take_while(|places| single(places))
            .count();
        let (begin, end) = (
            rows[row].start as i32,
            rows[row + run.max(1) - 1].end as i32,
        );
        let own = q.slice_axis(0, begin, end)?;
        let numbers = (row..row + run).filter(|&row| !rows[row].is_empty());
        let numbers: Vec<i32> = numbers.map(|row| row as i32).collect();
        if run == 0 {
            let (row, n) = (row as i32, end - begin);
            let own = own.reshape(&[n * heads, dim])?;
            let keys = keys.slice_axis(0, row, row + 1)?.squeeze(0)?;
            parts.push(own.matmul(&keys.t()?)?.reshape(&[n, heads, -1])?);
        } else if !numbers.is_empty() {
            let numbers = Array::from_slice(&numbers, &[end - begin, 1])?;
            let own = own.reshape(&[end - begin, heads, 1, dim])?;
            parts.push(fast::experts_linear(&own, keys, &numbers)?.squeeze(2)?);
        }
        row += run.max(1);
    }
    match &parts[..] {
        [part] if part.dim(0)? == tokens => Ok(part.clone()),
        parts => concat(parts, 0),
    }
}
