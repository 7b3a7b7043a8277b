//! Cross entropy.

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::op;
use crate::ops::checked::Indexed;

/// `logsumexp(logits) - logits[target]` over the last axis, in F32.
///
/// `logits` is `[…, V]`, `targets` are class numbers of shape `[…]`; the result has their shape.
///
/// ```
/// use mlx_core::{Array, DType, fast, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// let logits = zeros(&[1, 4], DType::F32)?;
/// let loss = fast::cross_entropy(&logits, &Array::from_slice(&[2i32], &[1])?)?;
/// assert!((loss.to_vec::<f32>()?[0] - 4f32.ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not fit, or `targets` are not integers. On evaluation: a target outside `0 .. V`.
pub fn cross_entropy(logits: &Array, targets: &Array) -> Result<Array> {
    if !targets.dtype().is_integer() {
        let message = format!(
            "cross entropy needs integer targets, found {}",
            targets.dtype()
        );
        return Err(Error::new(ErrorKind::DType, message));
    }
    if logits.ndim() != targets.ndim() + 1 || !logits.shape().starts_with(targets.shape()) {
        let message = format!(
            "cross entropy needs targets of the shape of the logits without the last axis, found {:?} for {:?}",
            targets.shape(),
            logits.shape()
        );
        return Err(Error::new(ErrorKind::Shape, message));
    }
    if !logits.dtype().is_float() || logits.dtype() == DType::F64 {
        let message = format!(
            "cross entropy needs F16, BF16 or F32 logits, found {}",
            logits.dtype()
        );
        return Err(Error::new(ErrorKind::DType, message));
    }
    let targets = Indexed {
        op: c"cross entropy",
        source: logits,
        axes: &[-1],
        windows: &[1],
        from_end: false,
    }
    .check(targets)?;
    op!(mlxrs_fast_cross_entropy(logits, targets))
}
