//! Derivatives, forward and backward.

use mlx_c_sys as sys;

use super::not_empty;
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::closure::{self, Closure};
use crate::ffi::vector::VectorArray;
use crate::ffi::{self, Arg};

/// Outputs of a function, and derivatives.
type Pair = (Vec<Array>, Vec<Array>);

/// The outputs of `f` at `primals`, and the cotangents pulled back to each primal.
///
/// `cotangents` has one array an output, of its shape; the derivatives have the shapes of the
/// primals.
///
/// ```
/// # use mlx_core::{Array, Result, transforms::vjp_with};
/// # fn main() -> Result<()> {
/// let x = Array::from_slice(&[1.0f32, 2.0], &[2])?;
/// let ones = Array::from_slice(&[1.0f32, 1.0], &[2])?;
/// let (_, d) = vjp_with(|x| Ok(vec![x[0].multiply(&x[0])?]), &[x], &[ones])?;
/// assert_eq!(d[0].to_vec::<f32>()?, [2.0, 4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `f` fails, the cotangents do not fit the outputs, or an operation has no derivative.
pub fn vjp_with<F>(mut f: F, primals: &[Array], cotangents: &[Array]) -> Result<Pair>
where
    F: FnMut(&[Array]) -> Result<Vec<Array>>,
{
    pair(
        &mut f,
        primals,
        cotangents,
        |outputs, derivatives, closure, primals, cotangents| {
            // SAFETY: live handles; fresh out-handles.
            unsafe { sys::mlx_vjp(outputs, derivatives, closure, primals, cotangents) }
        },
    )
}

/// The outputs of `f` at `primals`, and the tangents pushed forward to each output.
///
/// `tangents` has one array a primal, of its shape; the derivatives have the shapes of the outputs.
///
/// # Errors
/// `f` fails, the tangents do not fit the primals, or an operation has no derivative.
pub fn jvp_with<F>(mut f: F, primals: &[Array], tangents: &[Array]) -> Result<Pair>
where
    F: FnMut(&[Array]) -> Result<Vec<Array>>,
{
    pair(
        &mut f,
        primals,
        tangents,
        |outputs, derivatives, closure, primals, tangents| {
            // SAFETY: live handles; fresh out-handles.
            unsafe { sys::mlx_jvp(outputs, derivatives, closure, primals, tangents) }
        },
    )
}

fn pair(
    f: &mut closure::Lent<'_>,
    left: &[Array],
    right: &[Array],
    run: impl FnOnce(
        *mut sys::mlx_vector_array,
        *mut sys::mlx_vector_array,
        sys::mlx_closure,
        sys::mlx_vector_array,
        sys::mlx_vector_array,
    ) -> i32,
) -> Result<Pair> {
    let (left, right) = (VectorArray::new(left)?, VectorArray::new(right)?);
    closure::lend(f, |closure| {
        let (mut outputs, mut derivatives) = (VectorArray::null(), VectorArray::null());
        ffi::call(ErrorKind::Mlx, || {
            run(
                outputs.as_mut_ptr(),
                derivatives.as_mut_ptr(),
                closure.raw(),
                left.c(),
                right.c(),
            )
        })?;
        Ok((outputs.to_vec()?, derivatives.to_vec()?))
    })
}

/// The outputs of `f` at `args`, and the gradient of the first one, a scalar, with respect to each
/// argument that `argnums` names, in the order of `argnums`.
///
/// Further outputs are passed through; no gradient flows from them.
///
/// # Errors
/// `f` fails or returns nothing, its first output is not a scalar, an argument number is out of
/// range or given twice, or an operation has no derivative.
pub fn value_and_grad_with<F>(mut f: F, args: &[Array], argnums: &[usize]) -> Result<Pair>
where
    F: FnMut(&[Array]) -> Result<Vec<Array>>,
{
    // MLX sorts the numbers, and does not accept an empty list. Both are handled here.
    let mut order: Vec<usize> = (0..argnums.len()).collect();
    order.sort_by_key(|&position| argnums[position]);
    let sorted: Vec<usize> = order.iter().map(|&position| argnums[position]).collect();
    if sorted.is_empty() {
        return Err(Error::new(
            ErrorKind::Invalid,
            "grad needs at least one argument number",
        ));
    }
    if let Some(&number) = sorted.iter().find(|&&number| number >= args.len()) {
        let message = format!(
            "argument number {number} is out of range for {} arguments",
            args.len()
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        let message = format!("argument number {} is given twice", twice[0]);
        return Err(Error::new(ErrorKind::Invalid, message));
    }

    let inputs = VectorArray::new(args)?;
    let mut first = |inputs: &[Array]| {
        let outputs = not_empty("grad", f(inputs)?)?;
        if outputs[0].ndim() != 0 {
            let message = format!(
                "grad needs a scalar first output, found shape {:?}",
                outputs[0].shape()
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        Ok(outputs)
    };
    closure::lend(&mut first, |closure| {
        let function = ValueAndGrad::new(closure, &sorted)?;
        let (mut outputs, mut grads) = (VectorArray::null(), VectorArray::null());
        ffi::call(ErrorKind::Mlx, || {
            let (outputs, grads) = (outputs.as_mut_ptr(), grads.as_mut_ptr());
            // SAFETY: live handles; fresh out-handles.
            unsafe { sys::mlx_closure_value_and_grad_apply(outputs, grads, function.0, inputs.c()) }
        })?;
        let mut grads: Vec<(usize, Array)> = order.iter().copied().zip(grads.to_vec()?).collect();
        grads.sort_by_key(|&(position, _)| position);
        Ok((
            outputs.to_vec()?,
            grads.into_iter().map(|(_, grad)| grad).collect(),
        ))
    })
}

/// The gradients of [`value_and_grad_with`] alone.
///
/// # Errors
/// The same as those of [`value_and_grad_with`].
pub fn grad_with<F>(f: F, args: &[Array], argnums: &[usize]) -> Result<Vec<Array>>
where
    F: FnMut(&[Array]) -> Result<Vec<Array>>,
{
    value_and_grad_with(f, args, argnums).map(|(_, grads)| grads)
}

struct ValueAndGrad(sys::mlx_closure_value_and_grad);

impl ValueAndGrad {
    fn new(closure: &Closure, argnums: &[usize]) -> Result<Self> {
        let argnums: Vec<i32> = argnums.iter().map(|&number| number as i32).collect();
        let mut function = Self(sys::mlx_closure_value_and_grad {
            ctx: std::ptr::null_mut(),
        });
        ffi::call(ErrorKind::Mlx, || {
            // SAFETY: a live closure, a slice with its length, a fresh out-handle.
            unsafe {
                sys::mlx_value_and_grad(
                    &mut function.0,
                    closure.raw(),
                    argnums.as_ptr(),
                    argnums.len(),
                )
            }
        })?;
        Ok(function)
    }
}

impl Drop for ValueAndGrad {
    fn drop(&mut self) {
        if !self.0.ctx.is_null() {
            // SAFETY: owned, non-null, freed once.
            unsafe { sys::mlx_closure_value_and_grad_free(self.0) };
        }
    }
}
