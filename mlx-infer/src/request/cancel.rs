//! Stopping a generation from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tells a generation to stop before its next token. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that has not been cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels, from any thread.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Resets it for the next use.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl From<Arc<AtomicBool>> for CancelToken {
    /// A token that cancels when the flag is set, by a signal handler for example.
    fn from(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }
}
