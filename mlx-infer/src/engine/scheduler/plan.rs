//! The results of the scheduler: chunks of prompts, and plans.

use super::{Id, Shortage};

/// A part of a request's prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// The request.
    pub(crate) id: Id,
    /// The index of its first token.
    pub(crate) start: usize,
    /// The index after its last token.
    pub(crate) end: usize,
    /// Whether another prompt has the same prefix up to this end, so that the prefix is stored.
    pub(crate) is_cut: bool,
    /// Whether recurrent layers record this end, so that other prompts can continue from there.
    pub(crate) is_recorded: bool,
    /// Whether it completes the prompt.
    pub(crate) is_last: bool,
}

/// The next work, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Requests that can never fit, with what they would need. They end with an error.
    pub(crate) refuse: Vec<(Id, Shortage)>,
    /// Rows to preempt. Their requests wait again.
    pub(crate) preempt: Vec<Id>,
    /// The number of slots to keep, if slots without a row are to be removed.
    pub(crate) compact: Option<usize>,
    /// Whether slots for the states after single tokens are to be freed.
    pub(crate) narrow: bool,
}
