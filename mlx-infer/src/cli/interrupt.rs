//! Ctrl-C. The first time it cancels the running generation, whose text is kept. The second time, or when nothing runs,
//! it ends the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use mlx_infer::{CancelToken, Error, ErrorKind};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use super::Result;

/// The exit status that shells report for a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Whether Ctrl-C ends the program.
static ENDS: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes Ctrl-C set the token that is returned. Before a call of [`running`] it still ends the program.
pub(super) fn cancels() -> Result<CancelToken> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let ends = Arc::new(AtomicBool::new(true));
    // The order matters: the handler that ends the program reads the flag before the next handler sets it.
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED, ends.clone())
        .and_then(|_| flag::register(SIGINT, ends.clone()))
        .and_then(|_| flag::register(SIGINT, cancelled.clone()))
        .map_err(|error| Error::new(ErrorKind::Io, "cannot watch for Ctrl-C").with_source(error))?;
    let _ = ENDS.set(ends);
    Ok(CancelToken::from(cancelled))
}

/// While a value of this type exists, the first Ctrl-C cancels.
pub(super) struct Interruptible;

/// Lets Ctrl-C cancel instead of ending the program.
pub(super) fn running() -> Interruptible {
    set(false);
    Interruptible
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        set(true);
    }
}

fn set(ends: bool) {
    if let Some(flag) = ENDS.get() {
        flag.store(ends, Ordering::SeqCst);
    }
}
