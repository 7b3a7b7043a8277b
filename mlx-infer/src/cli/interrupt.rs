//! Ctrl-C: ends a generation and keeps its text; where none runs, or the second time, ends the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use mlx_infer::{CancelToken, Error, ErrorKind};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use super::Result;

/// What shells report for a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Whether Ctrl-C ends the program.
static ENDS: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Sets Ctrl-C up to cancel what has this token. Until [`running`] it still ends the program.
pub(super) fn cancels() -> Result<CancelToken> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let ends = Arc::new(AtomicBool::new(true));
    // In this order: the first Ctrl-C of a generation must not find what it sets itself.
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED, ends.clone())
        .and_then(|_| flag::register(SIGINT, ends.clone()))
        .and_then(|_| flag::register(SIGINT, cancelled.clone()))
        .map_err(|error| Error::new(ErrorKind::Io, "cannot watch for Ctrl-C").with_source(error))?;
    let _ = ENDS.set(ends);
    Ok(CancelToken::from(cancelled))
}

/// While this lives, the first Ctrl-C cancels.
pub(super) struct Running;

/// Lets Ctrl-C cancel instead of ending the program.
pub(super) fn running() -> Running {
    set(false);
    Running
}

impl Drop for Running {
    fn drop(&mut self) {
        set(true);
    }
}

fn set(ends: bool) {
    if let Some(flag) = ENDS.get() {
        flag.store(ends, Ordering::SeqCst);
    }
}
