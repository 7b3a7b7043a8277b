//! The choice of the positions that queries see by the scores of indexers: of single positions, or of whole blocks.

use std::ops::Range;

use mlx_core::ops::{concat, create, create::zeros};
use mlx_core::{Array, DType, Result, fast};

use crate::step::Step;

/// The `top` places with the best scores among those that are seen, all Bool or F32 `[1, T, S]`.
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

/// The whole blocks whose last position is seen: `[1, T, S] -> [1, T, P]`.
pub(crate) fn whole_blocks(visible: &Array, block: i32) -> Result<Array> {
    let n = visible.dim(-1)? / block;
    let seen = visible.slice_axis(-1, 0, n * block)?;
    let seen = seen.reshape(&[1, -1, n, block])?;
    seen.slice_axis(-1, block - 1, block)?.squeeze(-1)
}

/// The positions of chosen blocks, `[1, T, P]`, and those after the last block that is whole at the query's position:
/// `[1, T, S]`.
pub(crate) fn with_tails(
    chosen: &Array,
    visible: &Array,
    block: i32,
    step: &Step,
) -> Result<Array> {
    let [_, tokens, longest] = visible.dims()?;
    let n = chosen.dim(-1)?;
    let each = chosen
        .expand_dims(-1)?
        .broadcast_to(&[1, tokens, n, block])?;
    let rest = zeros(&[1, tokens, longest - n * block], DType::Bool)?;
    let each = concat(&[each.reshape(&[1, tokens, n * block])?, rest], -1)?;
    let first = step
        .positions()
        .add(1)?
        .floor_divide(block)?
        .multiply(block)?;
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
            let numbers = match numbers.len() == run {
                // An operation and not an input, so that steps have the same graph.
                true => create::arange(f64::from(numbers[0]), (row + run) as f64, 1.0, DType::I32)?,
                false => Array::from_slice(&numbers, &[end - begin])?,
            };
            let numbers = numbers.expand_dims(-1)?;
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
