//! The loss that training minimises.

use mlx_core::{Array, Error, ErrorKind, Result};
use mlx_models::Model;
use mlx_nn::loss::{chunked_accuracy, chunked_cross_entropy, cross_entropy};
use mlx_nn::{CacheOptions, ModelCache};

use crate::batch::Batch;

/// A sequence is computed in one step, and its cache is dropped afterwards.
pub(crate) const ONE_STEP: CacheOptions = CacheOptions {
    growth: 1,
    slack: 0,
    max_context: None,
    store: false,
    quantized: None,
};

/// The sum of the negative log-probabilities of all tokens of a batch that are learnt, each times
/// its weight: an F32 scalar. The head runs on those places only.
///
/// A sum, and not a mean: the sums of several batches add up to that of the large batch, for any number of tokens in each.
///
/// With `ce_chunk` the head runs on so many tokens of the vocabulary at a time, and `[B, L, V]` logits
/// never exist: see [`chunked_cross_entropy`].
///
/// # Errors
/// The model refuses the batch, or learns nothing from it.
pub fn sum_loss(model: &dyn Model, batch: &Batch, ce_chunk: Option<i32>) -> Result<Array> {
    let (hidden, targets, weights) = learnt(model, batch)?;
    head_losses(model, &hidden, &targets, ce_chunk)?
        .multiply(weights)?
        .sum(.., false)
}

/// The head's input at the learnt places, the targets there and their weights: `[N, E]`, `[N]`, `[N]`; where all are
/// learnt, `[B, L, E]`, `[B, L]`, `[B, L]`.
fn learnt(model: &dyn Model, batch: &Batch) -> Result<(Array, Array, Array)> {
    let hidden = hidden(model, batch)?;
    let (targets, weights) = (&batch.targets, &batch.weights);
    if batch.learnt == targets.size() {
        return Ok((hidden, targets.clone(), weights.clone()));
    }
    let width = hidden.dim(-1)?;
    let chosen = |array: &Array| array.flatten(0, -1)?.take(&batch.places, 0);
    Ok((
        hidden.reshape(&[-1, width])?.take(&batch.places, 0)?,
        chosen(targets)?,
        chosen(weights)?,
    ))
}

/// The result of [`sum_loss`], and for each place of `batch.places` whether its target is the likeliest token: an F32
/// scalar and bool `[N]`.
///
/// # Errors
/// As there.
pub(crate) fn sum_loss_and_right(
    model: &dyn Model,
    batch: &Batch,
    ce_chunk: Option<i32>,
) -> Result<(Array, Array)> {
    let (hidden, targets, weights) = learnt(model, batch)?;
    let (losses, right) = match ce_chunk {
        None => {
            let logits = model.logits(&hidden)?;
            let right = logits.argmax(-1, false)?.equal(&targets)?;
            (cross_entropy(&logits, &targets)?, right)
        }
        Some(chunk) => chunked_accuracy(&hidden, &targets, &model.head(), chunk)?,
    };
    let sum = losses.multiply(weights)?.sum(.., false)?;
    Ok((sum, right.flatten(0, -1)?))
}

/// The negative log-probability of each target, from the head's input: `[.., E]`, `[..]` -> F32 `[..]`.
pub(crate) fn head_losses(
    model: &dyn Model,
    hidden: &Array,
    targets: &Array,
    ce_chunk: Option<i32>,
) -> Result<Array> {
    match ce_chunk {
        None => cross_entropy(&model.logits(hidden)?, targets),
        Some(chunk) => chunked_cross_entropy(hidden, targets, &model.head(), chunk),
    }
}

/// The logits at each place, `[B, L, V]`.
///
/// # Errors
/// As [`sum_loss`].
pub fn logits(model: &dyn Model, batch: &Batch) -> Result<Array> {
    model.logits(&hidden(model, batch)?)
}

/// The head's input, `[B, L, E]`.
fn hidden(model: &dyn Model, batch: &Batch) -> Result<Array> {
    check(model, batch)?;
    let mut cache = ModelCache::new(model.layers(), batch.documents.len(), ONE_STEP);
    let mut step = cache.begin_packed(&batch.documents)?;
    model.hidden(&batch.inputs, &mut step)
}

/// Refuses a batch that a model cannot learn from.
pub(crate) fn check(model: &dyn Model, batch: &Batch) -> Result<()> {
    if batch.learnt == 0 {
        let message = "no token of the batch is learnt";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    if let Some(limit) = model.switches_after()
        && batch.is_packed()
        && batch.widths().iter().any(|&width| width > limit)
    {
        // LongRoPE embeds a row by its length, and the documents of a packed one are shorter.
        let message = format!("rows of more than {limit} tokens cannot be packed for this model");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(())
}
