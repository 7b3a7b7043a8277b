//! Forward passes: rows of tokens through a model and its cache. All computation with a model uses these functions.

use mlx_core::fast::{self, Form, Op};
use mlx_core::{Array, eval, memory};
use mlx_models::Model;
use mlx_nn::{ModelCache, Step};

use crate::error::Result;
use crate::work_sizes::WorkSizes;

/// Runs the layers on `tokens`, U32 `[B, L]`. Row i has `widths[i]` tokens, followed by padding. The cache keeps the
/// tokens. Returns `[B, L, E]`, lazy.
pub(crate) fn hidden(
    model: &dyn Model,
    cache: &mut ModelCache,
    tokens: &Array,
    widths: &[usize],
) -> Result<Array> {
    let mut step = begin(cache, widths)?;
    let hidden = model.hidden(tokens, &mut step)?;
    step.commit_all()?;
    Ok(hidden)
}

/// Opens a step. If it has many tokens, a GPU starts on the first layers while the host still
/// builds the graph.
fn begin<'c>(cache: &'c mut ModelCache, widths: &[usize]) -> Result<Step<'c>> {
    const MANY: usize = 1024;
    let mut step = cache.begin(widths)?;
    if step.width() * widths.len() >= MANY && fast::form(Op::Linear)? == Form::Cuda {
        step.start_early();
    }
    Ok(step)
}

/// Runs the layers on rows of any lengths. Returns the hidden state of the last token of each row:
/// `[B, E]`, lazy. For a row without tokens the values are undefined.
pub(crate) fn last_hidden(
    model: &dyn Model,
    cache: &mut ModelCache,
    rows: &[&[u32]],
) -> Result<Array> {
    let widths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
    let mut step = begin(cache, &widths)?;
    step.read_last();
    let hidden = model.hidden(&padded(rows)?, &mut step)?;
    step.commit_all()?;
    Ok(hidden.squeeze(1)?)
}

/// Computes a part of a prompt into a cache of one row, and waits for the result.
pub(crate) fn prefill(model: &dyn Model, cache: &mut ModelCache, ids: &[u32]) -> Result<()> {
    hidden(model, cache, &padded(&[ids])?, &[ids.len()])?;
    eval(cache.arrays())?;
    free_buffers()
}

/// Frees MLX's cached buffers if they take much memory: later work with other shapes cannot use
/// them.
pub(crate) fn free_buffers() -> Result<()> {
    if memory::cached()? > WorkSizes::of_device().free_bytes {
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
