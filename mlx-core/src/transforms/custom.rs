//! Functions with a derivative that the caller defines.

use mlx_c_sys as sys;

use super::not_empty;
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::closure::{Closure, CustomClosure};

/// A function that computes `f`, and whose derivative is `vjp`.
///
/// `vjp` gets the primals, the cotangents (one an output) and the outputs of `f`, and returns one
/// array a primal, of the primal's shape.
///
/// # Errors
/// There is no memory. The returned function fails where `f` does; its derivative fails where `vjp`
/// does, or returns arrays of the wrong number or shapes.
pub fn custom_vjp_with<F, V>(f: F, vjp: V) -> Result<impl Fn(&[Array]) -> Result<Vec<Array>>>
where
    F: Fn(&[Array]) -> Result<Vec<Array>> + 'static,
    V: Fn(&[Array], &[Array], &[Array]) -> Result<Vec<Array>> + 'static,
{
    let plain = Closure::keep(move |inputs| not_empty("custom_vjp", f(inputs)?))?;
    let derivative = CustomClosure::keep(move |primals, cotangents, outputs| {
        let derivatives = vjp(primals, cotangents, outputs)?;
        check_derivatives("custom_vjp", primals, &derivatives)?;
        Ok(derivatives)
    })?;
    let closure = Closure::make(|res| {
        // SAFETY: live closures, a fresh out-handle; MLX keeps its own references to both.
        unsafe { sys::mlx_custom_vjp(res, plain.raw(), derivative.raw()) }
    })?;
    Ok(move |inputs: &[Array]| closure.call(inputs))
}

/// Checks number and shapes. MLX does not, and would compute garbage later.
pub(crate) fn check_derivatives<'a>(
    what: &str,
    primals: impl IntoIterator<Item = &'a Array, IntoIter: ExactSizeIterator>,
    derivatives: &[Array],
) -> Result<()> {
    let primals = primals.into_iter();
    if primals.len() != derivatives.len() {
        let message = format!(
            "the vjp of {what} must return {} arrays, one for each primal, found {}",
            primals.len(),
            derivatives.len()
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    for (index, (primal, derivative)) in primals.zip(derivatives).enumerate() {
        if primal.shape() != derivative.shape() {
            let message = format!(
                "the vjp of {what} returned shape {:?} for primal {index} of shape {:?}",
                derivative.shape(),
                primal.shape()
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
    }
    Ok(())
}
