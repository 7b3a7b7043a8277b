//! Measures how well a model predicts: loss, perplexity, accuracy.

use mlx_infer::not_finite;
use mlx_models::Model;
use mlx_nn::CacheOptions;
use mlx_nn::shard::Ranks;
use serde::Serialize;

use crate::batch::{Batch, Example};
use crate::error::{Error, Result, argument};
use crate::feed::Feed;
use crate::loss::sum_loss_and_right;

/// The result of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// The weighted mean of the negative log-probabilities of the learnt tokens.
    pub loss: f64,
    /// `exp(loss)`
    pub perplexity: f64,
    /// The fraction of the learnt tokens for which the model's likeliest token is right.
    pub token_accuracy: f64,
    /// The fraction of the examples in which every learnt token is the model's likeliest: on
    /// labelled data, the fraction of correct labels.
    pub accuracy: f64,
    /// The number of examples.
    pub examples: usize,
    /// The number of their tokens that counted.
    pub tokens: usize,
}

/// Evaluates a model on `batches` batches of the examples, or on all of them. The head runs only on the places that
/// count, as in training's [`sum_loss`](crate::loss::sum_loss); with `ce_chunk` it runs on this many tokens of the
/// vocabulary at a time.
///
/// # Errors
/// There is no example, or the model refuses one.
pub fn evaluate(
    model: &dyn Model,
    examples: &[Example],
    batch_size: usize,
    batches: Option<usize>,
    ce_chunk: Option<i32>,
) -> Result<Evaluation> {
    let found = sums(model, examples, batch_size, batches, ce_chunk, Ranks::ALONE)?;
    if found.tokens == 0 {
        return Err(nothing());
    }
    let loss = found.loss / found.weight;
    Ok(Evaluation {
        loss,
        perplexity: loss.exp(),
        token_accuracy: found.right as f64 / found.tokens as f64,
        accuracy: found.right_rows as f64 / found.rows as f64,
        examples: found.rows,
        tokens: found.tokens,
    })
}

/// The sums of an evaluation over batches.
#[derive(Default)]
pub(crate) struct Sums {
    /// The losses of the tokens, each times its weight.
    pub loss: f64,
    pub weight: f64,
    right: usize,
    tokens: usize,
    rows: usize,
    right_rows: usize,
}

pub(crate) fn nothing() -> Error {
    argument("there is no example to evaluate")
}

/// The sums over the batches that a rank evaluates, of those that [`evaluate`] does.
pub(crate) fn sums(
    model: &dyn Model,
    examples: &[Example],
    batch_size: usize,
    batches: Option<usize>,
    ce_chunk: Option<i32>,
    ranks: Ranks,
) -> Result<Sums> {
    let plan = Feed::in_order(examples, batch_size);
    let plan = plan.iter().take(batches.unwrap_or(usize::MAX));
    let mut sums = Sums::default();
    for batch in plan.skip(ranks.rank()).step_by(ranks.size()) {
        let examples = batch.iter().map(|&index| [&examples[index]]);
        let batch = Batch::new(examples)?;
        let (sum, judged) = sum_loss_and_right(model, &batch, ce_chunk)?;
        mlx_core::eval([&sum, &judged])?;
        sums.loss += f64::from(sum.item::<f32>()?);
        sums.weight += batch.weight;
        sums.tokens += batch.learnt;
        let width = batch.targets.dim(1)? as usize;
        let mut faultless = vec![true; batch.documents.len()];
        let places = batch.places.to_vec::<u32>()?;
        for (place, good) in places.into_iter().zip(judged.to_vec::<bool>()?) {
            sums.right += usize::from(good);
            faultless[place as usize / width] &= good;
        }
        sums.rows += faultless.len();
        sums.right_rows += faultless.into_iter().filter(|&good| good).count();
    }
    Ok(sums)
}

/// Checks the result of an evaluation of these examples.
///
/// # Errors
/// The loss is NaN, because the model's logits are not finite. The error names their origin, which takes a second, slow
/// pass.
pub fn check(
    found: &Evaluation,
    model: &dyn Model,
    examples: &[Example],
    ce_chunk: Option<i32>,
) -> Result<()> {
    if !found.loss.is_nan() {
        return Ok(());
    }
    let mut tokens: &[u32] = &[];
    for example in examples.iter().filter(|example| !example.tokens.is_empty()) {
        tokens = &example.tokens;
        let alone = evaluate(model, std::slice::from_ref(example), 1, None, ce_chunk);
        if alone.is_ok_and(|alone| alone.loss.is_nan()) {
            break;
        }
    }
    Err(not_finite(model, CacheOptions::default(), tokens))
}
