//! Products with matrices that are dense or quantised.

use std::ptr;

use mlx_c_sys as sys;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{Arg, op};
use crate::ops::quantize::Scheme;
use crate::poison;

/// A matrix `[out, in]`, or several of them `[.., out, in]`.
///
/// ```
/// use mlx_core::{DType, fast::{self, Matrix}, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, w) = (ones(&[1, 4], DType::F32)?, ones(&[2, 4], DType::F32)?);
/// let y = fast::linear_many(&x, &[Matrix::Dense(&w), Matrix::Dense(&w)])?;
/// assert_eq!(y[1].to_vec::<f32>()?, [4.0, 4.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Matrix<'a> {
    /// Floating point.
    Dense(&'a Array),
    /// The parts that [`quantize`](crate::ops::quantize::quantize) gives.
    Quantized {
        /// U32 `[.., out, in · bits / 32]`
        packed: &'a Array,
        /// `[.., out, in / group_size]`
        scales: &'a Array,
        /// As `scales`; only of affine schemes.
        biases: Option<&'a Array>,
        /// How elements are packed.
        scheme: Scheme,
    },
}

impl<'a> Matrix<'a> {
    /// The matrix with these parts.
    fn quantized(
        operation: &str,
        packed: &'a Array,
        scales: &'a Array,
        biases: Option<&'a Array>,
        scheme: Scheme,
    ) -> Result<Self> {
        scheme.check_parts(operation, packed, scales, biases)?;
        Ok(Self::Quantized {
            packed,
            scales,
            biases,
            scheme,
        })
    }

    /// Checks that the parts fit each other, and that `x` can be multiplied with the matrix.
    pub(super) fn check(&self, operation: &str, x: &Array) -> Result<()> {
        if x.ndim() == 0 {
            let message = format!("{operation} needs x to be at least a vector, found a scalar");
            return Err(Error::new(ErrorKind::Shape, message));
        }
        match *self {
            Self::Dense(_) => Ok(()),
            Self::Quantized {
                packed,
                scales,
                biases,
                scheme,
            } => scheme.check_parts(operation, packed, scales, biases),
        }
    }
}

impl Arg for Matrix<'_> {
    type C = sys::mlxrs_matrix;
    fn c(&self) -> Self::C {
        match *self {
            Self::Dense(weight) => sys::mlxrs_matrix {
                weight: weight.c(),
                scales: None::<&Array>.c(),
                biases: None::<&Array>.c(),
                group_size: 0,
                bits: 0,
                mode: ptr::null(),
            },
            Self::Quantized {
                packed,
                scales,
                biases,
                scheme,
            } => sys::mlxrs_matrix {
                weight: packed.c(),
                scales: scales.c(),
                biases: biases.c(),
                group_size: scheme.group_size,
                bits: scheme.bits,
                mode: scheme.mode.c_name().as_ptr(),
            },
        }
    }
    fn check(&self) -> Result<()> {
        match *self {
            Self::Dense(weight) => poison::check(weight),
            Self::Quantized {
                packed,
                scales,
                biases,
                ..
            } => [packed, scales]
                .into_iter()
                .chain(biases)
                .try_for_each(poison::check),
        }
    }
}

/// `x weightᵀ`: `x` is `[.., in]`, `weight` `[out, in]`, the result `[.., out]`.
///
/// ```
/// use mlx_core::{DType, fast, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, w) = (ones(&[1, 4], DType::F32)?, ones(&[2, 4], DType::F32)?);
/// assert_eq!(fast::linear(&x, &w)?.to_vec::<f32>()?, [4.0, 4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not fit.
pub fn linear(x: &Array, weight: &Array) -> Result<Array> {
    op!(mlxrs_fast_linear(x, Matrix::Dense(weight)))
}

/// `x wᵀ` for a quantised `w` `[out, in]`: `x` is `[.., in]`, the result `[.., out]`.
///
/// The weights are those that [`dequantize`](crate::ops::quantize::dequantize) gives in `x`'s dtype, or the same
/// without rounding; sums are in F32. On CPUs, a 16-bit `x` is first rounded to 16-bit integers if weights are affine
/// (on CPUs with AMX, if `x` also has at most eight rows). Each group (or 256 elements) has a scale of its own. The
/// error is smaller than that of rounding weights to BF16 (`docs/design/cpu-kernels.md`).
///
/// ```
/// use mlx_core::{DType, QuantMode, Quantized, Scheme, fast, ones, quantize_with};
///
/// # fn main() -> mlx_core::Result<()> {
/// let w = ones(&[2, 64], DType::F32)?;
/// let scheme = Scheme::new(64, 4, QuantMode::Affine)?;
/// let Quantized { packed, scales, biases } = quantize_with(&w, scheme)?;
/// let x = ones(&[1, 64], DType::F32)?;
/// let y = fast::quantized_linear(&x, &packed, &scales, biases.as_ref(), scheme)?;
/// assert_eq!(y.to_vec::<f32>()?, [64.0, 64.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The parts do not fit each other, the sizes do not fit, or MLX does not support the scheme.
pub fn quantized_linear(
    x: &Array,
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    scheme: Scheme,
) -> Result<Array> {
    let w = Matrix::quantized("quantized_linear", packed, scales, biases, scheme)?;
    w.check("quantized_linear", x)?;
    op!(mlxrs_fast_linear(x, w))
}

/// The products of one `x` `[.., in]` with several matrices `[out, in]`, in order: `[.., out]`
/// each.
///
/// On the CPU they are one node if `x` has 16-bit elements and the matrices have one coding: `x` is read once, and all
/// threads share all products. The results have the same bits as those of separate products.
///
/// ```
/// use mlx_core::{DType, fast::{self, Matrix}, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, w) = (ones(&[1, 4], DType::F32)?, ones(&[2, 4], DType::F32)?);
/// let [q, k]: [_; 2] = fast::linear_many(&x, &[Matrix::Dense(&w), Matrix::Dense(&w)])?.try_into().unwrap();
/// assert_eq!((q.shape(), k.shape()), (&[1, 2][..], &[1, 2][..]));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`linear`] and [`quantized_linear`].
pub fn linear_many(x: &Array, matrices: &[Matrix<'_>]) -> Result<Vec<Array>> {
    for w in matrices {
        w.check("linear_many", x)?;
        Arg::check(w)?;
    }
    let matrices: Vec<_> = matrices.iter().map(Arg::c).collect();
    op!(vector mlxrs_fast_linear_many(x, [matrices]))
}

/// `x[…] w[indices[…]]ᵀ`: each row of `x` `[…A, 1, in]` multiplied by one matrix of `w`
/// `[experts, out, in]`, for `indices` `[…B]` of I32 or U32 → `[…, 1, out]`, where `A` and `B`
/// broadcast.
///
/// ```
/// use mlx_core::{Array, DType, fast, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = ones(&[1, 4], DType::F32)?;
/// let experts = ones(&[3, 2, 4], DType::F32)?;
/// let chosen = Array::from_slice(&[2u32, 0], &[2])?;
/// assert_eq!(fast::experts_linear(&x, &experts, &chosen)?.shape(), [2, 1, 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not fit. On evaluation: an index that is negative or not below the number of
/// experts. GPUs without this crate's kernels use another expert instead.
pub fn experts_linear(x: &Array, w: &Array, indices: &Array) -> Result<Array> {
    op!(mlxrs_fast_experts(x, Matrix::Dense(w), indices))
}

/// [`experts_linear`] with quantised matrices, as [`quantized_linear`] takes one.
///
/// # Errors
/// The parts do not fit each other, the sizes do not fit, or MLX does not support the scheme.
pub fn quantized_experts_linear(
    x: &Array,
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    indices: &Array,
    scheme: Scheme,
) -> Result<Array> {
    let w = Matrix::quantized("quantized_experts_linear", packed, scales, biases, scheme)?;
    op!(mlxrs_fast_experts(x, w, indices))
}

/// The rows of `w` `[rows, in]` that `indices` `[..]` name: `[.., in]`. Negative indices count from the end.
///
/// ```
/// use mlx_core::{Array, DType, fast, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let table = ones(&[10, 4], DType::F32)?;
/// let ids = Array::from_slice(&[3u32, 7], &[2])?;
/// assert_eq!(fast::rows(&table, &ids)?.shape(), [2, 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `w` is not a matrix of floating point. On evaluation: an index out of range. GPUs without this
/// crate's kernels use another row instead.
pub fn rows(w: &Array, indices: &Array) -> Result<Array> {
    op!(mlxrs_fast_lookup(indices, Matrix::Dense(w), w.dtype()))
}

/// [`rows`] of a quantised matrix, written out in `dtype`.
///
/// ```
/// use mlx_core::{Array, DType, QuantMode, Quantized, Scheme, fast, ones, quantize_with};
///
/// # fn main() -> mlx_core::Result<()> {
/// let w = ones(&[2, 64], DType::F32)?;
/// let scheme = Scheme::new(64, 4, QuantMode::Affine)?;
/// let Quantized { packed, scales, biases } = quantize_with(&w, scheme)?;
/// let ids = Array::from_slice(&[1u32], &[1])?;
/// let row = fast::quantized_rows(&packed, &scales, biases.as_ref(), &ids, scheme, DType::F32)?;
/// assert_eq!(row.shape(), [1, 64]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The parts do not fit each other, or MLX does not support the scheme. On evaluation as [`rows`].
pub fn quantized_rows(
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    indices: &Array,
    scheme: Scheme,
    dtype: DType,
) -> Result<Array> {
    let w = Matrix::quantized("quantized_rows", packed, scales, biases, scheme)?;
    op!(mlxrs_fast_lookup(indices, w, dtype))
}
