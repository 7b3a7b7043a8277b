//! Clipping gradients by their common norm.

use std::borrow::Borrow;

use mlx_core::ops::stack;
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use crate::grad::Gradients;

/// The root of the sum of squares of all gradients: an F32 scalar.
///
/// # Errors
/// There are no gradients.
pub fn global_norm(grads: &Gradients) -> Result<Array> {
    let squares: Result<Vec<Array>> = grads
        .values()
        .map(|grad| grad.astype(DType::F32)?.square()?.sum(.., false))
        .collect();
    let squares = squares?;
    if squares.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "there are no gradients"));
    }
    stack(&squares, 0)?.sum(.., false)?.sqrt()
}

/// Scales all gradients by one factor, so that their [`global_norm`] is at most `max`. Returns the
/// norm before scaling.
///
/// The factor is `min(1, max / (norm + 1e-6))`, as in PyTorch's `clip_grad_norm_`.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::{Linear, clip, value_and_grad};
///
/// # fn main() -> Result<()> {
/// let mut layer = Linear::new(2, 1, true)?;
/// let (_, mut grads) = value_and_grad(&mut layer, |layer| {
///     layer.forward(&array![[30.0, 40.0]])?.sum_all()
/// })?;
/// let before = clip::clip(&mut grads, 1.0)?;
/// assert!(before.item::<f32>()? > 50.0);
/// assert!((clip::global_norm(&grads)?.item::<f32>()? - 1.0).abs() < 1e-4);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `max` is not a positive number, or there are no gradients.
pub fn clip(grads: &mut Gradients, max: f32) -> Result<Array> {
    if !(max.is_finite() && max > 0.0) {
        let message = format!("the norm to clip to must be a positive number, given {max}");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let norm = global_norm(grads)?;
    let factor = Array::scalar(max)?.divide(norm.add(1e-6)?)?.minimum(1.0)?;
    for grad in grads.values_mut() {
        let dtype = grad.dtype();
        *grad = grad.astype(DType::F32)?.multiply(&factor)?.astype(dtype)?;
    }
    Ok(norm)
}

/// The gradients scaled by one factor, as by [`clip`], and their norm before: Python's `clip_grad_norm`.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::{Gradients, clip_grad_norm};
///
/// # fn main() -> Result<()> {
/// let grads = Gradients::from([("w".to_owned(), array![3.0, 4.0])]);
/// let (clipped, norm) = clip_grad_norm(&grads, 10.0)?;
/// assert_eq!(norm.item::<f32>()?, 5.0);
/// assert_eq!(clipped["w"].to_vec::<f32>()?, [3.0, 4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`clip`].
pub fn clip_grad_norm(grads: impl Borrow<Gradients>, max: f32) -> Result<(Gradients, Array)> {
    let mut clipped = grads.borrow().clone();
    let norm = clip(&mut clipped, max)?;
    Ok((clipped, norm))
}
