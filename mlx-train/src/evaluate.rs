//! Measures how well a model predicts: loss, perplexity, accuracy.

use mlx_infer::not_finite;
use mlx_models::Model;
use mlx_nn::CacheOptions;
use serde::Serialize;

use crate::batch::{Batch, Example};
use crate::error::{Result, argument};
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
    let plan = Feed::in_order(examples, batch_size);
    let limit = batches.unwrap_or(usize::MAX);
    let (mut loss, mut weight, mut right, mut tokens) = (0.0, 0.0, 0, 0);
    let (mut rows, mut right_rows) = (0, 0);
    for batch in plan.iter().take(limit) {
        let examples = batch.iter().map(|&index| [&examples[index]]);
        let batch = Batch::new(examples)?;
        let (sum, judged) = sum_loss_and_right(model, &batch, ce_chunk)?;
        mlx_core::eval([&sum, &judged])?;
        loss += f64::from(sum.item::<f32>()?);
        weight += batch.weight;
        tokens += batch.learnt;
        let width = batch.targets.dim(1)? as usize;
        let mut faultless = vec![true; batch.documents.len()];
        let places = batch.places.to_vec::<u32>()?;
        for (place, good) in places.into_iter().zip(judged.to_vec::<bool>()?) {
            right += usize::from(good);
            faultless[place as usize / width] &= good;
        }
        rows += faultless.len();
        right_rows += faultless.into_iter().filter(|&good| good).count();
    }
    if tokens == 0 {
        return Err(argument("there is no example to evaluate"));
    }
    let loss = loss / weight;
    Ok(Evaluation {
        loss,
        perplexity: loss.exp(),
        token_accuracy: right as f64 / tokens as f64,
        accuracy: right_rows as f64 / rows as f64,
        examples: rows,
        tokens,
    })
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
