//! Arrays of a failed evaluation must not be read.
//!
//! When an evaluation fails, MLX reports it once, and perhaps to whoever waits next on the same
//! stream; afterwards the broken arrays look finished and hold garbage. So every array bears the
//! number of the moment it was made, until it is known to be good: made from plain data, the root
//! of an evaluation that succeeded, or found finished in use after a later one succeeded. A failed
//! evaluation poisons all arrays of its thread that are not known to be good; using or reading one
//! of them is an error that repeats the reason. What is made afterwards from good arrays is good.

use std::cell::{Cell, RefCell};

use mlx_c_sys as sys;

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};

/// The number of an array that is known to be good.
pub(crate) const DATA: u64 = 0;

struct Step {
    until: u64,
    reason: String,
}

thread_local! {
    static CLOCK: Cell<u64> = const { Cell::new(1) };
    /// All work of arrays made up to here has succeeded, if it was started.
    static LAST_GOOD: Cell<u64> = const { Cell::new(0) };
    /// The end of the last failed step: everything unknown up to here is poisoned.
    static LAST_FAILED: Cell<u64> = const { Cell::new(0) };
    /// Whether work may run on more than one stream of this thread. Then a good evaluation says
    /// nothing of what was started elsewhere, and only its own roots are known to be good.
    static SEVERAL: Cell<bool> = const { Cell::new(false) };
    static FAILED: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
}

/// A number for an array that is being made.
pub(crate) fn stamp() -> u64 {
    CLOCK.with(|clock| {
        clock.set(clock.get() + 1);
        clock.get()
    })
}

/// A second stream came into use on this thread.
pub(crate) fn several_streams() {
    SEVERAL.set(true);
}

/// Whether the array is computed, as far as MLX knows. Garbage of a failed step is, too.
pub(crate) fn is_available(array: &Array) -> bool {
    let mut available = false;
    // SAFETY: the handle is live, the out-parameter ours. It cannot fail for a live handle; if it
    // did, the array would count as not computed, which is the careful answer.
    unsafe { sys::_mlx_array_is_available(&mut available, array.raw()) };
    available
}

/// An evaluation of `arrays` succeeded and was waited for.
///
/// `started` says that some of them were only started by it, and so everything before them on
/// the stream is done; otherwise later work may still be running.
pub(crate) fn good<'a>(arrays: impl IntoIterator<Item = &'a Array>, started: bool) {
    let mut latest = 0;
    for array in arrays {
        latest = latest.max(array.made());
        array.set_made(DATA);
    }
    let until = if started { CLOCK.get() } else { latest };
    LAST_GOOD.set(until.max(LAST_GOOD.get()));
}

/// An evaluation of `arrays` failed: poisons its step and returns the error to report.
pub(crate) fn failed<'a>(arrays: impl IntoIterator<Item = &'a Array>, error: Error) -> Error {
    let until = stamp();
    for array in arrays {
        array.set_made(until);
    }
    FAILED.with_borrow_mut(|steps| {
        // The reasons are for the message only: an old array then names a later one.
        if steps.len() == 64 {
            steps.remove(0);
        }
        steps.push(Step {
            until,
            reason: error.to_string(),
        });
    });
    LAST_FAILED.set(until);
    LAST_GOOD.set(until);
    error
}

/// Fails if `array` belongs to a failed step.
pub(crate) fn check(array: &Array) -> Result<()> {
    let made = array.made();
    if made == DATA {
        return Ok(());
    }
    if made > LAST_FAILED.get() {
        if made <= LAST_GOOD.get() && !SEVERAL.get() && is_available(array) {
            array.set_made(DATA);
        }
        return Ok(());
    }
    FAILED.with_borrow(|steps| {
        let reason = steps
            .iter()
            .find(|step| made <= step.until)
            .map_or("", |step| &step.reason);
        let message = format!("array belongs to a step whose evaluation failed: {reason}");
        Err(Error::new(ErrorKind::Poisoned, message))
    })
}
