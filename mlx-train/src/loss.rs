//! What a model's training minimises.

use mlx_core::{Array, DType, Error, ErrorKind, Result};
use mlx_models::Model;
use mlx_nn::loss::cross_entropy;
use mlx_nn::{CacheOptions, ModelCache};

use crate::batch::Batch;

/// Whole sequences are read in one step, after which nothing is remembered.
pub(crate) const ONE_STEP: CacheOptions = CacheOptions {
    growth: 1,
    slack: 0,
    max_context: None,
    store: false,
};

/// The sum of the negative log-probabilities of all tokens of a batch that are learnt: an F32 scalar.
///
/// A sum, and not a mean: sums of several batches add up to that of the large batch, whatever the
/// number of tokens in each.
///
/// # Errors
/// The model refuses the batch, or learns nothing from it.
pub fn sum_loss(model: &dyn Model, batch: &Batch) -> Result<Array> {
    let losses = token_losses(model, batch)?;
    losses
        .multiply(batch.mask.astype(DType::F32)?)?
        .sum(.., false)
}

/// The negative log-probability of each target, F32 `[B, L]`, also where the mask is false.
///
/// # Errors
/// As [`sum_loss`].
pub fn token_losses(model: &dyn Model, batch: &Batch) -> Result<Array> {
    cross_entropy(&logits(model, batch)?, &batch.targets)
}

/// The logits at each place, `[B, L, V]`.
///
/// # Errors
/// As [`sum_loss`].
pub fn logits(model: &dyn Model, batch: &Batch) -> Result<Array> {
    check(model, batch)?;
    let mut cache = ModelCache::new(model.layers(), batch.documents.len(), ONE_STEP);
    let mut step = cache.begin_packed(&batch.documents)?;
    let hidden = model.hidden(&batch.inputs, &mut step)?;
    model.logits(&hidden)
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
