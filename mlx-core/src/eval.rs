//! Running the lazy graph.

use std::borrow::Borrow;

use mlx_c_sys as sys;

use crate::array::Array;
use crate::error::{ErrorKind, Result};
use crate::ffi::{self, Arg, vector::VectorArray};
use crate::{poison, stream};

/// Computes `arrays` and waits for them.
///
/// # Errors
/// A kernel fails, or an asynchronous one failed earlier on the same stream. Every array made on
/// this thread since the last good evaluation is then poisoned: reading or using it is an error.
pub fn eval<A: Borrow<Array>>(arrays: impl IntoIterator<Item = A>) -> Result<()> {
    run(arrays, |vector| {
        // SAFETY: a live vector of live arrays.
        unsafe { sys::mlx_eval(vector) }
    })?;
    poison::good();
    Ok(())
}

/// Starts computing `arrays` and returns at once.
///
/// # Errors
/// As [`eval`]; an error of a kernel arrives at the next wait instead.
pub fn async_eval<A: Borrow<Array>>(arrays: impl IntoIterator<Item = A>) -> Result<()> {
    run(arrays, |vector| {
        // SAFETY: a live vector of live arrays.
        unsafe { sys::mlx_async_eval(vector) }
    })
}

fn run<A: Borrow<Array>>(
    arrays: impl IntoIterator<Item = A>,
    f: impl FnOnce(sys::mlx_vector_array) -> i32,
) -> Result<()> {
    let arrays: Vec<A> = arrays.into_iter().collect();
    let vector = VectorArray::new(arrays.iter().map(Borrow::borrow))?;
    ffi::call(ErrorKind::Eval, || f(vector.c()))
        .map_err(|error| poison::failed(arrays.iter().map(Borrow::borrow), error))
}

/// Waits for everything queued on the current stream.
///
/// # Errors
/// A kernel failed; see [`eval`].
pub fn synchronize() -> Result<()> {
    let stream = stream::current()?;
    // SAFETY: the current stream is live.
    ffi::call(ErrorKind::Eval, || unsafe { sys::mlx_synchronize(stream) })
        .map_err(|error| poison::failed([], error))?;
    poison::good();
    Ok(())
}
