//! The limits of one rendering: steps, bytes held, and the size of a text and of a list.
//!
//! A chat template is untrusted input: a hostile one must end in an error instead of filling the
//! memory or occupying a thread. Every expression, every item of an iteration and every comparison
//! costs a step. Copying text costs a step for each 64 bytes, and examining each character a step
//! for each 8 bytes. Texts, lists and dictionaries count as held until they are dropped. The limits
//! depend only on the size of the input, so the same template and conversation give the same result
//! on every machine; the limit in seconds is only the last resort.
//!
//! The meter is thread-local: a rendering runs on a thread of its own (`Template::render`).

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::Fail;

/// The most items of a list, or pairs of a dictionary.
pub(super) const MAX_ITEMS: usize = 1 << 20;
/// The deepest nesting of lists and other containers.
pub(super) const MAX_DEPTH: u32 = 200;
/// The largest width in format specifications, of tabs and of indents.
pub(super) const MAX_WIDTH: i128 = 100_000;

const BASE_STEPS: u64 = 2_000_000;
const STEPS_PER_VALUE: u64 = 2_000;
const STEPS_PER_BYTE: u64 = 4;
const BASE_TEXT: usize = 16 << 20;
const TEXT_PER_BYTE: usize = 8;
/// The limit of all held bytes, as a multiple of the longest text.
const HELD_TEXTS: usize = 4;
const MAX_TIME: Duration = Duration::from_secs(30);
/// The number of steps between two checks of the clock.
const STEPS_PER_LOOK: u64 = 1 << 16;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(u64::MAX) };
    static ALL_STEPS: Cell<u64> = const { Cell::new(u64::MAX) };
    static NEXT_LOOK: Cell<u64> = const { Cell::new(0) };
    static END: Cell<Option<Instant>> = const { Cell::new(None) };
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MAX_TEXT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Sets the limits for an input with this number of values and this many bytes of text.
pub(super) fn start(values: u64, bytes: usize) {
    let steps = BASE_STEPS + STEPS_PER_VALUE * values + STEPS_PER_BYTE * bytes as u64;
    STEPS.set(steps);
    ALL_STEPS.set(steps);
    NEXT_LOOK.set(steps.saturating_sub(STEPS_PER_LOOK));
    END.set(Instant::now().checked_add(MAX_TIME));
    MAX_TEXT.set(BASE_TEXT.saturating_add(bytes.saturating_mul(TEXT_PER_BYTE)));
}

/// Counts steps.
pub(super) fn work(steps: u64) -> Result<(), Fail> {
    let Some(left) = STEPS.get().checked_sub(steps) else {
        STEPS.set(0);
        return Err(Fail::Limit(format!(
            "does not come to an end within {} steps",
            ALL_STEPS.get()
        )));
    };
    STEPS.set(left);
    if left < NEXT_LOOK.get() {
        NEXT_LOOK.set(left.saturating_sub(STEPS_PER_LOOK));
        if END.get().is_some_and(|end| Instant::now() > end) {
            return Err(Fail::Limit(format!(
                "does not come to an end within {} s",
                MAX_TIME.as_secs()
            )));
        }
    }
    Ok(())
}

/// Counts the steps for copying this many bytes.
pub(super) fn copy(bytes: usize) -> Result<(), Fail> {
    work(1 + bytes as u64 / 64)
}

/// Counts the steps for examining each character of this many bytes.
pub(super) fn scan(bytes: usize) -> Result<(), Fail> {
    work(1 + bytes as u64 / 8)
}

/// Refuses a text of this size before it is made.
pub(super) fn text(bytes: usize) -> Result<(), Fail> {
    let most = MAX_TEXT.get();
    if bytes > most {
        return Err(Fail::Limit(format!(
            "makes a text of more than {most} bytes"
        )));
    }
    Ok(())
}

/// Refuses a list of this size before it is made, and counts the steps for making it.
pub(super) fn items(count: usize) -> Result<(), Fail> {
    if count > MAX_ITEMS {
        return Err(Fail::Limit(format!(
            "makes a list of more than {MAX_ITEMS} items"
        )));
    }
    work(1 + count as u64)
}

/// Counts bytes as held.
pub(super) fn hold(bytes: usize) -> Result<(), Fail> {
    let held = HELD.get().saturating_add(bytes);
    let most = MAX_TEXT.get().saturating_mul(HELD_TEXTS);
    if held > most {
        return Err(Fail::Limit(format!("holds more than {most} bytes")));
    }
    HELD.set(held);
    Ok(())
}

/// Counts bytes as dropped.
pub(super) fn release(bytes: usize) {
    HELD.set(HELD.get().saturating_sub(bytes));
}

/// A text that is built piece by piece, within the limits.
#[derive(Debug, Default)]
pub(super) struct Builder(String);

impl Builder {
    pub(super) fn push(&mut self, piece: &str) -> Result<(), Fail> {
        text(self.0.len() + piece.len())?;
        copy(piece.len())?;
        self.0.push_str(piece);
        Ok(())
    }

    pub(super) fn push_char(&mut self, piece: char) -> Result<(), Fail> {
        self.push(piece.encode_utf8(&mut [0; 4]))
    }

    /// Adds the same piece `count` times.
    pub(super) fn repeat(&mut self, piece: &str, count: usize) -> Result<(), Fail> {
        let bytes = piece.len().saturating_mul(count);
        text(self.0.len().saturating_add(bytes))?;
        copy(bytes)?;
        self.0.push_str(&piece.repeat(count));
        Ok(())
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}
