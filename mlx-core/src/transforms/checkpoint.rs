//! Recomputation in the backward pass, to save memory.

use mlx_c_sys as sys;

use super::not_empty;
use crate::array::Array;
use crate::error::Result;
use crate::ffi::closure::Closure;

/// A function that computes the same as `f` but keeps no intermediate results for the backward pass, which runs `f`
/// again instead.
///
/// Gradients flow to the arguments only: pass parameters as arguments, do not capture them. The
/// gradient cannot be mapped ([`vmap`](super::vmap())) over; the function itself can.
///
/// # Errors
/// MLX has no memory. The returned function fails where `f` does.
pub fn checkpoint_with<F>(f: F) -> Result<impl Fn(&[Array]) -> Result<Vec<Array>>>
where
    F: Fn(&[Array]) -> Result<Vec<Array>> + 'static,
{
    let plain = Closure::keep(move |inputs| not_empty("checkpoint", f(inputs)?))?;
    // SAFETY: a live closure, a fresh out-handle; MLX keeps its own reference to `plain`.
    let closure = Closure::make(|res| unsafe { sys::mlx_checkpoint(res, plain.raw()) })?;
    Ok(move |inputs: &[Array]| closure.call(inputs))
}
