//! The two best experts of SparseMixer.

use mlx_core::ops::concat;
use mlx_core::{Array, Result};

/// F32 scores `[N, E]` -> the experts `[N, 2]`, the best first, and their weights, which do not sum to 1.
pub(super) fn choose(scores: &Array, noise: f32) -> Result<(Array, Array)> {
    let (first, weight) = best(scores, scores, noise)?;
    let lowest = Array::scalar(f32::NEG_INFINITY)?.broadcast_to(first.shape())?;
    let others = scores.put_along_axis(&first, &lowest, -1)?;
    let (second, next) = best(scores, &others, noise)?;
    Ok((concat(&[first, second], -1)?, concat(&[weight, next], -1)?))
}

/// The expert with the highest score in `left`, `[N, 1]`, and its weight in a softmax over the
/// experts whose scores are near to it. Experts that are chosen already have a score of negative
/// infinity in `left`.
fn best(scores: &Array, left: &Array, noise: f32) -> Result<(Array, Array)> {
    let best = left.argmax(-1, true)?.stop_gradient()?;
    let most = left.max(-1, true)?;
    let near = most
        .subtract(scores)?
        .divide(scores.abs()?.maximum(&most)?)?
        .less_equal(2.0 * noise)?
        .stop_gradient()?;
    let weights = near.select(left, f32::NEG_INFINITY)?.softmax(-1)?;
    let weight = weights.take_along_axis(&best, -1)?;
    Ok((best, weight))
}
