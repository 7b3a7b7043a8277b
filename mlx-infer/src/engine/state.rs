//! The state of a request in the engine.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use mlx_nn::ModelCache;

use super::handle::Queue;

use crate::engine::scheduler::{Id, RequestProgress, Scheduled};
use crate::engine::sequence::Sequence;
use crate::error::Result;
use crate::request::cancel::CancelToken;
use crate::request::generation::Event;
use crate::request::processor::Processor;

/// Takes the events of a request. A break cancels the request.
pub(crate) type Sink<'s> = Box<dyn FnMut(Result<Event>) -> ControlFlow<()> + 's>;

/// The state of a request in progress: its progress, its tokens, its caches before it has a row, and the sink of its
/// events.
pub(crate) struct RequestState<'s> {
    /// Its status, the number of its computed tokens, and its row of the batch.
    pub(crate) progress: RequestProgress,
    pub(crate) sequence: Sequence,
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
    /// Whether it counts as cancelled and as paused, where ranks share the model and have agreed on it.
    pub(crate) agreed: Option<[bool; 2]>,
}

/// All requests in progress, in the order of their arrival.
pub(crate) type Requests<'s> = BTreeMap<Id, RequestState<'s>>;

impl<'s> RequestState<'s> {
    pub(crate) fn new(
        sequence: Sequence,
        dropped: CancelToken,
        backlog: Option<Arc<Queue>>,
        sink: Sink<'s>,
    ) -> Self {
        let prompt = sequence.history().prompt_len();
        let most = prompt.saturating_add(sequence.remaining());
        Self {
            progress: RequestProgress::new(prompt, most, sequence.prefill_chunk())
                .in_background(sequence.is_background()),
            sequence,
            given: None,
            partial: None,
            processor: None,
            sink,
            backlog,
            dropped,
            abandoned: false,
            agreed: None,
        }
    }

    /// The number of its tokens that were read, including the prompt.
    pub(crate) fn known(&self) -> usize {
        self.sequence.history().ids().len()
    }

    /// The tokens that are computed as a prompt.
    pub(crate) fn prompt(&self) -> &[u32] {
        &self.sequence.history().ids()[..self.progress.prompt()]
    }

    /// Whether its row pauses, because its caller has too many unread events.
    pub(crate) fn is_paused(&self) -> bool {
        self.agreed
            .map_or_else(|| self.is_paused_here(), |[_, paused]| paused)
    }

    /// Whether it was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.agreed
            .map_or_else(|| self.is_cancelled_here(), |[cancelled, _]| cancelled)
    }

    /// [`is_paused`](Self::is_paused), as this process sees it.
    pub(super) fn is_paused_here(&self) -> bool {
        self.backlog.as_ref().is_some_and(|events| events.is_full())
    }

    /// [`is_cancelled`](Self::is_cancelled), as this process sees it.
    pub(super) fn is_cancelled_here(&self) -> bool {
        self.abandoned || self.dropped.is_cancelled() || self.sequence.cancel().is_cancelled()
    }

    /// Sends an event to the sink.
    pub(crate) fn send(&mut self, event: Result<Event>) {
        self.abandoned |= (self.sink)(event).is_break();
    }
}

impl Scheduled for RequestState<'_> {
    fn progress(&self) -> &RequestProgress {
        &self.progress
    }

    fn progress_mut(&mut self) -> &mut RequestProgress {
        &mut self.progress
    }
}
