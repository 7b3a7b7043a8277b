//! Limits on what is computed at a time.

use crate::error::{Error, Result};
use crate::work_sizes::WorkSizes;

/// Limits on concurrent work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most rows of a step.
    pub rows: usize,
    /// Most tokens, padding included, of short prompts that are computed together; 2,048 on a CPU,
    /// 8,192 on a GPU.
    pub prefill_tokens: usize,
    /// Most bytes of the rows' caches. Without a number, a CPU has no limit, and on a GPU with
    /// memory of its own the limit is two fifths of the memory that the weights leave.
    pub cache_bytes: Option<usize>,
    /// Most bytes of stored prefixes, in addition to `cache_bytes`; 0 stores none. A prompt that
    /// starts with a stored prefix is computed in different parts, which may change the last bits
    /// of its logits, as another `prefill_chunk` may.
    pub prefix_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rows: 64,
            prefill_tokens: WorkSizes::of_device().prompts,
            cache_bytes: None,
            prefix_bytes: 512 << 20,
        }
    }
}

impl Limits {
    /// Checks all limits.
    ///
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
