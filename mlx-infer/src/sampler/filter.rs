//! Which tokens may be drawn: top-p, min-p, top-k.
//!
//! Each filter keeps the likeliest tokens up to some point, so all are thresholds on the logits and their
//! order does not matter. Top-k keeps exactly k: of equal logits at its threshold, those of the lowest
//! ids. Top-p and min-p keep all that are equal, as mlx-lm does.

use mlx_core::{Array, DType, fast};

use super::{Row, column, flags};
use crate::error::Result;

/// Which of the logits `x` `[B, V]` (F32) may be drawn, as Bool; `None` if all may.
pub(super) fn keep(x: &Array, rows: &[Row<'_>]) -> Result<Option<Array>> {
    let [_, v] = x.dims()?;
    let k = |row: &Row<'_>| match row.params.top_k {
        k if k > 0 && k < v as usize => Some(k),
        _ => None,
    };
    let p = |row: &Row<'_>| (row.params.top_p < 1.0).then_some(row.params.top_p);
    let m = |row: &Row<'_>| (row.params.min_p > 0.0).then_some(row.params.min_p);
    let mut kept = None;
    // The largest logits, as many as the widest top-k keeps.
    let reach = rows.iter().filter_map(k).max();
    let sorted = match reach {
        Some(reach) => Some(fast::top(x, reach)?.1),
        None => None,
    };
    if rows.iter().any(|row| p(row).is_some()) {
        // Where every row with top-p has top-k too, these are all that can be kept.
        let few = rows.iter().all(|row| p(row).is_none() || k(row).is_some());
        let least = match &sorted {
            Some(sorted) if few => top_p(x, sorted, rows, p)?,
            _ => fast::nucleus(x, &column(rows, |row| p(row).unwrap_or(1.0))?)?,
        };
        let filters = flags(rows, |row| p(row).is_some())?;
        let least = filters.select(&least, f32::NEG_INFINITY)?;
        kept = both(kept, x.greater_equal(&least)?)?;
    }
    if let Some(sorted) = &sorted {
        kept = both(kept, top_k(x, sorted, rows, k)?)?;
    }
    if rows.iter().any(|row| m(row).is_some()) {
        let least = column(rows, |row| m(row).map_or(f32::NEG_INFINITY, f32::ln))?;
        kept = both(kept, x.greater_equal(&x.max(-1, true)?.add(&least)?)?)?;
    }
    Ok(kept)
}

fn both(a: Option<Array>, b: Array) -> Result<Option<Array>> {
    Ok(Some(match a {
        Some(a) => a.logical_and(&b)?,
        None => b,
    }))
}

/// The least logit of each row, F32 `[B, 1]`, that is kept while those before have less than p together, or the
/// least of `sorted`: the largest logits, descending.
fn top_p(
    x: &Array,
    sorted: &Array,
    rows: &[Row<'_>],
    p: impl Fn(&Row<'_>) -> Option<f32>,
) -> Result<Array> {
    let probabilities = sorted.subtract(&x.logsumexp(-1, true)?)?.exp()?;
    let before = probabilities.cumsum(-1, false, false)?;
    let inside = before.less(&column(rows, |row| p(row).unwrap_or(1.0))?)?;
    Ok(inside.select(sorted, f32::INFINITY)?.min(-1, true)?)
}

fn top_k(
    x: &Array,
    sorted: &Array,
    rows: &[Row<'_>],
    k: impl Fn(&Row<'_>) -> Option<usize>,
) -> Result<Array> {
    let [b, v] = x.dims()?;
    let counts: Vec<i32> = rows
        .iter()
        .map(|row| k(row).map_or(v, |k| k as i32))
        .collect();
    let last: Vec<i32> = rows
        .iter()
        .map(|row| k(row).map_or(0, |k| k as i32 - 1))
        .collect();
    let threshold = sorted.take_along_axis(&Array::from_slice(&last, &[b, 1])?, -1)?;
    let above = x.greater(&threshold)?;
    let equal = x.equal(&threshold)?;
    let n_above = above.astype(DType::I32)?.sum(-1, true)?;
    let rank = equal
        .astype(DType::I32)?
        .cumsum(-1, false, true)?
        .add(&n_above)?;
    let first = equal.logical_and(&rank.less_equal(&Array::from_slice(&counts, &[b, 1])?)?)?;
    let unfiltered = flags(rows, |row| k(row).is_none())?;
    Ok(above.logical_or(&first)?.logical_or(&unfiltered)?)
}
