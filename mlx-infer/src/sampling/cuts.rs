//! Filters that the draw itself does not have: top-n-sigma and XTC. They come after bias, penalties
//! and masks.

use mlx_core::ops::create::arange;
use mlx_core::{Array, DType};

use super::{Row, column, noise};
use crate::error::Result;
use crate::request::sampling::SamplingParams;

/// Keeps the noise of XTC apart from that of the draw.
const OF_XTC: u64 = 0x5854_4321;

/// Applies top-n-sigma to logits `[B, V]`: tokens whose logit is more than `top_n_sigma` standard
/// deviations below the largest are forbidden (Tang et al. 2024, "Top-nσ", arXiv:2411.07641).
/// Forbidden tokens do not count.
pub(super) fn sigma(x: &Array, rows: &[Row<'_>]) -> Result<Array> {
    let x = x.astype(DType::F32)?;
    let is_there = x.isfinite()?;
    let of_finite = |values: &Array| -> Result<Array> {
        let n = is_there.astype(DType::F32)?.sum(-1, true)?;
        Ok(is_there.select(values, 0.0f32)?.sum(-1, true)?.divide(&n)?)
    };
    let mean = of_finite(&x)?;
    let deviation = of_finite(&x.subtract(&mean)?.square()?)?.sqrt()?;
    let far = column(rows, |row| match cuts(row.params) {
        true if row.params.top_n_sigma > 0.0 => row.params.top_n_sigma,
        _ => f32::INFINITY,
    })?;
    let least = x.max(-1, true)?.subtract(&deviation.multiply(&far)?)?;
    // A logit that is NaN stays.
    Ok(x.less(&least)?.select(f32::NEG_INFINITY, &x)?)
}

/// Whether a row draws, so that its filters count.
fn cuts(params: &SamplingParams) -> bool {
    !params.is_greedy()
}

/// Whether XTC removes tokens at this position of a row.
pub(super) fn is_due(params: &SamplingParams, seed: u64, position: usize) -> bool {
    let [high, _] = noise::key(seed.wrapping_add(OF_XTC), position);
    let uniform = f64::from(high) / f64::from(u32::MAX);
    cuts(params) && params.excludes_top() && uniform < f64::from(params.xtc_probability)
}

/// Applies all filters to the rows with `due`: top-p, min-p and top-k, then XTC on what is left. If
/// at least two tokens have the probability `xtc_threshold`, all of them but the least likely are
/// forbidden (Weidmann 2024, "Exclude Top Choices"). The draw must not filter these rows again.
pub(super) fn exclude_top(x: &Array, rows: &[Row<'_>], due: &[bool]) -> Result<Array> {
    let [b, v] = x.dims()?;
    let x = x.astype(DType::F32)?;
    let order = x.negative()?.argsort(-1)?;
    let sorted = x.take_along_axis(&order, -1)?;
    let p = sorted.softmax_with(-1, true)?;
    let rank = arange(0.0, f64::from(v), 1.0, DType::F32)?;
    let number = |number: fn(&SamplingParams) -> f32| column(rows, |row| number(row.params));
    let most = number(|params| match params.top_k {
        0 => f32::INFINITY,
        k => k as f32,
    })?;
    let nucleus = number(|params| match params.top_p {
        1.0 => f32::INFINITY,
        top_p => top_p,
    })?;
    let before = p.cumsum(-1)?.subtract(&p)?;
    let least = before
        .less(&nucleus)?
        .select(&sorted, f32::INFINITY)?
        .min(-1, true)?;
    let likeliest = p.slice_axis(1, 0, 1)?;
    let least_p = likeliest.multiply(&number(|params| params.min_p)?)?;
    let kept = sorted
        .greater_equal(&least)?
        .logical_and(&rank.less(&most)?)?
        .logical_and(&p.greater_equal(&least_p)?)?;
    let total = kept.select(&p, 0.0f32)?.sum(-1, true)?;
    let limit = number(|params| params.xtc_threshold)?.multiply(&total)?;
    let above = kept.logical_and(&p.greater_equal(&limit)?)?;
    let last = above.astype(DType::F32)?.sum(-1, true)?.subtract(1.0f32)?;
    let allowed = kept.logical_and(&rank.greater_equal(&last)?)?;
    let cut = allowed.select(&sorted, f32::NEG_INFINITY)?;
    let cut = x.put_along_axis(&order, &cut, -1)?;
    Ok(Array::from_slice(due, &[b, 1])?.select(&cut, &x)?)
}
