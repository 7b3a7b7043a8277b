//! A request in the scheduler.

use super::{Id, Job};

/// A request and its progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) job: Job,
    /// Place in the order of arrival.
    pub(super) order: u64,
    /// The number of prompt tokens that are computed.
    pub(super) done: usize,
    /// The number of them that came from a kept prefix.
    pub(super) reused: usize,
    /// A length at which a piece of its prompt ends, because another prompt shares that prefix.
    pub(super) cut: Option<usize>,
    /// The number of positions that its row holds.
    pub(super) len: usize,
    /// Whether its prompt must be computed alone.
    pub(super) alone: bool,
    /// The request with the same prompt whose row is copied when that prompt is computed, as long as it is in prefill.
    pub(super) follows: Option<Id>,
}

impl Entry {
    /// The number of positions that its row holds after the next step.
    pub(super) fn next_len(&self) -> usize {
        (self.job.prompt + self.job.replay).max(self.len) + 1
    }
}
