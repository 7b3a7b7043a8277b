//! Norms, alone and with the addition of a residual.

use super::gated::{Gate, gated};
use super::row_norm::{Kind, row_norm};
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
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

/// [`layer_norm`] whose result is rounded once on the CPU if it has 16 bits, as torch rounds it. MLX's operation, which
/// other devices run, rounds the norm, the product with the weight and the sum.
///
/// ```
/// use mlx_core::{DType, array, fast};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![[1.0f32, 2.0, 4.0]].astype(DType::BF16)?;
/// let y = fast::layer_norm_rounded_once(&x, None, None, 1e-5)?;
/// let near = y.allclose(&fast::layer_norm(&x, None, None, 1e-5)?)?;
/// assert!(near.item::<bool>()?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`rms_norm`].
pub fn layer_norm_rounded_once<'w, 'b>(
    x: &Array,
    weight: impl Into<Option<&'w Array>>,
    bias: impl Into<Option<&'b Array>>,
    eps: f32,
) -> Result<Array> {
    let (weight, bias) = (weight.into(), bias.into());
    match row_norm(Kind::Layer, x, [None, weight, bias], eps)? {
        Some(y) => Ok(y),
        None => layer_norm(x, weight, bias, eps),
    }
}

/// `z / sqrt(mean(z²) + eps) · weight`, where `z = x · silu(gate)`: the norm behind the scan of Mamba 2 (Dao and Gu,
/// arXiv:2405.21060). Each of `groups` parts of the last axis has a mean of its own.
///
/// `gate` has the shape of `x`, `weight` is `[last axis]`. On the CPU a result of 16 bits is rounded once.
///
/// ```
/// use mlx_core::{array, fast};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, gate) = (array![[3.0f32, -3.0, 0.1, 0.1]], array![[5.0f32, 5.0, 9.0, 9.0]]);
/// let y = fast::gated_norm(&x, &gate, None, 2, 1e-6)?;
/// assert!(y.subtract(array![[1.0f32, -1.0, 1.0, 1.0]])?.abs()?.max(.., false)?.item::<f32>()? < 1e-3);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `groups` does not divide the last axis, or the shapes do not fit.
pub fn gated_norm<'a>(
    x: &Array,
    gate: &Array,
    weight: impl Into<Option<&'a Array>>,
    groups: i32,
    eps: f32,
) -> Result<Array> {
    let size = x.shape().last().copied().unwrap_or(0);
    if groups < 1 || size % groups != 0 || gate.shape() != x.shape() {
        let message = format!(
            "gated_norm: x is {:?}, the gate {:?}; both must have one shape, and {groups} groups must divide the last axis",
            x.shape(),
            gate.shape()
        );
        return Err(Error::new(ErrorKind::Shape, message));
    }
    let weight = weight.into();
    match row_norm(Kind::Gated(groups), x, [Some(gate), weight, None], eps)? {
        Some(y) => Ok(y),
        None => gated_norm_apart(x, gate, weight, groups, eps),
    }
}

/// [`gated_norm`] by several operations.
pub(super) fn gated_norm_apart(
    x: &Array,
    gate: &Array,
    weight: Option<&Array>,
    groups: i32,
    eps: f32,
) -> Result<Array> {
    let z = gated(Gate::Silu, gate, x)?;
    if groups == 1 {
        return rms_norm(&z, weight, eps);
    }
    let parts = z.unflatten(-1, &[groups, -1])?;
    let normed = rms_norm(&parts, None, eps)?.reshape(x.shape())?;
    match weight {
        Some(weight) => normed.multiply(weight),
        None => Ok(normed),
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
