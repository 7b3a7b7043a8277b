//! Bias and penalties, the first part of the chain.
//!
//! The history of a row is on the host. Its last token may be chosen but not yet read; that token takes part as an
//! array. The device keeps no state, so rows can join and leave at any step.

use mlx_core::ops::concat;
use mlx_core::{Array, DType};

use super::{Row, column, dry};
use crate::error::Result;

/// Applies the rows' bias, repeat penalty, presence and frequency penalties, in this order
/// (mlx-lm's), and DRY to `logits` `[B, V]`: F32. `pending`: U32 `[B]`, each row's last token if it
/// is not in the history yet.
pub(super) fn process(logits: &Array, rows: &[Row<'_>], pending: Option<&Array>) -> Result<Array> {
    let mut x = logits.astype(DType::F32)?;
    let biased = rows.iter().any(|row| !row.params.logit_bias.is_empty());
    if biased {
        x = bias(&x, rows)?;
    }
    if rows.iter().any(|row| row.params.repeat_penalty != 1.0) {
        // If possible, the values are read from another array than the one that is written: MLX
        // would otherwise copy all logits.
        let from = if biased { x.clone() } else { logits.clone() };
        x = repeat(&x, &from, rows, pending)?;
    }
    if rows.iter().any(|row| row.params.counts_tokens()) {
        x = counted(&x, rows, pending)?;
    }
    if rows.iter().any(|row| row.params.penalises_repetitions()) {
        x = repetitions(&x, rows)?;
    }
    Ok(x)
}

/// The penalties of DRY. All tokens of the rows that have them were read.
fn repetitions(x: &Array, rows: &[Row<'_>]) -> Result<Array> {
    let penalties = rows
        .iter()
        .map(|row| dry::penalties(row.history.ids(), row.params));
    let (ids, shifts): (Vec<Vec<u32>>, Vec<Vec<f32>>) = penalties
        .map(|row| row.into_iter().map(|(id, penalty)| (id, -penalty)).unzip())
        .unzip();
    if ids.iter().all(Vec::is_empty) {
        return Ok(x.clone());
    }
    Ok(x.scatter_add_axis(&padded(&ids, 0)?, &padded(&shifts, 0.0)?, -1)?)
}

/// Lists of different lengths as one array `[B, N]`, filled up with `fill`.
fn padded<T: mlx_core::Element>(lists: &[Vec<T>], fill: T) -> Result<Array> {
    let n = lists.iter().map(Vec::len).max().unwrap_or(0);
    let mut flat = Vec::with_capacity(lists.len() * n);
    for list in lists {
        flat.extend_from_slice(list);
        flat.extend(std::iter::repeat_n(fill, n - list.len()));
    }
    Ok(Array::from_slice(&flat, &[lists.len() as i32, n as i32])?)
}

fn bias(x: &Array, rows: &[Row<'_>]) -> Result<Array> {
    let ids: Vec<Vec<u32>> = rows
        .iter()
        .map(|row| row.params.logit_bias.keys().copied().collect())
        .collect();
    let values: Vec<Vec<f32>> = rows
        .iter()
        .map(|row| row.params.logit_bias.values().copied().collect())
        .collect();
    Ok(x.scatter_add_axis(&padded(&ids, 0)?, &padded(&values, 0.0)?, -1)?)
}

/// `x` after the repeat penalty. `from` holds the same values as `x`.
fn repeat(x: &Array, from: &Array, rows: &[Row<'_>], pending: Option<&Array>) -> Result<Array> {
    let recent: Vec<Vec<u32>> = rows
        .iter()
        .map(|row| {
            if row.params.repeat_penalty == 1.0 {
                return Vec::new();
            }
            let ids = row.history.ids();
            let n = row.params.repeat_context - usize::from(pending.is_some());
            ids[ids.len().saturating_sub(n)..].to_vec()
        })
        .collect();
    // Padding repeats a token of the row's own window, so that equal ids get equal values below. A
    // row without a penalty gets the values that were read.
    let ids = match pending {
        None => {
            let n = recent.iter().map(Vec::len).max().unwrap_or(0);
            let fill = |ids: Vec<u32>| {
                let last = ids.last().copied().unwrap_or(0);
                ids.into_iter()
                    .chain(std::iter::repeat(last))
                    .take(n)
                    .collect()
            };
            let filled: Vec<Vec<u32>> = recent.into_iter().map(fill).collect();
            padded(&filled, 0)?
        }
        Some(pending) => {
            let last = pending.expand_dims(-1)?;
            let is_there: Vec<Vec<bool>> = recent.iter().map(|ids| vec![true; ids.len()]).collect();
            let known = padded(&is_there, false)?.select(&padded(&recent, 0)?, &last)?;
            concat(&[&known, &last], -1)?
        }
    };
    let penalty = column(rows, |row| row.params.repeat_penalty)?;
    let found = from.take_along_axis(&ids, -1)?.astype(DType::F32)?;
    let changed = found
        .less(0.0f32)?
        .select(&found.multiply(&penalty)?, &found.divide(&penalty)?)?;
    Ok(x.put_along_axis(&ids, &changed, -1)?)
}

/// Presence and frequency penalties, of generated tokens only.
fn counted(x: &Array, rows: &[Row<'_>], pending: Option<&Array>) -> Result<Array> {
    let ids: Vec<Vec<u32>> = rows
        .iter()
        .map(|row| counts(row).map(|(id, _)| id).collect())
        .collect();
    let times: Vec<Vec<f32>> = rows
        .iter()
        .map(|row| counts(row).map(|(_, n)| n as f32).collect())
        .collect();
    let is_there: Vec<Vec<bool>> = ids.iter().map(|ids| vec![true; ids.len()]).collect();
    let (ids, mut times, is_there) = (
        padded(&ids, 0)?,
        padded(&times, 0.0)?,
        padded(&is_there, false)?,
    );
    let presence = column(rows, |row| row.params.presence_penalty)?;
    let frequency = column(rows, |row| row.params.frequency_penalty)?;
    let penalty = |times: &Array| -> Result<Array> {
        Ok(times.multiply(&frequency)?.add(&presence)?.negative()?)
    };
    let last = match pending {
        None => None,
        Some(pending) => {
            let last = pending.expand_dims(-1)?;
            let hits = ids.equal(&last)?.logical_and(&is_there)?;
            times = times.add(&hits.astype(DType::F32)?)?;
            let is_new = hits.any(-1, true)?.logical_not()?;
            Some((
                last,
                is_new.select(&penalty(&is_new.astype(DType::F32)?)?, 0.0f32)?,
            ))
        }
    };
    let shifts = is_there.select(&penalty(&times)?, 0.0f32)?;
    let (ids, shifts) = match last {
        Some((last, shift)) => (concat(&[&ids, &last], -1)?, concat(&[&shifts, &shift], -1)?),
        None => (ids, shifts),
    };
    if ids.size() == 0 {
        return Ok(x.clone());
    }
    Ok(x.scatter_add_axis(&ids, &shifts, -1)?)
}

/// How often a row has generated each token, if its settings penalise that.
fn counts<'a>(row: &Row<'a>) -> impl Iterator<Item = (u32, u32)> + use<'a> {
    let counts = row.params.counts_tokens().then(|| row.history.counts());
    counts.into_iter().flatten().map(|(&id, &n)| (id, n))
}
