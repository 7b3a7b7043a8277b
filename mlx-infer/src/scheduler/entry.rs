//! A request in the scheduler.

use super::{Id, Job};

/// A request, and what it has done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) job: Job,
    /// Place in the order of arrival.
    pub(super) order: u64,
    /// Prompt tokens that are done.
    pub(super) done: usize,
    /// Those of them that came from a kept prefix.
    pub(super) reused: usize,
    /// A length at which a piece of its prompt ends, because another prompt shares that prefix.
    pub(super) cut: Option<usize>,
    /// Positions that its row holds.
    pub(super) len: usize,
    /// Its prompt must be computed alone.
    pub(super) alone: bool,
    /// The request with the same prompt whose row is copied when that prompt is done, as long as it is in prefill.
    pub(super) follows: Option<Id>,
}

impl Entry {
    /// Positions that its row holds after what it is known to do next.
    pub(super) fn next_len(&self) -> usize {
        (self.job.prompt + self.job.replay).max(self.len) + 1
    }
}
