//! A request in progress.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use mlx_nn::ModelCache;

use super::handle::Queue;

use crate::engine::scheduler::{Id, Job};
use crate::engine::sequence::Sequence;
use crate::error::Result;
use crate::request::cancel::CancelToken;
use crate::request::generation::Event;
use crate::request::processor::Processor;

/// Takes the events of a request. A break cancels the request.
pub(crate) type Sink<'s> = Box<dyn FnMut(Result<Event>) -> ControlFlow<()> + 's>;

/// A request in progress. It owns the request's tokens, its caches before it has a row, and the sink of its events.
pub(crate) struct Task<'s> {
    pub(crate) sequence: Sequence,
    /// The number of its tokens that are computed as a prompt. After a preemption the later tokens
    /// are replayed, one in each step, as they were computed the first time.
    pub(crate) base: usize,
    /// A cache with the first tokens of the prompt, given by the caller.
    pub(crate) given: Option<ModelCache>,
    /// The cache of the computed part of its prompt, until the whole prompt is computed.
    pub(crate) partial: Option<ModelCache>,
    pub(crate) processor: Option<Processor>,
    pub(crate) sink: Sink<'s>,
    /// Its unread events, if their number is limited.
    pub(crate) backlog: Option<Arc<Queue>>,
    /// Cancels this request only. The token of its options may be shared with others.
    pub(crate) dropped: CancelToken,
    /// Whether its sink has returned `Break`, because the handle was dropped.
    pub(crate) abandoned: bool,
}

/// All requests in progress, in the order of their arrival.
pub(crate) type Tasks<'s> = BTreeMap<Id, Task<'s>>;

impl Task<'_> {
    /// The number of known tokens beyond those that are computed as a prompt.
    pub(crate) fn replay(&self) -> usize {
        self.sequence.history().ids().len() - self.base
    }

    /// Whether its caller has so many unread events that the row pauses.
    pub(crate) fn is_paused(&self) -> bool {
        self.backlog.as_ref().is_some_and(|events| events.is_full())
    }

    /// The scheduler's view of the request.
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

    /// Sends an event to the sink.
    pub(crate) fn send(&mut self, event: Result<Event>) {
        self.abandoned |= (self.sink)(event).is_break();
    }
}
