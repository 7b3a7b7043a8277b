//! What a head for multi-token prediction can do, beside its model.

use std::ops::Range;

use mlx_core::{Array, Result};
use mlx_nn::Step;

/// A head that drafts the tokens after the next one, from the features of the model's layers. Its states are in the
/// model's cache.
pub trait DraftHead {
    /// Its states, which are after those of the layers.
    fn states(&self) -> Range<usize>;

    /// Its input among the two results of [`Model::run`](crate::model::Model::run): `[B, L, E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    fn input(&self, run: [&Array; 2]) -> Result<Array>;

    /// Runs the head over `tokens` `[B, L]` and the model's features of them, `[B, L, E]`. The features of the last tokens
    /// may be missing if these tokens are not kept. The step has the rows' lengths before these tokens. Returns the head's
    /// features `[B, L, E]`, from which [`logits`](Self::logits) predicts the next token at each position. In a row that
    /// begins, the first token has no position before it, so the results are one position earlier.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn follow(
        &self,
        tokens: &Array,
        features: Option<&Array>,
        step: &mut Step<'_>,
    ) -> Result<Array>;

    /// Runs the head over draft tokens `[B, L]` and its own features of the position before each of them:
    /// `[B, L, E] -> [B, L, E]`. The step has the rows' lengths before these tokens, and must not be committed.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn draft(&self, tokens: &Array, before: &Array, step: &mut Step<'_>) -> Result<Array>;

    /// Logits `[.., V]` of features `[.., E]` that the head gave, or `[.., first]`: of so many first tokens.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn logits(&self, features: &Array, first: Option<i32>) -> Result<Array>;
}

/// A head whose loss training can compute.
pub trait TrainableHead {
    /// The head's features `[B, L, E]`, from which [`Model::logits`](crate::model::Model::logits) tells the token after the
    /// next: of the next tokens `[B, L]` and the features `hidden` `[B, L, E]` of each position. `step` is that of a cache of
    /// its own, with one layer that attends to everything.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn ahead(&self, next: &Array, hidden: &Array, step: &mut Step<'_>) -> Result<Array>;
}
