//! Requests with the same prompt: one prompt is computed, and the rows of the other requests are copies of its row.

use super::entry::Entry;
use super::{Id, Scheduler, find};

impl Scheduler {
    /// Requests in prefill whose prompts are computed, in order: those that do not follow another.
    pub(crate) fn leading(&self) -> impl Iterator<Item = Id> + '_ {
        let leading = self
            .prefilling
            .iter()
            .filter(|entry| !self.is_behind(entry));
        leading.map(|entry| entry.job.id)
    }

    /// Those of them whose prompts have not started.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = Id> + '_ {
        let fresh = self.prefilling.iter().filter(|entry| entry.done == 0);
        let fresh = fresh.filter(|entry| !self.is_behind(entry));
        fresh.map(|entry| entry.job.id)
    }

    /// Lets `id`, whose prompt has not started and is the same, follow `leader`. Its prompt is not computed as long as
    /// `leader` is in prefill.
    pub(crate) fn follow(&mut self, id: Id, leader: Id) {
        if let Some(entry) = find(&mut self.prefilling, id) {
            entry.follows = Some(leader);
        }
    }

    /// The requests that follow `leader`, in order. Their rows join the batch together with its row.
    pub(crate) fn followers(&self, leader: Id) -> impl Iterator<Item = Id> + '_ {
        let followers = self.prefilling.iter();
        let followers = followers.filter(move |entry| entry.follows == Some(leader));
        followers.map(|entry| entry.job.id)
    }

    /// Whether the request is in prefill.
    pub(crate) fn is_prefilling(&self, id: Id) -> bool {
        self.prefilling.iter().any(|entry| entry.job.id == id)
    }

    /// Whether the entry follows a request that is in prefill.
    pub(super) fn is_behind(&self, entry: &Entry) -> bool {
        entry
            .follows
            .is_some_and(|leader| self.is_prefilling(leader))
    }
}
