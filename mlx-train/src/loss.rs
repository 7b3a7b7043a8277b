//! The loss that training minimises.

use mlx_core::{Array, Error, ErrorKind, Result};
use mlx_models::{Model, TrainableHead};
use mlx_nn::loss::{chunked_accuracy, chunked_cross_entropy, cross_entropy};
use mlx_nn::{CacheOptions, LayerKind, ModelCache};

use crate::batch::Batch;

/// A sequence is computed in one step, and its cache is dropped afterwards.
pub(crate) const ONE_STEP: CacheOptions = CacheOptions {
    slack: 0,
    max_context: None,
    store: false,
    quantized: None,
};

/// The sum of the negative log-probabilities of all learnt tokens of a batch, each times its weight: an F32 scalar. The
/// head runs only on their places.
///
/// It is a sum and not a mean, so that the sums of several batches add up to that of one large batch, for any number of
/// tokens in each.
///
/// With `ce_chunk` the head runs on this many tokens of the vocabulary at a time, and `[B, L, V]` logits never exist:
/// see [`chunked_cross_entropy`].
///
/// # Errors
/// The model refuses the batch, or nothing in it is learnt.
pub fn sum_loss(model: &dyn Model, batch: &Batch, ce_chunk: Option<i32>) -> Result<Array> {
    let (hidden, targets, weights) = learnt(&hidden(model, batch)?, batch)?;
    head_losses(model, &hidden, &targets, ce_chunk)?
        .multiply(weights)?
        .sum(.., false)
}

/// The loss of a head for multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2). From the features of a
/// position and the next token, the head predicts the token after that.
#[derive(Clone, Debug)]
pub struct Ahead {
    /// The next tokens, U32 `[B, L]`.
    next: Array,
    /// The batch with the tokens behind those as targets.
    batch: Batch,
    factor: f32,
}

impl Ahead {
    /// The head's loss on `batch`, times `factor`.
    ///
    /// # Errors
    /// The model has no head that predicts tokens.
    pub fn new(model: &dyn Model, batch: &Batch, factor: f32) -> Result<Self> {
        check_ahead(model)?;
        Ok(Self {
            next: batch.targets.clone(),
            batch: batch.ahead()?,
            factor,
        })
    }

    /// The sum of the negative log-probabilities of all learnt tokens, each times its weight: an F32 scalar. `hidden`
    /// are the features after the model's final norm, `[B, L, E]` or `[1, B L, E]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub(crate) fn sum_loss(
        &self,
        model: &dyn Model,
        hidden: &Array,
        ce_chunk: Option<i32>,
    ) -> Result<Array> {
        if self.batch.learnt == 0 {
            return Array::scalar(0.0f32);
        }
        let rows = self.batch.rows()?;
        let mut cache = ModelCache::new(&[LayerKind::Full], rows.len(), ONE_STEP);
        let mut step = cache.begin(&rows)?;
        let head = trainable_head(model)?;
        let next = self.next.reshape(&[1, -1])?;
        let features = head.ahead(&next, &on_one_axis(hidden)?, &mut step)?;
        let features = by_row(&features, &self.batch)?;
        let (features, targets, weights) = learnt(&features, &self.batch)?;
        head_losses(model, &features, &targets, ce_chunk)?
            .multiply(weights)?
            .sum(.., false)
    }

    /// The factor of the head's loss when it is added to the model's.
    pub(crate) fn factor(&self) -> f32 {
        self.factor
    }

    /// The sum of the weights of the tokens that the head learns.
    pub(crate) fn weight(&self) -> f64 {
        self.batch.weight
    }
}

/// Refuses a model without a head that can be trained.
///
/// # Errors
/// It has none.
pub fn check_ahead(model: &dyn Model) -> Result<()> {
    trainable_head(model).map(|_| ())
}

fn trainable_head(model: &dyn Model) -> Result<&dyn TrainableHead> {
    model.trainable_head().ok_or_else(|| {
        let message = "mtp: the model has no head for multi-token prediction of one layer";
        Error::new(ErrorKind::Unsupported, message)
    })
}

/// The result of [`sum_loss`] and of the head's loss: `[model + factor * head, model, head]`, F32 scalars.
///
/// # Errors
/// The same as those of [`sum_loss`], or the model has no head.
pub fn sum_losses(
    model: &dyn Model,
    batch: &Batch,
    ahead: &Ahead,
    ce_chunk: Option<i32>,
) -> Result<Vec<Array>> {
    let hidden = hidden(model, batch)?;
    let (features, targets, weights) = learnt(&hidden, batch)?;
    let loss = head_losses(model, &features, &targets, ce_chunk)?
        .multiply(weights)?
        .sum(.., false)?;
    let of_head = ahead.sum_loss(model, &hidden, ce_chunk)?;
    let total = loss.add(&of_head.multiply(ahead.factor)?)?;
    Ok(vec![total, loss, of_head])
}

/// The head's input at the learnt places, the targets there and their weights: `[N, E]`, `[N]`, `[N]`; where all are
/// learnt, `[B, L, E]`, `[B, L]`, `[B, L]`.
fn learnt(hidden: &Array, batch: &Batch) -> Result<(Array, Array, Array)> {
    let (targets, weights) = (&batch.targets, &batch.weights);
    if batch.learnt == targets.size() {
        return Ok((hidden.clone(), targets.clone(), weights.clone()));
    }
    let width = hidden.dim(-1)?;
    let chosen = |array: &Array| array.flatten()?.take(&batch.places, 0);
    Ok((
        hidden.reshape(&[-1, width])?.take(&batch.places, 0)?,
        chosen(targets)?,
        chosen(weights)?,
    ))
}

/// The result of [`sum_loss`], and for each of `batch.places` whether its target is the likeliest token: an F32 scalar
/// and bool `[N]`.
///
/// # Errors
/// The same as those of [`sum_loss`].
pub(crate) fn sum_loss_and_right(
    model: &dyn Model,
    batch: &Batch,
    ce_chunk: Option<i32>,
) -> Result<(Array, Array)> {
    let (hidden, targets, weights) = learnt(&hidden(model, batch)?, batch)?;
    let (losses, right) = match ce_chunk {
        None => {
            let logits = model.logits(&hidden)?;
            let right = logits.argmax(-1, false)?.equal(&targets)?;
            (cross_entropy(&logits, &targets)?, right)
        }
        Some(chunk) => chunked_accuracy(&hidden, &targets, &model.head(), chunk)?,
    };
    let sum = losses.multiply(weights)?.sum(.., false)?;
    Ok((sum, right.flatten()?))
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
    let rows = batch.rows()?;
    let mut cache = ModelCache::new(model.states(), rows.len(), ONE_STEP);
    let mut step = cache.begin(&rows)?;
    let hidden = model.hidden(&batch.inputs.reshape(&[1, -1])?, &mut step)?;
    by_row(&hidden, batch)
}

/// `[B, L, E] -> [1, B L, E]`
fn on_one_axis(features: &Array) -> Result<Array> {
    features.reshape(&[1, -1, features.dim(-1)?])
}

/// `[1, B L, E] -> [B, L, E]`
fn by_row(features: &Array, batch: &Batch) -> Result<Array> {
    let [rows, width] = batch.inputs.dims()?;
    features.reshape(&[rows, width, -1])
}

/// Refuses a batch that a model cannot learn from.
pub(crate) fn check(model: &dyn Model, batch: &Batch) -> Result<()> {
    if batch.learnt == 0 {
        let message = "no token of the batch is learnt";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    if let Some(limit) = model.switches_after().or(model.grows_after())
        && batch.is_packed()
        && batch.widths().iter().any(|&width| width > limit)
    {
        // LongRoPE and dynamic NTK embed a row by its length, but the documents of a packed row are shorter than the row.
        let message = format!("rows of more than {limit} tokens cannot be packed for this model");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(())
}
