//! A request under way.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use mlx_nn::ModelCache;

use super::handle::Queue;

use crate::cancel::CancelToken;
use crate::error::Result;
use crate::generate::{Event, Sequence};
use crate::processor::Processor;
use crate::scheduler::{Id, Job};

/// Takes the events of a request; breaking cancels it.
pub(crate) type Sink<'s> = Box<dyn FnMut(Result<Event>) -> ControlFlow<()> + 's>;

/// A request under way. It owns the request's tokens, its caches before it has a row, and the sink of its events.
pub(crate) struct Task<'s> {
    pub(crate) sequence: Sequence,
    /// How many of its tokens are computed as a prompt. After an eviction the tokens behind them are replayed one a
    /// step, as they were computed the first time.
    pub(crate) base: usize,
    /// A cache that the caller gave, with the prompt's first tokens.
    pub(crate) given: Option<ModelCache>,
    /// The cache of the part of its prompt that is computed, until the prompt is done.
    pub(crate) partial: Option<ModelCache>,
    pub(crate) processor: Option<Processor>,
    pub(crate) sink: Sink<'s>,
    /// Its unread events, if they are bounded.
    pub(crate) backlog: Option<Arc<Queue>>,
    /// Cancels this request only. The token of its options may be shared with others.
    pub(crate) dropped: CancelToken,
    /// Its sink has returned `Break`: the handle was dropped.
    pub(crate) abandoned: bool,
}

/// All requests under way, in the order in which they came.
pub(crate) type Tasks<'s> = BTreeMap<Id, Task<'s>>;

impl Task<'_> {
    /// Tokens that are known beyond those that are computed as a prompt.
    pub(crate) fn replay(&self) -> usize {
        self.sequence.history().ids().len() - self.base
    }

    /// Whether its caller has so many unread events that the row pauses.
    pub(crate) fn is_paused(&self) -> bool {
        self.backlog.as_ref().is_some_and(|events| events.is_full())
    }

    /// The scheduler's view of it.
    pub(crate) fn job(&self, id: Id) -> Job {
        let known = self.sequence.history().ids().len();
        Job {
            id,
            prompt: self.base,
            replay: self.replay(),
            most: known.saturating_add(self.sequence.remaining()),
            chunk: self.sequence.prefill_chunk(),
        }
    }

    /// Whether it was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.abandoned || self.dropped.is_cancelled() || self.sequence.cancel().is_cancelled()
    }

    /// Gives an event to the sink.
    pub(crate) fn tell(&mut self, event: Result<Event>) {
        self.abandoned |= (self.sink)(event).is_break();
    }
}
