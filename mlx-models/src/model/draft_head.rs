//! The traits of heads for multi-token prediction: [`DraftHead`] and [`TrainableHead`].

use std::ops::Range;

use mlx_core::{Array, Result};
use mlx_nn::Step;

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
