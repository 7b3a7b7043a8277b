//! Arrays of a failed evaluation must not be read.
//!
//! When an evaluation fails, MLX reports it once, and perhaps to whoever waits next on the same
//! stream; afterwards the broken arrays look finished and hold garbage. So every lazy array bears
//! the number of the moment it was made. A failed evaluation poisons all that were made since the
//! last good one on this thread (and those it was asked for); using or reading one of them is an
//! error that repeats the reason. Arrays made from plain data hold no computation and stay good.

use std::cell::{Cell, RefCell};

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};

/// The number of an array that was made from data: never poisoned.
pub(crate) const DATA: u64 = 0;

struct Step {
    after: u64,
    until: u64,
    reason: String,
}

thread_local! {
    static CLOCK: Cell<u64> = const { Cell::new(1) };
    static LAST_GOOD: Cell<u64> = const { Cell::new(0) };
    static FAILED: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
    static ANY: Cell<bool> = const { Cell::new(false) };
}

/// A number for an array that is being made.
pub(crate) fn stamp() -> u64 {
    CLOCK.with(|clock| {
        clock.set(clock.get() + 1);
        clock.get()
    })
}

/// An evaluation succeeded and waited: what fails later was made later.
pub(crate) fn good() {
    LAST_GOOD.set(CLOCK.get());
}

/// An evaluation of `arrays` failed: poisons its step and returns the error to report.
pub(crate) fn failed<'a>(arrays: impl IntoIterator<Item = &'a Array>, error: Error) -> Error {
    let until = stamp();
    for array in arrays {
        array.set_made(until);
    }
    FAILED.with_borrow_mut(|steps| {
        // Far more failed steps than a caller can still hold arrays of.
        if steps.len() == 1024 {
            steps.remove(0);
        }
        steps.push(Step { after: LAST_GOOD.get(), until, reason: error.to_string() });
    });
    ANY.set(true);
    LAST_GOOD.set(until);
    error
}

/// Fails if `array` belongs to a failed step.
pub(crate) fn check(array: &Array) -> Result<()> {
    if !ANY.get() {
        return Ok(());
    }
    let made = array.made();
    if made == DATA {
        return Ok(());
    }
    FAILED.with_borrow(|steps| {
        match steps.iter().find(|step| step.after < made && made <= step.until) {
            None => Ok(()),
            Some(step) => Err(Error::new(
                ErrorKind::Poisoned,
                format!("array belongs to a step whose evaluation failed: {}", step.reason),
            )),
        }
    })
}
