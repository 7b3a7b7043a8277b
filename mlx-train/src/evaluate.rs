//! How well a model predicts: loss, perplexity, accuracy.

use mlx_core::DType;
use mlx_models::Model;
use mlx_nn::loss::cross_entropy;
use serde::Serialize;

use crate::batch::{Batch, Example};
use crate::error::{Result, argument};
use crate::feed::Feed;
use crate::loss::logits;

/// What an evaluation finds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// The mean negative log-probability of the learnt tokens.
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

/// Evaluates a model on examples, `batches` batches of them or all.
///
/// # Errors
/// There is no example, or the model refuses one.
pub fn evaluate(
    model: &dyn Model,
    examples: &[Example],
    batch_size: usize,
    batches: Option<usize>,
) -> Result<Evaluation> {
    let plan = Feed::in_order(examples, batch_size);
    let limit = batches.unwrap_or(usize::MAX);
    let (mut loss, mut right, mut tokens) = (0.0, 0, 0);
    let (mut rows, mut right_rows) = (0, 0);
    for batch in plan.iter().take(limit) {
        let examples = batch.iter().map(|&index| [&examples[index]]);
        let batch = Batch::new(examples)?;
        let logits = logits(model, &batch)?;
        let mask = batch.mask.astype(DType::F32)?;
        let sum = cross_entropy(&logits, &batch.targets)?
            .multiply(&mask)?
            .sum(.., false)?;
        let wrong = logits.argmax(-1, false)?.not_equal(&batch.targets)?;
        let wrong = wrong.astype(DType::F32)?.multiply(&mask)?.sum(-1, false)?;
        mlx_core::eval([&sum, &wrong])?;
        loss += f64::from(sum.item::<f32>()?);
        tokens += batch.learnt;
        right += batch.learnt;
        for wrong in wrong.to_vec::<f32>()? {
            right -= wrong as usize;
            right_rows += usize::from(wrong == 0.0);
            rows += 1;
        }
    }
    if tokens == 0 {
        return Err(argument("there is no example to evaluate"));
    }
    let loss = loss / tokens as f64;
    Ok(Evaluation {
        loss,
        perplexity: loss.exp(),
        token_accuracy: right as f64 / tokens as f64,
        accuracy: right_rows as f64 / rows as f64,
        examples: rows,
        tokens,
    })
}
