//! The choice of the positions that a query of latent attention sees: a small attention scores all
//! positions, and the query sees those with the highest scores (DeepSeek-V3.2's sparse attention).

use std::ops::Range;

use mlx_core::ops::{concat, create::zeros};
use mlx_core::{Array, DType, Result, fast};

use crate::attention::split_heads;
use crate::linear::Linear;
use crate::norm::LayerNorm;
use crate::normed::Input;
use crate::rope::Rope;
use crate::step::{KeptVectors, Step};

/// Sizes of an indexer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexConfig {
    /// Query heads.
    pub heads: i32,
    /// Features of a head, and of the single key of each position.
    pub dim: i32,
    /// The number of positions that a query sees.
    pub top: i32,
    /// Whether its rope pairs neighbouring dimensions.
    pub interleaved: bool,
}

/// Epsilon of the norm of keys.
const EPS: f32 = 1e-6;

/// Scores every position for every query, and chooses the best. Fields are named as in published checkpoints.
#[derive(Clone, Debug)]
pub(super) struct Indexer {
    wq_b: Linear,
    wk: Linear,
    k_norm: LayerNorm,
    weights_proj: Linear,
    rope: Option<Rope>,
    config: IndexConfig,
}

crate::module!(Indexer { wq_b, wk, k_norm, weights_proj } plain { rope, config });

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
            k_norm: LayerNorm::empty(dim, EPS, true)?,
            weights_proj: Linear::empty(hidden, heads, false)?,
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
        let KeptVectors { vectors, visible } = step.keep(state, &k)?;
        if step.longest() <= top as usize {
            return Ok(None);
        }
        let q = split_heads(&self.wq_b.forward(compressed)?, dim)?;
        let q = self.rotated(q, step)?.astype(DType::F32)?;
        let scores = products(&q, &vectors, step)?; // [T, H, S]
        let scores = scores.multiply((dim as f32).powf(-0.5))?;
        let weights = self.weights_proj.forward(x)?.astype(DType::F32)?;
        let weights = weights.multiply((heads as f32).powf(-0.5))?;
        let weights = weights.squeeze(0)?.expand_dims(-1)?;
        let scores = scores.maximum(0.0)?.multiply(weights)?.sum(1, false)?;
        let scores = visible.select(&scores.expand_dims(0)?, f32::NEG_INFINITY)?;
        let best = scores.negative()?.argpartition(top - 1, -1)?;
        let best = best.slice_axis(-1, 0, top)?;
        let chosen = zeros(scores.shape(), DType::Bool)?;
        let yes = Array::scalar(true)?.broadcast_to(best.shape())?;
        let chosen = chosen.put_along_axis(&best, &yes, -1)?;
        visible.logical_and(&chosen)?.stop_gradient().map(Some)
    }

    fn rotated(&self, x: Array, step: &Step) -> Result<Array> {
        match &self.rope {
            Some(rope) => rope.forward(&x, step),
            None => Ok(x),
        }
    }
}

/// Queries `[1, H, T, D]` with the keys `[B, S, D]` of their rows: `[T, H, S]`. Single tokens of rows
/// are multiplied by the keys of their rows as by the matrices of experts, because there is a kernel
/// for that product. Its result does not depend on the other tokens.
fn products(q: &Array, keys: &Array, step: &Step) -> Result<Array> {
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
