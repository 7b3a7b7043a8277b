//! Panics of the tokenizers crate, as errors and without a word on stderr.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::error::{Error, Result};

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call into the tokenizers crate, which panics on some malformed pipelines, and makes an error of that.
pub(super) fn guarded<T>(what: &str, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    let outer = QUIET.replace(true);
    let done = catch_unwind(AssertUnwindSafe(call));
    QUIET.set(outer);
    match done {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Error::tokenizer(format!("{what}: {error}")).with_source(error)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("unknown fault");
            Err(Error::tokenizer(format!(
                "{what}: the tokenizer is malformed: {text}"
            )))
        }
    }
}
