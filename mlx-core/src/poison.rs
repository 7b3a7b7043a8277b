//! Keeps arrays of a failed evaluation from being used.
//!
//! When an evaluation fails, MLX reports the error once. Afterwards the arrays of that evaluation
//! look computed and hold garbage. On Linux the shim records the outcome of each operation that was
//! queued, so only the arrays that depend on a failed operation are lost. Elsewhere every array
//! that was made before the failure is lost, unless it is known to be good.
//!
//! So every array carries the time at which it was made, until it is known to be good. These arrays
//! are good: arrays made from data, the roots of a successful evaluation, and arrays that are
//! already computed when they are used after a later successful evaluation. An array that was made
//! before the last failure is checked when it is used: it is lost, or it gets the present time.
//!
//! Using or reading a lost array is an error that repeats the reason. An operation that could not
//! be queued, because there was no memory for its result, is not lost: it stays lazy. After a
//! failure the thread's streams are made usable again.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString};

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
    /// Arrays that were made up to this time may be lost, unless they are known to be good.
    static LAST_FAILED: Cell<u64> = const { Cell::new(0) };
    /// Whether this thread uses more than one stream. Then a successful evaluation says nothing
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

/// Prepares the calling thread for a failure: registering the destructor of a thread-local would
/// end the process if there is no memory left.
pub(crate) fn prepare() {
    FAILED.with(|_| ());
}

/// Notes that this thread uses a second stream from now on.
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
    // SAFETY: the handle is live, the out-parameter is a local variable. On failure the array
    // counts as not computed, which is the safe answer.
    unsafe { sys::_mlx_array_is_available(&mut available, array.raw()) };
    available
}

/// Notes that an evaluation of `arrays` succeeded and has ended. `started` is true if this
/// evaluation started the computation of some of them. Then all earlier work of the stream has
/// ended too; otherwise later work may still be running.
pub(crate) fn good<'a>(arrays: impl IntoIterator<Item = &'a Array>, started: bool) {
    let mut latest = 0;
    for array in arrays {
        latest = latest.max(array.made());
        array.set_made(DATA);
    }
    let until = if started { CLOCK.get() } else { latest };
    LAST_GOOD.set(until.max(LAST_GOOD.get()));
}

/// Notes that an evaluation of `arrays` failed, and returns the error for the caller.
pub(crate) fn failed<'a>(arrays: impl IntoIterator<Item = &'a Array>, error: Error) -> Error {
    let until = stamp();
    for array in arrays {
        array.set_made(until);
    }
    FAILED.with_borrow_mut(|steps| {
        // At most 64 reasons are kept. An array whose reason was dropped reports the reason of a
        // later failure.
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
    // A truncated file is the one failure with this kind. Any operation may have read what was
    // lost.
    let all = error.kind() == ErrorKind::Io;
    let reason = CString::new(error.to_string()).unwrap_or_default();
    // SAFETY: a C string that lives through the call.
    unsafe { sys::mlxrs_clear_failures(reason.as_ptr(), all) };
    error
}

/// Whether `array` depends on a failed operation, with the reason if it is known.
fn lost(array: &Array) -> (bool, Option<String>) {
    let (mut lost, mut reason) = (true, std::ptr::null());
    // SAFETY: the handle is live, the out-parameters are local variables; on failure the array
    // counts as lost, which is the safe answer. The text is copied before the next call.
    unsafe {
        sys::mlxrs_array_lost(&mut lost, &mut reason, array.raw());
        let reason = (!reason.is_null()).then(|| CStr::from_ptr(reason).to_string_lossy().into());
        (lost, reason)
    }
}

/// Fails if `array` is lost.
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
    let (lost, reason) = lost(array);
    if !lost {
        array.set_made(stamp());
        return Ok(());
    }
    let reason = reason.unwrap_or_else(|| {
        FAILED.with_borrow(|steps| {
            let step = steps.iter().find(|step| made <= step.until);
            step.map_or_else(String::new, |step| step.reason.clone())
        })
    });
    let message = format!("array belongs to a step whose evaluation failed: {reason}");
    Err(Error::new(ErrorKind::Poisoned, message))
}
