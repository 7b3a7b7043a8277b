//! Quantised matrices: packed integers with a scale (and bias) for each group of a row.
//!
//! A matrix `[…, n, k]` of `bits` becomes `packed` `[…, n, k * bits / 32]` U32 and `scales`
//! `[…, n, k / group_size]`; affine matrices also have `biases` of that shape.

mod scheme;

pub use scheme::{QuantMode, Scheme};

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{Opt, op};
use crate::ops::require;
use crate::stream::{Device, DeviceKind};

/// The parts of a quantised matrix.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// The integers, several in a U32.
    pub packed: Array,
    /// One for each group: of the matrix's dtype if affine, else U8.
    pub scales: Array,
    /// One for each group, affine only.
    pub biases: Option<Array>,
}

/// Quantises a matrix `[…, n, k]` of floating point.
///
/// # Errors
/// MLX does not know the scheme, or `k` does not divide into groups.
pub fn quantize(w: &Array, scheme: Scheme) -> Result<Quantized> {
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme.checked()?;
    let name = mode.c_name();
    let parts =
        op!(vector mlx_quantize(w, Opt(Some(group_size)), Opt(Some(bits)), name, None::<&Array>))?;
    let mut parts = parts.into_iter();
    match (parts.next(), parts.next()) {
        (Some(packed), Some(scales)) => Ok(Quantized {
            packed,
            scales,
            biases: parts.next(),
        }),
        _ => Err(Error::new(
            ErrorKind::Mlx,
            "quantize gave fewer than two arrays",
        )),
    }
}

/// The matrix `[…, n, k]` that the parts stand for, in `dtype` (that of affine scales, or BF16).
///
/// # Errors
/// The parts do not belong together, or MLX does not know the scheme.
pub fn dequantize(
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    scheme: Scheme,
    dtype: Option<DType>,
) -> Result<Array> {
    scheme.check_parts("dequantize", packed, scales, biases)?;
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme;
    let name = mode.c_name();
    op!(mlx_dequantize(
        packed,
        scales,
        biases,
        Opt(Some(group_size)),
        Opt(Some(bits)),
        name,
        None::<&Array>,
        Opt(dtype)
    ))
}

/// `x @ w`, or `x @ wᵀ` if `transpose`, for a quantised `w`: `[…, k]` → `[…, n]`.
///
/// # Errors
/// The parts do not belong together, the sizes do not fit, or MLX does not know the scheme.
pub fn quantized_matmul(
    x: &Array,
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    transpose: bool,
    scheme: Scheme,
) -> Result<Array> {
    require(
        x.ndim() > 0,
        "quantized_matmul",
        "x",
        "at least a vector",
        x,
    )?;
    scheme.check_parts("quantized_matmul", packed, scales, biases)?;
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme;
    let name = mode.c_name();
    op!(mlx_quantized_matmul(
        x,
        packed,
        scales,
        biases,
        transpose,
        Opt(Some(group_size)),
        Opt(Some(bits)),
        name
    ))
}

/// Quantised products of chosen pairs, as [`gather_mm`](Array::gather_mm): `x` `[…A, m, k]` with
/// the matrices `[…B, n, k]` → `[…I, m, n]`. The index arrays are not checked.
///
/// # Errors
/// The parts do not belong together, the sizes do not fit, or MLX does not know the scheme.
#[allow(clippy::too_many_arguments)] // As MLX has it; a struct would only rename them.
pub fn gather_qmm(
    x: &Array,
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    lhs_indices: Option<&Array>,
    rhs_indices: Option<&Array>,
    transpose: bool,
    scheme: Scheme,
    sorted: bool,
) -> Result<Array> {
    require(x.ndim() > 1, "gather_qmm", "x", "at least a matrix", x)?;
    scheme.check_parts("gather_qmm", packed, scales, biases)?;
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme;
    let name = mode.c_name();
    op!(mlx_gather_qmm(
        x,
        packed,
        scales,
        biases,
        lhs_indices,
        rhs_indices,
        transpose,
        Opt(Some(group_size)),
        Opt(Some(bits)),
        name,
        sorted
    ))
}

/// `x @ wᵀ` with both sides quantised, `x` on the way: `[…, k]` → `[…, n]`. `w` `[n, k]` may be
/// packed already, with its scales.
///
/// # Errors
/// The mode is affine, the sizes do not fit, or the back end cannot do it: the CPU has it for one
/// row and a packed `w` only.
pub fn qqmm(x: &Array, w: &Array, w_scales: Option<&Array>, scheme: Scheme) -> Result<Array> {
    require(x.ndim() > 0 && w.ndim() == 2, "qqmm", "w", "a matrix", w)?;
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme.checked()?;
    let refuse = |message| Err(Error::new(ErrorKind::Unsupported, message));
    if mode == QuantMode::Affine {
        return refuse(
            "qqmm: affine quantization has no such product; mxfp4, mxfp8 and nvfp4 have",
        );
    }
    let row = x.shape().last().is_some_and(|&k| x.size() == k as usize);
    let simple = row && w_scales.is_some();
    if !simple && Device::default_device()?.kind == DeviceKind::Cpu {
        return refuse("qqmm: the CPU back end multiplies one row by a packed matrix only");
    }
    if let Some(scales) = w_scales {
        scheme.check_parts("qqmm", w, scales, None)?;
    }
    let name = mode.c_name();
    let none = None::<&Array>;
    op!(mlx_qqmm(
        x,
        w,
        w_scales,
        Opt(Some(group_size)),
        Opt(Some(bits)),
        name,
        none,
        none
    ))
}

impl Array {
    /// Converts floating point to 8 bits (E4M3), as U8; the shape stays.
    ///
    /// # Errors
    /// The array is not real floating point.
    pub fn to_fp8(&self) -> Result<Array> {
        op!(mlx_to_fp8(self))
    }

    /// Converts from 8-bit floating point (E4M3, as U8) to `dtype`; the shape stays.
    ///
    /// # Errors
    /// The array is not U8.
    pub fn from_fp8(&self, dtype: DType) -> Result<Array> {
        op!(mlx_from_fp8(self, dtype))
    }
}
