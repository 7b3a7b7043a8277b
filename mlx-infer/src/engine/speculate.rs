//! Speculation: several tokens of a row in one forward pass.
//!
//! A drafter proposes the next tokens of a row: the tokens that followed the same text earlier, or the tokens that a
//! head for multi-token prediction or a draft model predicts. The next step computes the row's last token and the draft
//! at once, and the sampler chooses a token after each of them as usual: its noise depends on seed and position only.
//! The draft is kept as far as it equals the chosen tokens, so the tokens are those of the same request without
//! speculation (*sampler match*; greedy or sampled, any drafter, any length). The keys and values of a rejected token
//! are beyond the row's length, and are overwritten.

pub(crate) mod drafters;

mod alarm;
mod cost;
mod ngram;
mod rate;
mod row;

use crate::model::LoadedModel;

pub(crate) use self::alarm::Alarm;
pub(crate) use self::cost::{Costs, DraftOrigin, Offer};
pub(crate) use self::rate::Rates;
pub(crate) use self::row::Speculation;

/// What the steps of a model have shown about drafts. It outlives a batch, so a later one does not measure again.
#[derive(Debug, Default)]
pub(crate) struct Experience {
    pub(crate) costs: Costs,
    /// How often computed drafts are right, over all requests.
    pub(crate) usual: Rates,
    pub(crate) alarm: Alarm,
}

impl Experience {
    /// Takes what an earlier worker has kept with the model.
    pub(crate) fn take(model: &LoadedModel) -> Self {
        model.take_engine_state().unwrap_or_default()
    }

    /// Keeps it with the model, unless another worker beside this one has kept more.
    pub(crate) fn keep(self, model: &LoadedModel) {
        let other = Self::take(model);
        let has_more = other.costs.steps() > self.costs.steps();
        model.set_engine_state(if has_more { other } else { self });
    }
}
