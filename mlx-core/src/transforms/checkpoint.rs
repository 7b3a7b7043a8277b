//! Recomputation in the backward pass, to save memory.

use std::cell::Cell;
use std::rc::Rc;

use mlx_c_sys as sys;

use super::not_empty;
use crate::array::Array;
use crate::error::Result;
use crate::ffi::closure::Closure;
use crate::random;

/// A function that computes the same as `f` but keeps no intermediate results for the backward pass, which runs `f`
/// again instead.
///
/// Each run draws the same default keys ([`random::next_key`]) for one call of the function, so
/// that the backward pass drops the elements that dropout dropped before.
///
/// Gradients flow to the arguments only: pass parameters as arguments, do not capture them. The
/// gradient cannot be mapped ([`vmap`](super::vmap())) over; the function itself can.
///
/// # Errors
/// There is no memory. The returned function fails where `f` does.
pub fn checkpoint_with<F>(f: F) -> Result<impl Fn(&[Array]) -> Result<Vec<Array>>>
where
    F: Fn(&[Array]) -> Result<Vec<Array>> + 'static,
{
    let f = Rc::new(f);
    Ok(move |inputs: &[Array]| {
        let f = Rc::clone(&f);
        let keys = Cell::new(None);
        let plain = Closure::keep(move |inputs| {
            let outputs = match keys.get() {
                None => {
                    keys.set(Some(random::state()));
                    f(inputs)?
                }
                Some(first) => random::with_state(first, || f(inputs))?,
            };
            not_empty("checkpoint", outputs)
        })?;
        // SAFETY: a live closure, a fresh out-handle; MLX keeps its own reference to `plain`.
        let closure = Closure::make(|res| unsafe { sys::mlx_checkpoint(res, plain.raw()) })?;
        closure.call(inputs)
    })
}
