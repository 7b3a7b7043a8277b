//! Input and output of the scheduler.

use crate::error::{Error, Result};
use crate::portions::Portions;

/// The number of a request.
pub(crate) type Id = u64;

/// Limits on concurrent work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most rows of a step.
    pub rows: usize,
    /// Most tokens, padding included, of the short prompts that are computed together; 2,048 on a CPU, 8,192 on a GPU.
    pub prefill_tokens: usize,
    /// Most bytes of the rows' caches. Without a number, a CPU has no limit, and a GPU with memory of its own takes two
    /// fifths of what the weights leave of it.
    pub cache_bytes: Option<usize>,
    /// Most bytes of kept prefixes, beside `cache_bytes`; 0 keeps none. A prompt that starts with a kept prefix is
    /// computed in different parts, which may change the last bits of its logits, as a different `prefill_chunk` may.
    pub prefix_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rows: 64,
            prefill_tokens: Portions::of_device().prompts,
            cache_bytes: None,
            prefix_bytes: 512 << 20,
        }
    }
}

impl Limits {
    /// # Errors
    /// A limit is 0.
    pub fn check(&self) -> Result<()> {
        for (name, value) in [("rows", self.rows), ("prefill_tokens", self.prefill_tokens)] {
            if value == 0 {
                return Err(Error::argument(format!(
                    "{name} must be at least 1, given 0"
                )));
            }
        }
        Ok(())
    }
}

/// The scheduler's view of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// The number of the request.
    pub(crate) id: Id,
    /// Tokens that are computed as a prompt.
    pub(crate) prompt: usize,
    /// The number of tokens known beyond those. They are replayed, one in each step.
    pub(crate) replay: usize,
    /// The most positions that it may ever hold.
    pub(crate) most: usize,
    /// Tokens of the prompt that are computed at a time.
    pub(crate) chunk: usize,
}

/// A part of a request's prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The request.
    pub(crate) id: Id,
    /// Its first token.
    pub(crate) start: usize,
    /// The token behind its last.
    pub(crate) end: usize,
    /// Whether another prompt has the same prefix up to this end, so that the prefix is kept.
    pub(crate) is_cut: bool,
    /// Whether recurrent layers record this end, so that other prompts can continue from there.
    pub(crate) is_recorded: bool,
    /// Whether it completes the prompt.
    pub(crate) is_last: bool,
}

/// The next work, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Requests that can never fit, with the bytes that they would need. They end with an error.
    pub(crate) refuse: Vec<(Id, usize)>,
    /// Rows to evict. Their requests wait again.
    pub(crate) evict: Vec<Id>,
    /// The number of slots to keep, if slots without a row are to be removed.
    pub(crate) compact: Option<usize>,
}
