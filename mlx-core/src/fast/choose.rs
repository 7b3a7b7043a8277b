//! Reductions over the vocabulary of logits `[.., V]`: argmax, top-n, logsumexp and the threshold of top-p. On the CPU,
//! threads share each of them.

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::op;

/// The index of the largest element along the last axis, the first of equal ones: `[.., V]` -> U32 `[..]`.
///
/// The CPU and CUDA kernels skip NaN; a row that is all NaN gives 0.
///
/// ```
/// use mlx_core::{Array, fast};
///
/// # fn main() -> mlx_core::Result<()> {
/// let logits = Array::from_slice(&[0.0f32, 3.0, 1.0], &[1, 3])?;
/// assert_eq!(fast::argmax(&logits)?.to_vec::<u32>()?, [1]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `x` is a scalar, or its last axis is empty.
pub fn argmax(x: &Array) -> Result<Array> {
    op!(mlxrs_fast_argmax(x))
}

/// `log(sum(e^x))` over the last axis, in F32: `[.., V]` -> `[..]`. Log probabilities are logits minus this.
///
/// ```
/// use mlx_core::{Array, fast};
///
/// # fn main() -> mlx_core::Result<()> {
/// let logits = Array::from_slice(&[0.0f32, 0.0], &[1, 2])?;
/// let log2 = fast::logsumexp(&logits)?.to_vec::<f32>()?[0];
/// assert!((log2 - 2f32.ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `x` is a scalar, or not floating point.
pub fn logsumexp(x: &Array) -> Result<Array> {
    if x.ndim() == 0 || !x.dtype().is_float() {
        let message = format!(
            "logsumexp needs rows of floating point, found {} {:?}",
            x.dtype(),
            x.shape()
        );
        return Err(Error::new(ErrorKind::DType, message));
    }
    op!(mlxrs_fast_logsumexp(x))
}

/// The `n` largest elements along the last axis, best first, equal ones in the order of their indices: `[.., V]` ->
/// indices, U32 `[.., n]`, and values.
///
/// ```
/// use mlx_core::{Array, fast};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = Array::from_slice(&[1.0f32, 5.0, 3.0], &[1, 3])?;
/// let (indices, values) = fast::top(&x, 2)?;
/// assert_eq!(indices.to_vec::<u32>()?, [1, 2]);
/// assert_eq!(values.to_vec::<f32>()?, [5.0, 3.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `n` is not in `1 ..= V`.
pub fn top(x: &Array, n: usize) -> Result<(Array, Array)> {
    let v = x.dim(-1)?;
    let n = i32::try_from(n).ok().filter(|n| (1..=v).contains(n));
    let Some(n) = n else {
        let message = format!("the largest of {v} numbers are 1 to {v}, asked for another number");
        return Err(Error::new(ErrorKind::Invalid, message));
    };
    op!(pair mlxrs_fast_top(x, n))
}

/// The threshold of top-p: logits `x`, F32 `[B, V]`, and probabilities `p`, F32 `[B, 1]` -> the
/// least logit that is kept in each row, `[B, 1]`. In descending order, a token is kept if the
/// tokens before it have less than `p` together.
///
/// Source: Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration".
///
/// ```
/// use mlx_core::{Array, fast};
///
/// # fn main() -> mlx_core::Result<()> {
/// let logits = Array::from_slice(&[5.0f32, 4.0, -9.0], &[1, 3])?;
/// let p = Array::from_slice(&[0.9f32], &[1, 1])?;
/// assert_eq!(fast::nucleus(&logits, &p)?.to_vec::<f32>()?, [4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes or dtypes differ from these.
pub fn nucleus(x: &Array, p: &Array) -> Result<Array> {
    let [rows, _] = x.dims()?;
    if p.shape() != [rows, 1] || x.dtype() != DType::F32 || p.dtype() != DType::F32 {
        let message = format!(
            "nucleus needs F32 logits [B, V] and probabilities [B, 1], found {} {:?} and {} {:?}",
            x.dtype(),
            x.shape(),
            p.dtype(),
            p.shape()
        );
        return Err(Error::new(ErrorKind::Shape, message));
    }
    op!(mlxrs_fast_nucleus(x, p))
}
