//! How well a model predicts: loss, perplexity, accuracy.

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
    /// The mean negative log-probability of the learnt tokens, by their weights.
    pub loss: f64,
    /// `exp(loss)`
    pub perplexity: f64,
    /// The part of the learnt tokens that are the likeliest.
    pub token_accuracy: f64,
    /// The part of the examples all of whose learnt tokens are the likeliest: on labelled data, how
    /// many labels are right.
    pub accuracy: f64,
    /// How many examples there were.
    pub examples: usize,
    /// How many tokens of theirs counted.
    pub tokens: usize,
}

/// Evaluates a model on examples, `batches` batches of them or all. The head runs on the places that
/// count, as in training's [`sum_loss`](crate::loss::sum_loss), and with `ce_chunk` on so many tokens of
/// the vocabulary at a time.
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

/// Checks an evaluation of these examples, all of them.
///
/// # Errors
/// The loss is NaN: the model's logits are not finite. The error names their origin, which takes a second, slow pass.
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
