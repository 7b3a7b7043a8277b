//! The traits of heads for multi-token prediction: [`DraftHead`] and [`TrainableHead`].

use std::ops::Range;

use mlx_core::{Array, Error, ErrorKind, Result};
use mlx_nn::Step;

use super::NO_DRAFTS;

/// How a head drafts several tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafting {
    /// One after the other: each draft is one position after the token that it follows.
    Chain,
    /// One after the other, all at the position of the first ([Gemma 4's assistants](crate::DraftKind)).
    Held,
    /// All in one pass over this many positions, the first of which is the last token's.
    Block(usize),
}

/// A head that drafts the tokens after the next one, from the features of the model's layers. Its states are in the
/// model's cache.
pub trait DraftHead {
    /// The indices of the head's states. They follow those of the layers.
    fn states(&self) -> Range<usize>;

    /// The head's input, which is one of the two results of
    /// [`Model::run`](crate::model::Model::run): `[1, T, E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    fn input(&self, run: [&Array; 2]) -> Result<Array>;

    /// Runs the head over `tokens` `[1, T]` and the model's features of them, `[1, T, E]`. The
    /// features of a row's last token may be any numbers if this token is not kept; `None`: those of
    /// all tokens. The rows' lengths in the step are those before these tokens. Returns the head's
    /// features `[1, T, E]`, from which [`logits`](Self::logits) predicts the next token at each position. The first token of
    /// a row has no position before it, so the results of a new row are one position earlier.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn follow(
        &self,
        tokens: &Array,
        features: Option<&Array>,
        step: &mut Step<'_>,
    ) -> Result<Array>;

    /// Runs the head over draft tokens `[1, T]` and its own features of the position before each of
    /// them: `[1, T, E] -> [1, T, E]`. The rows' lengths in the step are those before these tokens.
    /// The step must not be committed.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn draft(&self, tokens: &Array, before: &Array, step: &mut Step<'_>) -> Result<Array>;

    /// How the head drafts several tokens.
    fn manner(&self) -> Drafting {
        Drafting::Chain
    }

    /// Whether the head reads pairs of a position's features and the token after it ([`predict`](Self::predict)). Its
    /// [states](Self::states) are then keys and values, followed by a window of one position's
    /// [features](Self::features).
    fn reads_pairs(&self) -> bool {
        false
    }

    /// The features that the head makes of its [input](Self::input) at each position, and that it keeps of a row's last
    /// position: `[1, T, ..] -> [1, T, E]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn features(&self, input: &Array) -> Result<Array> {
        Ok(input.clone())
    }

    /// [`follow`](Self::follow) and [`draft`](Self::draft) of a head that [reads pairs](Self::reads_pairs), in a step that
    /// covers only its keys and values. `before` are the [features](Self::features) of positions, or the head's own of a
    /// drafted one, and `next` the tokens after them. The positions of the step are those of `before`.
    ///
    /// # Errors
    /// The shapes do not fit, or the head reads no pairs.
    fn predict(&self, _next: &Array, _before: &Array, _step: &mut Step<'_>) -> Result<Array> {
        Err(Error::new(ErrorKind::Unsupported, NO_DRAFTS))
    }

    /// Runs a head that drafts by [`Drafting::Block`]. `last` are the last tokens, `[1, R]`, of the rows; the step has a
    /// block of places for each of them, after the positions that the rows hold. Returns the head's features `[1, T, E]`,
    /// from which [`logits`](Self::logits) predicts the token at each place but the first of a block. The step must not
    /// be committed.
    ///
    /// # Errors
    /// The shapes do not fit, or the head drafts in another way.
    fn block(&self, _last: &Array, _step: &mut Step<'_>) -> Result<Array> {
        Err(Error::new(ErrorKind::Unsupported, NO_DRAFTS))
    }

    /// Logits `[.., V]` of the head's features `[.., E]`. With `first`, only those of the first
    /// tokens of the vocabulary, `[.., first]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn logits(&self, features: &Array, first: Option<i32>) -> Result<Array>;
}

/// A head whose loss training can compute.
pub trait TrainableHead {
    /// The head's features `[1, T, E]`, from which [`Model::logits`](crate::model::Model::logits)
    /// predicts the token after the next. `hidden` `[1, T, E]` are the model's features of each
    /// position, and `next` `[1, T]` the token after each position. `step` belongs to a separate
    /// cache, with one layer of the kind [`LayerKind::Full`](mlx_nn::LayerKind::Full).
    ///
    /// # Errors
    /// The shapes do not fit.
    fn ahead(&self, next: &Array, hidden: &Array, step: &mut Step<'_>) -> Result<Array>;
}

/// Pairs tokens with the features of the positions before them: the state `state` of the step keeps the last features of
/// each row. `features` are those of `tokens`, `[1, T, E]`. Returns tokens `[1, T]` and features `[1, T, E]`.
///
/// A row that begins has no position before its first token, so each of its tokens is paired with the features of the
/// position before it, one place earlier. What follows its last token is written by the next step.
///
/// # Errors
/// The shapes do not fit.
pub(crate) fn paired(
    tokens: &Array,
    features: &Array,
    state: usize,
    step: &mut Step<'_>,
) -> Result<(Array, Array)> {
    let window = step.window(state, 0, features)?;
    let before = window.slice_axis(2, 0, 1)?.squeeze(2)?;
    let rows = step.lens().iter().zip(step.widths());
    let begins: Vec<bool> = rows.map(|(&len, &width)| len == 0 && width > 0).collect();
    if !begins.contains(&true) {
        return Ok((tokens.clone(), before));
    }
    let (mut next, mut is_next) = (Vec::new(), Vec::new());
    for (places, begins) in step.places().zip(begins) {
        let (first, end) = (places.start, places.end);
        let after = |place: usize| if place + 1 < end { place + 1 } else { first };
        let places = places.clone();
        next.extend((places.clone()).map(|at| if begins { after(at) } else { at } as i32));
        is_next.extend(places.map(|_| begins));
    }
    let n = next.len() as i32;
    let tokens = tokens.take(&Array::from_slice(&next, &[n])?, 1)?;
    let is_next = Array::from_slice(&is_next, &[1, n, 1])?;
    Ok((tokens, is_next.select(features, &before)?))
}
