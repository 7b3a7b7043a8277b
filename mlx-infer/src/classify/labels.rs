//! Scores of labels after a text.
//!
//! A label's score is the sum of the log probabilities of its tokens, each given the tokens before it. The labels of a
//! batch share the cache of its texts: each label is one step of the cache, which is then rolled back.

use mlx_core::{Array, fast};
use mlx_nn::ModelCache;

use super::{Encoded, Item};
use crate::error::{Error, Result};
use crate::forward::padded;
use crate::generate::Prompt;
use crate::model::LoadedModel;
use crate::text::tokenizer::Tokenizer;

/// The scores of the labels after a text.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelScores {
    /// The index of the likeliest label, the first of equal ones.
    pub best: usize,
    /// The log probability of each label, in the order in which they were given: the sum of those of its
    /// tokens.
    pub logprobs: Vec<f64>,
    /// The same as probabilities that add up to 1.
    pub probabilities: Vec<f64>,
}

impl LabelScores {
    pub(super) fn new(logprobs: Vec<f64>) -> Self {
        let mut best = 0;
        for (at, logprob) in logprobs.iter().enumerate() {
            if *logprob > logprobs[best] {
                best = at;
            }
        }
        let most = logprobs.get(best).copied().unwrap_or(0.0);
        let weights: Vec<f64> = logprobs.iter().map(|lp| (lp - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        Self {
            best,
            probabilities: weights.into_iter().map(|weight| weight / total).collect(),
            logprobs,
        }
    }
}

/// The ids of a text, and those of each label behind it.
///
/// A label is encoded together with the text, because the tokens at the border may depend on both. If they do, the text
/// ends before them, and they count as part of each label.
pub(super) fn encode(
    tokenizer: Option<&Tokenizer>,
    prompt: Prompt,
    labels: &[String],
    add_special: bool,
) -> Encoded {
    let empty = || Error::argument("the text is empty; expected at least one token");
    let (mut ids, mut wholes) = match (prompt, tokenizer) {
        (Prompt::Tokens(ids), _) if labels.is_empty() => (ids, Vec::new()),
        (Prompt::Tokens(ids), Some(tokenizer)) => {
            let whole = |label: &String| {
                let label = tokenizer.encode(label, false)?;
                Ok([&ids[..], &label].concat())
            };
            let wholes = labels.iter().map(whole).collect::<Result<Vec<_>>>()?;
            (ids, wholes)
        }
        (Prompt::Text(text), Some(tokenizer)) => {
            if text.is_empty() {
                return Err(empty());
            }
            let whole = |label: &String| tokenizer.encode(&format!("{text}{label}"), add_special);
            let wholes = labels.iter().map(whole).collect::<Result<Vec<_>>>()?;
            (tokenizer.encode(&text, add_special)?, wholes)
        }
        (_, None) => return Err(Error::argument("a text needs a tokenizer")),
    };
    if ids.is_empty() {
        return Err(empty());
    }
    let context = wholes.iter().fold(ids.len(), |context, whole| {
        let same = ids.iter().zip(whole).take_while(|(a, b)| a == b).count();
        context.min(same)
    });
    if context == 0 {
        let message =
            "the text and a label have no token that tells them apart; put a word before the label";
        return Err(Error::argument(message));
    }
    ids.truncate(context);
    for (whole, label) in wholes.iter_mut().zip(labels) {
        whole.drain(..context);
        if whole.is_empty() {
            return Err(Error::argument(format!(
                "label {label:?} has no token behind the text"
            )));
        }
    }
    Ok((ids, wholes))
}

impl LoadedModel {
    /// The log probability of the first token of each label of each item. `logits`: `[B, V]` after the texts.
    pub(super) fn first_of_labels(&self, items: &[&Item], logits: &Array) -> Result<Vec<Vec<f64>>> {
        let most = items.iter().map(|item| item.labels.len()).max();
        let most = most.unwrap_or(0);
        if most == 0 {
            return Ok(vec![Vec::new(); items.len()]);
        }
        // Texts with fewer labels are padded.
        let firsts = items.iter().flat_map(|item| {
            let firsts = item.labels.iter().map(|label| label[0]);
            firsts.chain(std::iter::repeat(0)).take(most)
        });
        let firsts: Vec<u32> = firsts.collect();
        let firsts = Array::from_slice(&firsts, &[items.len() as i32, most as i32])?;
        let logprobs = logits
            .take_along_axis(&firsts, -1)?
            .subtract(&fast::logsumexp(logits)?.expand_dims(-1)?)?
            .to_vec::<f32>()?;
        let rows = items.iter().zip(logprobs.chunks(most));
        Ok(rows
            .map(|(item, row)| {
                row[..item.labels.len()]
                    .iter()
                    .map(|&lp| f64::from(lp))
                    .collect()
            })
            .collect())
    }

    /// Adds the log probabilities of the other tokens of one label that has several tokens after some text. `cache`
    /// holds the texts.
    pub(super) fn add_rest_of(
        &self,
        label: usize,
        items: &[&Item],
        cache: &mut ModelCache,
        scores: &mut [Vec<f64>],
    ) -> Result<()> {
        let inputs: Vec<&[u32]> = items
            .iter()
            .map(|item| {
                let ids = item.labels.get(label).map_or(&[][..], Vec::as_slice);
                &ids[..ids.len().saturating_sub(1)]
            })
            .collect();
        let widths: Vec<usize> = inputs.iter().map(|ids| ids.len()).collect();
        let mut step = cache.begin(&widths)?;
        let hidden = self.model().hidden(&padded(&inputs)?, &mut step)?;
        // Rolled back, because the next label starts at the same position.
        drop(step);
        let [_, width, e] = hidden.dims()?;
        let (mut places, mut targets) = (Vec::new(), Vec::new());
        for (row, item) in items.iter().enumerate() {
            places.extend((0..widths[row]).map(|at| row as i32 * width + at as i32));
            targets.extend(item.labels.get(label).into_iter().flat_map(|ids| &ids[1..]));
        }
        let places = Array::from_slice(&places, &[places.len() as i32])?;
        let hidden = hidden.reshape(&[-1, e])?.take(&places, 0)?.expand_dims(0)?;
        let mut logprobs = Vec::with_capacity(targets.len());
        self.score_chunk(&hidden, &targets, &mut logprobs)?;
        let mut logprobs = logprobs.into_iter();
        for (row, &width) in widths.iter().enumerate() {
            let of_row = logprobs.by_ref().take(width).flatten();
            if let Some(score) = scores[row].get_mut(label) {
                *score += of_row.map(f64::from).sum::<f64>();
            }
        }
        Ok(())
    }
}
