//! Forward passes: rows of tokens through a model and its cache. All computation with a model uses these functions.

use mlx_core::{Array, eval, memory};
use mlx_models::Model;
use mlx_nn::ModelCache;

use crate::error::Result;
use crate::portions::Portions;

/// Runs the layers on `tokens`, U32 `[B, L]`. Row i has `widths[i]` tokens, followed by padding. The cache keeps the
/// tokens. Returns `[B, L, E]`, lazy.
pub(crate) fn hidden(
    model: &dyn Model,
    cache: &mut ModelCache,
    tokens: &Array,
    widths: &[usize],
) -> Result<Array> {
    let mut step = cache.begin(widths)?;
    let hidden = model.hidden(tokens, &mut step)?;
    step.commit_all()?;
    Ok(hidden)
}

/// Runs the layers on rows of any lengths. Returns the hidden state of the last token of each row: `[B, E]`, lazy. That of
/// a row without tokens is any.
pub(crate) fn last_hidden(
    model: &dyn Model,
    cache: &mut ModelCache,
    rows: &[&[u32]],
) -> Result<Array> {
    let widths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
    let hidden = hidden(model, cache, &padded(rows)?, &widths)?;
    last(&hidden, &widths)
}

/// The last of the first `widths[b]` positions of each row: `[B, L, E] -> [B, E]`. Of a row without any it is the first.
pub(crate) fn last(hidden: &Array, widths: &[usize]) -> Result<Array> {
    let [b, l, e] = hidden.dims()?;
    if widths.iter().all(|&width| width as i32 == l) {
        return Ok(hidden.slice_axis(1, l - 1, l)?.squeeze(1)?);
    }
    let last: Vec<i32> = widths
        .iter()
        .map(|&width| width.saturating_sub(1) as i32)
        .collect();
    let last = Array::from_slice(&last, &[b, 1, 1])?.broadcast_to(&[b, 1, e])?;
    Ok(hidden.take_along_axis(&last, 1)?.squeeze(1)?)
}

/// Computes a part of a prompt into a cache of one row, and waits for it.
pub(crate) fn prefill(model: &dyn Model, cache: &mut ModelCache, ids: &[u32]) -> Result<()> {
    hidden(model, cache, &padded(&[ids])?, &[ids.len()])?;
    eval(cache.arrays())?;
    free_buffers()
}

/// Frees the buffers of earlier work, if they take much memory: work of other sizes cannot use them.
pub(crate) fn free_buffers() -> Result<()> {
    if memory::cached()? > Portions::of_device().free_bytes {
        memory::clear_cache()?;
    }
    Ok(())
}

/// Rows of tokens as one array, padded on the right: U32 `[B, L]`.
pub(crate) fn padded(rows: &[&[u32]]) -> Result<Array> {
    let width = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let mut flat = Vec::with_capacity(rows.len() * width);
    for row in rows {
        flat.extend_from_slice(row);
        flat.extend(std::iter::repeat_n(0, width - row.len()));
    }
    Ok(Array::from_slice(
        &flat,
        &[rows.len() as i32, width as i32],
    )?)
}
