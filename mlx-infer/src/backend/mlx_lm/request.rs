//! A request in progress on a bridge.

use crate::engine::Sink;
use crate::engine::sequence::Sequence;
use crate::error::Result;
use crate::request::cancel::CancelToken;
use crate::request::generation::Event;

/// The progress of a request.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Stage {
    Waiting,
    Prefill,
    Decode,
}

/// A request in progress on a bridge.
pub(super) struct BridgeRequest {
    pub(super) sequence: Sequence,
    pub(super) sink: Sink<'static>,
    pub(super) dropped: CancelToken,
    /// Whether the caller has dropped its handle.
    pub(super) abandoned: bool,
    pub(super) stage: Stage,
}

impl BridgeRequest {
    pub(super) fn is_cancelled(&self) -> bool {
        self.abandoned || self.dropped.is_cancelled() || self.sequence.cancel().is_cancelled()
    }

    pub(super) fn send(&mut self, event: Result<Event>) {
        self.abandoned |= (self.sink)(event).is_break();
    }
}
