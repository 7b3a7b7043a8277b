//! Norms, alone and with the addition of a residual.

use crate::array::Array;
use crate::error::Result;
use crate::ffi::op;
use crate::ops::zeros;

/// `x / sqrt(mean(x²) + eps) · weight` over the last axis, accumulated in F32.
///
/// `weight` is `[last axis]`. Source: Zhang and Sennrich 2019, "Root Mean Square Layer
/// Normalization".
///
/// # Errors
/// `x` is a scalar or not floating point, or `weight` does not fit its last axis.
pub fn rms_norm<'a>(x: &Array, weight: impl Into<Option<&'a Array>>, eps: f32) -> Result<Array> {
    let weight = weight.into();
    op!(mlxrs_fast_rms_norm(x, weight, eps))
}

/// `(x - mean) / sqrt(variance + eps) · weight + bias` over the last axis, accumulated in F32.
/// `weight` and `bias` are `[last axis]`.
///
/// # Errors
/// As [`rms_norm`].
pub fn layer_norm<'w, 'b>(
    x: &Array,
    weight: impl Into<Option<&'w Array>>,
    bias: impl Into<Option<&'b Array>>,
    eps: f32,
) -> Result<Array> {
    let (weight, bias) = (weight.into(), bias.into());
    let y = op!(mlx_fast_layer_norm(x, weight, bias, eps))?;
    // MLX's mean of a row without elements may never return.
    match y.size() {
        0 => zeros(y.shape(), y.dtype()),
        _ => Ok(y),
    }
}

/// `residual + x`; the shapes broadcast. On the CPU all threads share the work.
///
/// ```
/// use mlx_core::{array, fast};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(fast::add(&array![1.0f32], &array![2.0f32])?.to_vec::<f32>()?, [3.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not broadcast.
pub fn add(x: &Array, residual: &Array) -> Result<Array> {
    let none = None::<&Array>;
    let (sum, _) = op!(pair mlxrs_fast_add_norm(x, residual, none, none, 0.0f32))?;
    Ok(sum)
}

/// `residual + rms_norm(x, weight)`: the residual addition of Gemma, after attention and after the
/// MLP. `weight` is `[last axis]`.
///
/// On the CPU the result is rounded once. As two operations it would be rounded twice.
///
/// # Errors
/// As [`rms_norm`], or the shapes do not broadcast.
pub fn norm_add(x: &Array, weight: &Array, residual: &Array, eps: f32) -> Result<Array> {
    let (sum, _) = op!(pair mlxrs_fast_add_norm(x, residual, weight, None::<&Array>, eps))?;
    Ok(sum)
}

/// The sum and its norm, `rms_norm(sum, weight)`: the residual addition after attention or MLP, and
/// the norm that follows it. The sum is `residual + x`, or `residual + rms_norm(x, inner)` with an
/// inner weight.
///
/// `inner` and `weight` are `[last axis]`. The norm's input is the sum after it was rounded to its
/// dtype.
///
/// # Errors
/// As [`rms_norm`], or the shapes do not broadcast.
pub fn add_norm(
    x: &Array,
    residual: &Array,
    inner: Option<&Array>,
    weight: &Array,
    eps: f32,
) -> Result<(Array, Array)> {
    op!(pair mlxrs_fast_add_norm(x, residual, inner, weight, eps))
}
