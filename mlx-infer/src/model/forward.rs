//! Forward passes: rows of tokens through a model and its cache. All computation with a model uses these functions.

use std::sync::OnceLock;

use mlx_core::fast::{self, Form, Op};
use mlx_core::{Array, Device, DeviceKind, eval, memory};
use mlx_models::Model;
use mlx_nn::lora::{RowAdapter, TokenAdapters, with_adapters};
use mlx_nn::{ModelCache, Step};

use crate::error::Result;
use crate::work_sizes::WorkSizes;

/// Runs the layers on rows of any lengths. The cache keeps the tokens. Returns the features of all
/// tokens, row after row: `[1, T, E]`, lazy.
pub(crate) fn hidden(model: &dyn Model, cache: &mut ModelCache, rows: &[&[u32]]) -> Result<Array> {
    let widths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
    let mut step = cache.begin(&widths)?;
    start_early(&mut step)?;
    let hidden = model.hidden(&flat(rows)?, &mut step)?;
    step.commit_all()?;
    Ok(hidden)
}

/// If a step has more than a few tokens, a GPU starts on the first layers while the host still builds the
/// graph, which takes about as long as the layers of a hundred tokens.
fn start_early(step: &mut Step<'_>) -> Result<()> {
    const MANY: usize = 64;
    if step.tokens() >= MANY && fast::form(Op::Linear)? == Form::Cuda {
        step.start_early();
    }
    Ok(())
}

/// Runs the layers on rows of any lengths. Returns the hidden state of the last token of each row:
/// `[B, E]`, lazy. For a row without tokens the values are undefined.
pub(crate) fn last_hidden(
    model: &dyn Model,
    cache: &mut ModelCache,
    rows: &[&[u32]],
) -> Result<Array> {
    last_hidden_with(model, cache, rows, &[])
}

/// [`last_hidden`] of rows with these adapters, one or none for each row. An empty list stands for no adapter.
pub(crate) fn last_hidden_with(
    model: &dyn Model,
    cache: &mut ModelCache,
    rows: &[&[u32]],
    adapters: &[Option<RowAdapter>],
) -> Result<Array> {
    let widths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
    let all = 0..cache.kinds().len();
    // A row without tokens has a place too, whose token may be any.
    let mut step = cache.begin_slots(all, None, &widths)?;
    start_early(&mut step)?;
    step.read_last();
    let rows = rows
        .iter()
        .map(|row| if row.is_empty() { &[0][..] } else { row });
    let tokens = flat(&rows.collect::<Vec<&[u32]>>())?;
    let adapters = TokenAdapters::of_step(&step, adapters)?;
    let hidden = with_adapters(adapters.as_ref(), || model.hidden(&tokens, &mut step))?;
    step.commit_all()?;
    Ok(hidden.squeeze(0)?)
}

/// Computes a part of a prompt into a cache of one row, and waits for the result.
pub(crate) fn prefill(model: &dyn Model, cache: &mut ModelCache, ids: &[u32]) -> Result<()> {
    hidden(model, cache, &[ids])?;
    eval(cache.arrays())?;
    free_buffers()
}

/// Frees MLX's cached buffers if they take much memory: later work with other shapes cannot use
/// them. A GPU with memory of its own has a limit for them ([`memory`](super::memory)). Freeing them would
/// stop it for tens of milliseconds.
pub(crate) fn free_buffers() -> Result<()> {
    static HAS_LIMIT: OnceLock<bool> = OnceLock::new();
    let has_limit = || matches!(memory::of_device(), Ok(Some(_)));
    let is_gpu = Device::default_device()?.kind == DeviceKind::Gpu;
    if is_gpu && *HAS_LIMIT.get_or_init(has_limit) {
        return Ok(());
    }
    if memory::cached()? > WorkSizes::of_device().free_bytes {
        memory::clear_cache()?;
    }
    Ok(())
}

/// The tokens of all rows, row after row: U32 `[1, T]`.
pub(crate) fn flat(rows: &[&[u32]]) -> Result<Array> {
    let flat = rows.concat();
    Ok(Array::from_slice(&flat, &[1, flat.len() as i32])?)
}
