//! Turns panics of the tokenizers crate into errors, without output on stderr.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::error::Error;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The failure of a call into the tokenizers crate.
pub(super) struct TokenizersFault {
    pub(super) what: String,
    /// The crate's error, or `None` if it panicked.
    pub(super) source: Option<tokenizers::Error>,
}

/// Calls the tokenizers crate, which panics for some malformed pipelines, and turns a panic into an error.
pub(super) fn quietly<T>(
    call: impl FnOnce() -> tokenizers::Result<T>,
) -> Result<T, TokenizersFault> {
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
        Ok(Err(error)) => Err(TokenizersFault {
            what: error.to_string(),
            source: Some(error),
        }),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            // Some panic messages have several lines.
            let what = text.unwrap_or("unknown fault").replace('\n', " ");
            Err(TokenizersFault { what, source: None })
        }
    }
}

impl TokenizersFault {
    /// The error of this crate. `doing` names the call, and `part` finds the part that failed.
    pub(super) fn error(self, doing: &str, part: impl FnOnce() -> Option<String>) -> Error {
        let Some(source) = self.source else {
            let what = part().unwrap_or(self.what);
            return Error::tokenizer(format!("{doing}: the tokenizer is malformed: {what}"));
        };
        Error::tokenizer(format!("{doing}: {}", self.what)).with_source(source)
    }
}
