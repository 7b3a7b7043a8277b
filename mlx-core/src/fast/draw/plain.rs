//! The plain form of [`draw`](super::draw).
//!
//! Each filter keeps the likeliest tokens up to some point. So each is a threshold on the logits,
//! and the order of the filters does not matter.

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::fast::{self, Draw, NO_TOKEN};
use crate::ops::create::zeros;
use crate::random::{self, Key};
use crate::transforms::vmap_with;

/// The plain form of [`draw`](super::draw), for settings that it has checked.
pub(super) fn draw(logits: &Array, rows: &[Draw]) -> Result<Array> {
    let x = logits.astype(DType::F32)?;
    let greedy = fast::argmax(&x)?;
    // The largest logit is NaN if one logit is NaN. Where `argmax` is a kernel that skips NaN, the
    // largest logit of a greedy row is NaN only if all are.
    let largest = x
        .take_along_axis(&greedy.expand_dims(-1)?, -1)?
        .squeeze(-1)?;
    let of = |wanted: &dyn Fn(&Draw) -> bool| -> Vec<u32> {
        let rows = (0..).zip(rows).filter(|(_, row)| wanted(row));
        rows.map(|(row, _)| row).collect()
    };
    let indices = |rows: &[u32]| Array::from_slice(rows, &[rows.len() as i32]);
    let filtered = of(&|row| row.temperature != 0.0);
    let witness = match filtered.len() {
        0 => largest,
        _ => {
            let at = indices(&filtered)?;
            largest.put_along_axis(&at, &x.take(&at, 0)?.max(-1, false)?, 0)?
        }
    };
    // Noise and filters are computed only for the rows that they can change.
    let drawing = of(&|row| row.temperature != 0.0 && row.top_k != 1);
    let ids = match drawing.len() {
        0 => greedy,
        _ => {
            let some: Vec<Draw> = drawing.iter().map(|&row| rows[row as usize]).collect();
            let at = indices(&drawing)?;
            greedy.put_along_axis(&at, &of_rows(&x.take(&at, 0)?, &some)?, 0)?
        }
    };
    witness.isfinite()?.select(&ids, NO_TOKEN)
}

/// The tokens of rows that are sampled: no row is greedy.
fn of_rows(x: &Array, rows: &[Draw]) -> Result<Array> {
    let keys: Vec<u32> = rows.iter().flat_map(|row| row.key).collect();
    let keys = Array::from_slice(&keys, &[rows.len() as i32, 2])?;
    let y = x
        .multiply(&column(rows, Draw::scale)?)?
        .add(&gumbel(&keys, x.dim(-1)?)?)?;
    let y = match keep(x, rows)? {
        Some(keep) => keep.select(&y, f32::NEG_INFINITY)?,
        None => y,
    };
    fast::argmax(&y)
}

/// One number for each row, as F32 `[B, 1]`.
fn column(rows: &[Draw], number: impl FnMut(&Draw) -> f32) -> Result<Array> {
    let numbers: Vec<f32> = rows.iter().map(number).collect();
    Array::from_slice(&numbers, &[rows.len() as i32, 1])
}

/// One flag for each row, as Bool `[B, 1]`.
fn flags(rows: &[Draw], flag: impl FnMut(&Draw) -> bool) -> Result<Array> {
    let flags: Vec<bool> = rows.iter().map(flag).collect();
    Array::from_slice(&flags, &[rows.len() as i32, 1])
}

/// Gumbel noise for `v` tokens from each of `keys`, U32 `[B, 2]`: F32 `[B, V]`, never infinite.
///
/// `-ln(-ln(1 - u))` for u uniform in (0, 1), from [`random::bits`]. The largest values, which decide the draw, come
/// from the smallest u, where single precision is finest.
///
/// ```
/// use mlx_core::{Array, fast};
///
/// # fn main() -> mlx_core::Result<()> {
/// let keys = Array::from_slice(&[1u32, 2], &[1, 2])?;
/// assert_eq!(fast::gumbel(&keys, 10)?.shape(), [1, 10]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The keys have another shape or dtype.
pub fn gumbel(keys: &Array, v: i32) -> Result<Array> {
    if let [0, 2] = keys.shape()
        && keys.dtype() == DType::U32
    {
        return zeros(&[0, v], DType::F32);
    }
    let of_key = |keys: &[Array]| {
        let key = Key::from_array(keys[0].clone())?;
        Ok(vec![random::bits(&key, &[v], 4)?])
    };
    let bits = vmap_with(of_key, std::slice::from_ref(keys), &[Some(0)], &[Some(0)])?.remove(0);
    let u = bits
        .astype(DType::F32)?
        .add(0.5f32)?
        .multiply(f32::powi(2.0, -32))?;
    // `-ln(1 - u)`, an exponentially distributed variable. MLX's `log1p` is eight times as slow as `log` on the CPU.
    // Where `1 - u` loses digits, two terms of the series are exact enough.
    let rest = u.negative()?.add(1.0f32)?.maximum(f32::powi(2.0, -24))?;
    let series = u.multiply(0.5f32)?.add(1.0f32)?.multiply(&u)?;
    let exponential = u
        .less(f32::powi(2.0, -8))?
        .select(&series, &rest.log()?.negative()?)?;
    exponential.log()?.negative()
}

/// Which of the logits `x` `[B, V]` (F32) may be drawn, as Bool; `None` if all may.
fn keep(x: &Array, rows: &[Draw]) -> Result<Option<Array>> {
    let [_, v] = x.dims()?;
    let mut kept = None;
    // The largest logits, as many as the largest top-k of the batch keeps.
    let reach = rows.iter().filter_map(|row| row.count(v)).max();
    let sorted = match reach {
        Some(reach) => Some(fast::top(x, reach as usize)?.1),
        None => None,
    };
    if rows.iter().any(|row| row.nucleus().is_some()) {
        // If every row with top-p has top-k too, no other logits can be kept.
        let few = rows
            .iter()
            .all(|row| row.nucleus().is_none() || row.count(v).is_some());
        let p = column(rows, |row| row.nucleus().unwrap_or(1.0))?;
        let least = match &sorted {
            Some(sorted) if few => top_p(x, sorted, &p)?,
            _ => fast::nucleus(x, &p)?,
        };
        let filters = flags(rows, |row| row.nucleus().is_some())?;
        let least = filters.select(&least, f32::NEG_INFINITY)?;
        kept = both(kept, x.greater_equal(&least)?)?;
    }
    if let Some(sorted) = &sorted {
        kept = both(kept, top_k(x, sorted, rows)?)?;
    }
    if rows.iter().any(|row| row.reach().is_some()) {
        let least = column(rows, |row| row.reach().unwrap_or(f32::NEG_INFINITY))?;
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

/// The least logit of each row, F32 `[B, 1]`, that is kept: in descending order, those whose
/// predecessors have less than `p` together. `sorted` has the largest logits, descending; the
/// result is at least its last one.
fn top_p(x: &Array, sorted: &Array, p: &Array) -> Result<Array> {
    let probabilities = sorted.subtract(&x.logsumexp(-1, true)?)?.exp()?;
    let inside = probabilities.cumsum_with(-1, false, false)?.less(p)?;
    inside.select(sorted, f32::INFINITY)?.min(-1, true)
}

fn top_k(x: &Array, sorted: &Array, rows: &[Draw]) -> Result<Array> {
    let [b, v] = x.dims()?;
    let counts: Vec<i32> = rows.iter().map(|row| row.count(v).unwrap_or(v)).collect();
    let last: Vec<i32> = rows
        .iter()
        .map(|row| row.count(v).map_or(0, |count| count - 1))
        .collect();
    let threshold = sorted.take_along_axis(&Array::from_slice(&last, &[b, 1])?, -1)?;
    let above = x.greater(&threshold)?;
    let equal = x.equal(&threshold)?;
    let n_above = above.astype(DType::I32)?.sum(-1, true)?;
    let rank = equal.astype(DType::I32)?.cumsum(-1)?.add(&n_above)?;
    let first = equal.logical_and(&rank.less_equal(&Array::from_slice(&counts, &[b, 1])?)?)?;
    let unfiltered = flags(rows, |row| row.count(v).is_none())?;
    above.logical_or(&first)?.logical_or(&unfiltered)
}
