//! The head for multi-token prediction that a [`CausalLm`] owns, in drafts and in training.

use std::ops::Range;

use mlx_core::ops::create::zeros;
use mlx_core::{Array, Error, ErrorKind, Result};
use mlx_nn::{HeadMatrix, Step};

use super::{CausalLm, DecoderLayer, Ends, HEAD_STATES, Predict};
use crate::model::{DraftHead, Model, NO_DRAFTS, TrainableHead, paired};

impl<L, M: Predict, E> CausalLm<L, M, E> {
    /// The head that drafts, and the index of its first state.
    fn enabled(&self) -> Result<(&M, usize)> {
        let found = self.mtp.as_ref().zip(self.head_state);
        found.ok_or_else(|| Error::new(ErrorKind::Unsupported, NO_DRAFTS))
    }
}

impl<L, M, E> DraftHead for CausalLm<L, M, E>
where
    L: DecoderLayer + Clone + 'static,
    M: Predict + Clone + 'static,
    E: Ends + Clone + 'static,
{
    fn states(&self) -> Range<usize> {
        let states = self.head_state.map(|state| state..state + HEAD_STATES);
        states.unwrap_or_default()
    }

    fn input(&self, [x, hidden]: [&Array; 2]) -> Result<Array> {
        let reads_before = self.mtp.as_ref().is_some_and(M::reads_before_norm);
        Ok(if reads_before { x } else { hidden }.clone())
    }

    /// The features of the last token of each row are kept for the next step.
    fn follow(
        &self,
        tokens: &Array,
        features: Option<&Array>,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let (_, state) = self.enabled()?;
        let features = match features {
            Some(features) => features.clone(),
            None => {
                let dtype = self.embed(tokens)?.dtype();
                zeros(&[1, step.tokens() as i32, self.geometry.hidden], dtype)?
            }
        };
        let (tokens, before) = paired(tokens, &features, state + 1, step)?;
        self.draft(&tokens, &before, step)
    }

    fn draft(&self, tokens: &Array, before: &Array, step: &mut Step<'_>) -> Result<Array> {
        step.at_previous_position(|step| self.predict(tokens, before, step))
    }

    fn reads_pairs(&self) -> bool {
        true
    }

    fn predict(&self, next: &Array, before: &Array, step: &mut Step<'_>) -> Result<Array> {
        let (mtp, state) = self.enabled()?;
        let embedded = match mtp.embed(next)? {
            Some(embedded) => embedded,
            None => self.embed(next)?,
        };
        mtp.forward(&embedded, before, state, step)
    }

    fn logits(&self, features: &Array, first: Option<i32>) -> Result<Array> {
        let (mtp, _) = self.enabled()?;
        let features = mtp.leave(features)?;
        let mut head = self.head().without(None);
        if let Some(own) = mtp.output() {
            head.matrix = HeadMatrix::Own(own);
        }
        match first {
            Some(first) => head.first(first, &features),
            None => head.forward(&features),
        }
    }
}

impl<L, M, E> TrainableHead for CausalLm<L, M, E>
where
    L: DecoderLayer + Clone + 'static,
    M: Predict + Clone + 'static,
    E: Ends + Clone + 'static,
{
    fn ahead(&self, next: &Array, hidden: &Array, step: &mut Step<'_>) -> Result<Array> {
        let Some(mtp) = &self.mtp else {
            return Err(Error::new(ErrorKind::Unsupported, NO_DRAFTS));
        };
        mtp.forward(&self.embed(next)?, hidden, 0, step)
    }
}
