//! The progress of a request, in plain numbers.

use std::collections::BTreeMap;

use super::Chunk;

/// The number of a request.
pub(crate) type Id = u64;

/// The status of a request in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// It waits for a row.
    Waiting,
    /// Its prompt is computed.
    Prefilling,
    /// Its row takes part in the steps.
    Running,
    /// It has lost its row, and waits for another one.
    Preempted,
    /// It has ended.
    Finished,
}

/// The progress of a request. The scheduler decides on it, and the worker reports to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestProgress {
    pub(super) status: Status,
    /// The place in the order of arrival; those of requests in the background come after all others.
    pub(super) arrival: u64,
    /// Whether it yields to requests that are not in the background.
    pub(super) is_background: bool,
    /// The number of its tokens that are computed as a prompt.
    pub(super) prompt: usize,
    /// The same number, at the last time that it was queued.
    pub(super) asked: usize,
    /// The number of tokens that were known when it began to wait, including the prompt. After a
    /// preemption those after the prompt are replayed, one in each step, as they were computed the
    /// first time.
    pub(super) known: usize,
    /// The most positions that its row may ever have.
    pub(super) most: usize,
    /// Tokens of the prompt that are computed at a time.
    pub(super) chunk: usize,
    /// The number of its first tokens whose layer states are stored, or will be after the step in progress.
    pub(super) computed: usize,
    /// The number of those tokens that came from a stored prefix.
    pub(super) reused: usize,
    /// A length at which a chunk of its prompt ends, because another prompt shares that prefix.
    pub(super) cut: Option<usize>,
    /// Whether its prompt must be computed alone.
    pub(super) alone: bool,
    /// The request in prefill with the same prompt whose row is copied to it once that prompt is
    /// computed.
    pub(super) follows: Option<Id>,
    /// Its row of the batch, if it has one.
    pub(crate) slot: Option<usize>,
}

impl RequestProgress {
    /// A request that has not been submitted, with a prompt of `prompt` tokens, of which `chunk`
    /// are computed at a time. Its row may have up to `most` positions.
    pub(crate) fn new(prompt: usize, most: usize, chunk: usize) -> Self {
        Self {
            status: Status::Waiting,
            arrival: 0,
            is_background: false,
            prompt,
            asked: prompt,
            known: prompt,
            most,
            chunk,
            computed: 0,
            reused: 0,
            cut: None,
            alone: false,
            follows: None,
            slot: None,
        }
    }

    /// The same in the background: all requests that are not come first, for rows and for memory.
    pub(crate) fn in_background(mut self, is_background: bool) -> Self {
        self.is_background = is_background;
        self
    }

    pub(crate) fn status(&self) -> Status {
        self.status
    }

    /// The number of its tokens that are computed as a prompt.
    pub(crate) fn prompt(&self) -> usize {
        self.prompt
    }

    /// The number of tokens of its prompt. Its positions are embedded as those of such a prompt.
    pub(crate) fn asked(&self) -> usize {
        self.asked
    }

    /// The number of its first tokens whose layer states are stored, or will be after the step in progress.
    #[cfg(test)]
    pub(crate) fn computed(&self) -> usize {
        self.computed
    }

    /// Whether `chunk` is still the next part of its prompt. After a failure it may have ended, or wait again.
    pub(crate) fn is_due(&self, chunk: &Chunk) -> bool {
        self.status == Status::Prefilling && self.computed == chunk.start
    }

    /// Whether its prompt must be computed alone.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Whether it has tokens after its prompt that are replayed.
    pub(crate) fn replays(&self) -> bool {
        self.known > self.prompt
    }

    /// Whether it comes back from a preemption with tokens after its prompt.
    pub(crate) fn resumes(&self) -> bool {
        self.known > self.asked
    }

    /// Records that its row, which was preempted, has left the states of its first `done` known
    /// tokens behind. The rest of its prompt is computed as a prompt, or the next token if there is
    /// no rest, and the tokens after it are replayed.
    pub(crate) fn resume(&mut self, done: usize) {
        self.reuse(done, None);
        self.prompt = self.asked.max(done + 1);
    }

    /// Records that the first `done` tokens of the prompt, which has not started, come from a
    /// stored prefix. A chunk of the prompt ends at `cut`, so that the prefix up to there can be
    /// stored for others.
    pub(crate) fn reuse(&mut self, done: usize, cut: Option<usize>) {
        (self.computed, self.reused, self.cut) = (done, done, cut);
    }

    /// Records that the prompt is computed up to `end`.
    pub(crate) fn prefilled(&mut self, end: usize) {
        self.computed = end;
    }

    /// Records that its row grew by this number of positions.
    pub(crate) fn stepped(&mut self, positions: usize) {
        self.computed += positions;
    }

    /// Makes it follow `leader`, which has the same prompt. Its own prompt has not started, and is
    /// not computed as long as `leader` is in prefill.
    pub(crate) fn follow(&mut self, leader: Id) {
        self.follows = Some(leader);
    }

    /// Whether it follows a request that is in prefill.
    pub(crate) fn is_behind<R: Scheduled>(&self, requests: &Table<R>) -> bool {
        let leader = self.follows.and_then(|id| requests.get(&id));
        leader.is_some_and(|leader| leader.progress().status == Status::Prefilling)
    }

    /// The number of positions that its row has after the next step.
    pub(super) fn next_len(&self) -> usize {
        self.known.max(self.computed) + 1
    }

    /// Drops what was computed.
    pub(super) fn restart(&mut self) {
        (self.computed, self.reused, self.cut) = (0, 0, None);
        self.prompt = self.asked;
        self.follows = None;
    }
}

/// A request as the scheduler sees it.
pub(crate) trait Scheduled {
    fn progress(&self) -> &RequestProgress;
    fn progress_mut(&mut self) -> &mut RequestProgress;
}

/// All requests in progress, in the order of their numbers.
pub(crate) type Table<R> = BTreeMap<Id, R>;

/// The progress of a request of the table.
pub(super) fn of<R: Scheduled>(requests: &Table<R>, id: Id) -> &RequestProgress {
    requests.get(&id).expect("it is in the table").progress()
}

pub(super) fn of_mut<R: Scheduled>(requests: &mut Table<R>, id: Id) -> &mut RequestProgress {
    let request = requests.get_mut(&id).expect("it is in the table");
    request.progress_mut()
}
