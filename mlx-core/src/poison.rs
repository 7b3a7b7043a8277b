//! Keeps arrays of a failed evaluation from being used.
//!
//! When an evaluation fails, MLX reports the error once. Afterwards the arrays of that evaluation look computed and
//! hold garbage. So every array carries the time at which it was made, until it is known to be good. These arrays are
//! good: arrays made from data, the roots of a successful evaluation, and arrays that are already computed when they
//! are used after a later successful evaluation.
//!
//! A failed evaluation poisons all arrays of its thread that are not known to be good. Using or reading a poisoned
//! array is an error that repeats the reason. Then the thread's streams, which skipped everything after the failure,
//! are made usable again. Arrays that are made from good arrays after that are good.

use std::cell::{Cell, RefCell};

use mlx_c_sys as sys;

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};

/// The time of an array that is known to be good.
pub(crate) const DATA: u64 = 0;

struct Step {
    until: u64,
    reason: String,
}

thread_local! {
    static CLOCK: Cell<u64> = const { Cell::new(1) };
    /// All evaluations of arrays that were made up to this time have succeeded.
    static LAST_GOOD: Cell<u64> = const { Cell::new(0) };
    /// Arrays that were made up to this time are poisoned, unless they are known to be good.
    static LAST_FAILED: Cell<u64> = const { Cell::new(0) };
    /// Whether this thread uses more than one stream. Then a successful evaluation tells nothing
    /// about the other streams, and only its roots are known to be good.
    static SEVERAL: Cell<bool> = const { Cell::new(false) };
    static FAILED: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
}

/// The time for an array that is being made.
pub(crate) fn stamp() -> u64 {
    CLOCK.with(|clock| {
        clock.set(clock.get() + 1);
        clock.get()
    })
}

/// Prepares the calling thread for a failure: registering the destructor of a thread-local would end the process if
/// there is no memory left.
pub(crate) fn prepare() {
    FAILED.with(|_| ());
}

/// This thread uses a second stream from now on.
pub(crate) fn several_streams() {
    SEVERAL.set(true);
}

/// Whether this thread uses more than one stream.
pub(crate) fn has_several_streams() -> bool {
    SEVERAL.get()
}

/// Whether MLX regards the array as computed, which it also does for arrays of a failed step.
pub(crate) fn is_available(array: &Array) -> bool {
    let mut available = false;
    // SAFETY: the handle is live, the out-parameter ours. On failure the array counts as not computed,
    // which is the safe answer.
    unsafe { sys::_mlx_array_is_available(&mut available, array.raw()) };
    available
}

/// Notes that an evaluation of `arrays` succeeded and has ended.
/// `started` tells that this evaluation started some of them. Then all earlier work of the stream has ended too;
/// otherwise later work may still be running.
pub(crate) fn good<'a>(arrays: impl IntoIterator<Item = &'a Array>, started: bool) {
    let mut latest = 0;
    for array in arrays {
        latest = latest.max(array.made());
        array.set_made(DATA);
    }
    let until = if started { CLOCK.get() } else { latest };
    LAST_GOOD.set(until.max(LAST_GOOD.get()));
}

/// Notes that an evaluation of `arrays` failed: poisons its step, and returns the error for the caller.
pub(crate) fn failed<'a>(arrays: impl IntoIterator<Item = &'a Array>, error: Error) -> Error {
    let until = stamp();
    for array in arrays {
        array.set_made(until);
    }
    FAILED.with_borrow_mut(|steps| {
        // Only so many reasons are kept. An array of a dropped one reports the reason of a later failure.
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
    // SAFETY: takes nothing. Everything that the streams of this thread were given is poisoned now.
    unsafe { sys::mlxrs_rearm() };
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
