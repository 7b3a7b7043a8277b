//! A request under way.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use mlx_nn::ModelCache;

use super::handle::Backlog;

use crate::cancel::CancelToken;
use crate::error::Result;
use crate::generate::{Event, Sequence};
use crate::processor::Processor;
use crate::scheduler::{Id, Job};

/// Where the events of a request go; breaking cancels it.
pub(crate) type Sink<'s> = Box<dyn FnMut(Result<Event>) -> ControlFlow<()> + 's>;

/// A request under way: its tokens, and who hears of them.
pub(crate) struct Task<'s> {
    pub(crate) sequence: Sequence,
    /// How many of its tokens are computed as a prompt; those after them are replayed one a step when
    /// its row was given up, so that they are computed as they were the first time.
    pub(crate) base: usize,
    /// What was computed of its prompt, until that is done.
    pub(crate) partial: Option<ModelCache>,
    pub(crate) processor: Option<Processor>,
    pub(crate) sink: Sink<'s>,
    /// What its reader has not read.
    pub(crate) backlog: Option<Arc<Backlog>>,
    /// Set by whoever holds the request's handle, beside the token of its options, which requests may
    /// share.
    pub(crate) dropped: CancelToken,
    /// Nobody listens any more.
    pub(crate) abandoned: bool,
}

/// All requests under way, in the order in which they came.
pub(crate) type Tasks<'s> = BTreeMap<Id, Task<'s>>;

impl Task<'_> {
    /// Tokens that are known beyond those that are computed as a prompt.
    pub(crate) fn replay(&self) -> usize {
        self.sequence.history().ids().len() - self.base
    }

    /// Whether its reader is so far behind that it should wait.
    pub(crate) fn is_paused(&self) -> bool {
        self.backlog.as_ref().is_some_and(|events| events.is_full())
    }

    /// What the scheduler has to know.
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

    /// Whether somebody wants it to end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.abandoned || self.dropped.is_cancelled() || self.sequence.cancel().is_cancelled()
    }

    /// Tells of an event.
    pub(crate) fn tell(&mut self, event: Result<Event>) {
        self.abandoned |= (self.sink)(event).is_break();
    }
}
