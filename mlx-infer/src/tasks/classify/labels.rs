//! Scores of labels after a text.
//!
//! A label's score is the sum of the log probabilities of its tokens, each given the tokens before it. The labels of a
//! batch share the cache of its texts: each label is one step of the cache, which is then rolled back.

use mlx_core::{Array, fast};
use mlx_nn::ModelCache;

use super::{Encoded, Item};
use crate::error::{Error, Result};
use crate::model::LoadedModel;
use crate::model::forward::flat;
use crate::request::generation::Prompt;
use crate::tasks::score::score_chunk;
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
    /// The scores of labels, from the log probabilities of their tokens. If the tokens of a label
    /// begin those of another label (`1` and `10`), the probability of the longer label is
    /// subtracted from that of the shorter one.
    pub(super) fn of(labels: &[Vec<u32>], mut logprobs: Vec<f64>) -> Self {
        let as_read = logprobs.clone();
        for (at, ids) in labels.iter().enumerate() {
            let goes_on = |other: &[u32]| other.len() > ids.len() && other.starts_with(ids);
            // Of `1`, `10` and `100`, only `10` is subtracted from `1`, because it includes `100`.
            let is_next = |other: &&Vec<u32>| {
                let between = |third: &Vec<u32>| {
                    goes_on(third) && third.len() < other.len() && other.starts_with(third)
                };
                goes_on(other) && !labels.iter().any(between)
            };
            let mut counted: Vec<&Vec<u32>> = Vec::new();
            for (other, logprob) in labels.iter().zip(&as_read) {
                if is_next(&other) && !counted.contains(&other) {
                    counted.push(other);
                    logprobs[at] = without(logprobs[at], *logprob);
                }
            }
        }
        Self::new(logprobs)
    }

    fn new(logprobs: Vec<f64>) -> Self {
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

/// The logarithm of the difference of two probabilities. If only rounding errors are left, it is
/// that of the smallest positive number.
fn without(whole: f64, part: f64) -> f64 {
    let rest = -(part - whole).exp_m1();
    let rest = if rest > 0.0 { rest } else { 0.0 };
    whole + rest.max(f64::MIN_POSITIVE).ln()
}

/// The ids of a text, and of each label after it.
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

/// The log probability of the first token of each label of each item. `logits`: `[B, V]` after the texts.
pub(super) fn first_of_labels(items: &[&Item], logits: &Array) -> Result<Vec<Vec<f64>>> {
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
    model: &LoadedModel,
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
    let hidden = model.model().hidden(&flat(&inputs)?, &mut step)?;
    // Rolled back, because the next label starts at the same position.
    drop(step);
    let labels = items.iter().filter_map(|item| item.labels.get(label));
    let targets: Vec<u32> = labels.flat_map(|ids| &ids[1..]).copied().collect();
    let mut logprobs = Vec::with_capacity(targets.len());
    score_chunk(model, &hidden, &targets, &mut logprobs)?;
    let mut logprobs = logprobs.into_iter();
    for (row, &width) in widths.iter().enumerate() {
        let of_row = logprobs.by_ref().take(width).flatten();
        if let Some(score) = scores[row].get_mut(label) {
            *score += of_row.map(f64::from).sum::<f64>();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_that_begins_another_keeps_only_its_own_texts() {
        // `1`, `10`, `100`, `2` and `12`, by tokens of one character.
        let labels = [vec![1], vec![1, 0], vec![1, 0, 0], vec![2], vec![1, 2]];
        let read = [0.6f64, 0.5, 0.1, 0.3, 0.05].map(f64::ln).to_vec();
        let scores = LabelScores::of(&labels, read.clone());
        let expected = [0.05, 0.4, 0.1, 0.3, 0.05];
        for (logprob, expected) in scores.logprobs.iter().zip(expected) {
            assert!((logprob.exp() - expected).abs() < 1e-12, "{scores:?}");
        }
        assert_eq!(scores.best, 1);
        assert!((scores.probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        // The longer label has all of the probability: the shorter one gets a finite number.
        let scores = LabelScores::of(&labels[..2], vec![0.5f64.ln(); 2]);
        assert!(scores.logprobs[0].is_finite() && scores.probabilities[0] < 1e-300);
        // Labels that do not begin each other keep their scores.
        let apart = [vec![1], vec![2], vec![0, 1]];
        assert_eq!(
            LabelScores::of(&apart, read[..3].to_vec()).logprobs,
            read[..3]
        );
    }
}
