//! Quantised matrices: packed integers with a scale (and bias) for each group of a row.
//!
//! A matrix `[…, n, k]` of `bits` becomes `packed` `[…, n, k * bits / 32]` U32 and `scales`
//! `[…, n, k / group_size]`; affine matrices also have `biases` of that shape.

mod scheme;

pub use scheme::{QuantMode, Scheme};

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::fast;
use crate::ffi::{Opt, op};
use crate::linalg::on_cpu;
use crate::ops::matmul::checked_matrices;
use crate::ops::{require, zeros};
use crate::stream::{is_on_cuda, is_on_gpu};

/// The parts of a quantised matrix.
///
/// ```
/// use mlx_core::{DType, quantize, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let w = random::normal(&random::Key::new(1)?, [8, 64], DType::F32)?;
/// let parts = quantize(&w, 64, 4)?;
/// assert_eq!(parts.packed.shape(), [8, 8]); // eight codes in a word
/// assert_eq!(parts.scales.shape(), [8, 1]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Quantized {
    /// The integers, several in a U32.
    pub packed: Array,
    /// One for each group: of the matrix's dtype if affine, else U8.
    pub scales: Array,
    /// One for each group, affine only.
    pub biases: Option<Array>,
}

/// Quantises a matrix `[…, n, k]` of floating point: affine, with `bits` for each element and a scale and a bias for each
/// `group_size` elements of a row.
///
/// ```
/// use mlx_core::{DType, quantize, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let w = random::normal(&random::Key::new(1)?, [8, 64], DType::F32)?;
/// let parts = quantize(&w, 64, 4)?;
/// assert!(parts.biases.is_some()); // affine
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// MLX does not support the sizes, or `k` does not divide into groups.
pub fn quantize(w: &Array, group_size: i32, bits: i32) -> Result<Quantized> {
    quantize_with(w, Scheme::new(group_size, bits, QuantMode::Affine)?)
}

/// Quantises a matrix `[…, n, k]` of floating point by any scheme.
///
/// # Errors
/// MLX does not support the scheme, or `k` does not divide into groups.
pub fn quantize_with(w: &Array, scheme: Scheme) -> Result<Quantized> {
    let scheme = scheme.checked()?;
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme;
    let run = |w: &Array| -> Result<Quantized> {
        let (group_size, bits, mode) = scheme.args();
        let pack = || op!(vector mlx_quantize(w, group_size, bits, mode, None::<&Array>));
        let parts = if lacks_kernel(scheme)? {
            on_cpu(pack)?
        } else {
            pack()?
        };
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
    };
    let fits = w.ndim() > 1 && w.dtype().is_float() && w.dim(-1)? % group_size == 0;
    if fits && w.size() == 0 {
        // MLX would read a first element, which does not exist.
        let part = |per_group: i32, dtype| {
            let mut shape = w.shape().to_vec();
            *shape.last_mut().unwrap_or(&mut 0) = w.dim(-1)? / group_size * per_group;
            zeros(&shape, dtype)
        };
        let affine = mode == QuantMode::Affine;
        let dtype = if affine { w.dtype() } else { DType::U8 };
        return Ok(Quantized {
            packed: part(group_size * bits / 32, DType::U32)?,
            scales: part(1, dtype)?,
            biases: affine.then(|| part(1, dtype)).transpose()?,
        });
    }
    if mode == QuantMode::Affine || !fits {
        return run(w);
    }
    // One group in each row.
    let mut groups = w.astype(DType::F32)?.reshape(&[-1, group_size])?;
    if mode != QuantMode::Nvfp4 {
        // The scale of a group this small would have an exponent below the range of its 8 bits.
        let largest_code = if bits == 4 { 6.0 } else { 448.0 };
        let least = largest_code * f32::MIN_POSITIVE;
        let tiny = groups.abs()?.max(1, true)?.less(least)?;
        groups = tiny.select(0.0, &groups)?;
    }
    let n = groups.dim(0)?;
    // MLX packs eight numbers at a time, four times, and so needs a multiple of 32.
    let odd = n * group_size % 32 != 0;
    if odd {
        groups = groups.pad(&[(0, 0, 1)], 0.0)?;
    }
    let Quantized { packed, scales, .. } = run(&groups)?;
    let part = |array: Array, per_group: i32| {
        let array = array.reshape(&[-1, per_group])?.slice_axis(0, 0, n)?;
        let mut shape = w.shape().to_vec();
        *shape.last_mut().unwrap_or(&mut 0) = w.dim(-1)? / group_size * per_group;
        array.reshape(&shape)
    };
    Ok(Quantized {
        packed: part(packed, group_size * bits / 32)?,
        scales: part(scales, 1)?,
        biases: None,
    })
}

/// The matrix `[…, n, k]` of the parts of [`quantize`], in the dtype of the scales.
///
/// # Errors
/// The parts do not fit each other, or MLX does not support the sizes.
pub fn dequantize<'a>(
    packed: &Array,
    scales: &Array,
    biases: impl Into<Option<&'a Array>>,
    group_size: i32,
    bits: i32,
) -> Result<Array> {
    let scheme = Scheme::new(group_size, bits, QuantMode::Affine)?;
    dequantize_with(packed, scales, biases.into(), scheme, None)
}

/// The matrix `[…, n, k]` of the parts, in `dtype` (or that of affine scales, or BF16).
///
/// # Errors
/// The parts do not fit each other, or MLX does not support the scheme.
pub fn dequantize_with(
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    scheme: Scheme,
    dtype: Option<DType>,
) -> Result<Array> {
    scheme.check_parts("dequantize", packed, scales, biases)?;
    let (group_size, bits, mode) = scheme.args();
    if packed.size() == 0 {
        // MLX reshapes by a size that it cannot infer from no elements.
        let mut shape = scales.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last *= scheme.group_size;
        }
        let own = match biases {
            Some(biases) => biases.dtype(),
            None => DType::BF16,
        };
        return zeros(&shape, dtype.unwrap_or(own));
    }
    let unpack = || {
        op!(mlx_dequantize(
            packed,
            scales,
            biases,
            group_size,
            bits,
            mode,
            None::<&Array>,
            Opt(dtype)
        ))
    };
    if lacks_kernel(scheme)? {
        on_cpu(unpack)
    } else {
        unpack()
    }
}

/// Whether MLX has no kernels for the scheme on the current stream: on NVIDIA GPUs it leaves the results of 1 bit unwritten, and `quantize` of 2
/// bits in groups of 128 has failed.
fn lacks_kernel(scheme: Scheme) -> Result<bool> {
    let rare = matches!((scheme.bits, scheme.group_size), (1, _) | (2, 128));
    Ok(rare && scheme.mode == QuantMode::Affine && is_on_cuda()?)
}

/// `x @ w`, or `x @ wᵀ` if `transpose`, for a `w` in the parts of [`quantize`]: `[…, k]` → `[…, n]`.
///
/// # Errors
/// The parts do not fit each other, or the sizes do not fit.
pub fn quantized_matmul<'a>(
    x: &Array,
    packed: &Array,
    scales: &Array,
    biases: impl Into<Option<&'a Array>>,
    transpose: bool,
    group_size: i32,
    bits: i32,
) -> Result<Array> {
    let scheme = Scheme::new(group_size, bits, QuantMode::Affine)?;
    quantized_matmul_with(x, packed, scales, biases.into(), transpose, scheme)
}

/// `x @ w`, or `x @ wᵀ` if `transpose`, for a `w` that is quantised by any scheme: `[…, k]` → `[…, n]`.
///
/// # Errors
/// The parts do not fit each other, the sizes do not fit, or MLX does not support the scheme.
pub fn quantized_matmul_with(
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
    // MLX's products on NVIDIA GPUs are wrong where a row has a single group, crash in F32, and are compiled when they first run.
    if is_on_cuda()? {
        if transpose
            && packed.ndim() == 2
            && scheme.mode == QuantMode::Affine
            && scales.dtype() == x.dtype()
        {
            return fast::quantized_linear(x, packed, scales, biases, scheme);
        }
        let wide = dequantize_with(packed, scales, biases, scheme, Some(x.dtype()))?;
        return x.matmul(&turned(wide, transpose)?);
    }
    let (group_size, bits, mode) = scheme.args();
    let y = op!(mlx_quantized_matmul(
        x, packed, scales, biases, transpose, group_size, bits, mode
    ))?;
    zeros_if_empty(y, &[x, packed])
}

/// Quantised products of chosen pairs, as [`gather_mm`](Array::gather_mm): `x` `[…A, m, k]` with the parts of
/// [`quantize`] of the matrices `[…B, n, k]`, transposed if `transpose` → `[…I, m, n]`.
///
/// # Errors
/// The parts do not fit each other, or the sizes do not fit.
#[allow(clippy::too_many_arguments)] // As MLX has it; a struct would only rename them.
pub fn gather_qmm<'a>(
    x: &Array,
    packed: &Array,
    scales: &Array,
    biases: impl Into<Option<&'a Array>>,
    lhs_indices: Option<&Array>,
    rhs_indices: Option<&Array>,
    transpose: bool,
    group_size: i32,
    bits: i32,
) -> Result<Array> {
    let scheme = Scheme::new(group_size, bits, QuantMode::Affine)?;
    let biases = biases.into();
    gather_qmm_with(
        x,
        packed,
        scales,
        biases,
        lhs_indices,
        rhs_indices,
        transpose,
        scheme,
        false,
    )
}

/// As [`gather_qmm`], for matrices that are quantised by any scheme. `sorted` promises that the right indices ascend.
///
/// # Errors
/// The parts do not fit each other, the sizes do not fit, or MLX does not support the scheme.
#[allow(clippy::too_many_arguments)] // As MLX has it; a struct would only rename them.
pub fn gather_qmm_with(
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
    // As in `quantized_matmul`.
    if is_on_cuda()? {
        let wide = dequantize_with(packed, scales, biases, scheme, Some(x.dtype()))?;
        return x.gather_mm_with(&turned(wide, transpose)?, lhs_indices, rhs_indices, sorted);
    }
    let (group_size, bits, mode) = scheme.args();
    let lhs_indices = checked_matrices(c"gather_qmm", x, lhs_indices)?;
    let rhs_indices = checked_matrices(c"gather_qmm", packed, rhs_indices)?;
    let y = op!(mlx_gather_qmm(
        x,
        packed,
        scales,
        biases,
        lhs_indices,
        rhs_indices,
        transpose,
        group_size,
        bits,
        mode,
        sorted
    ))?;
    zeros_if_empty(y, &[x, packed])
}

/// Matrices, transposed if `transpose`.
fn turned(matrices: Array, transpose: bool) -> Result<Array> {
    match transpose {
        true => matrices.swapaxes(-1, -2),
        false => Ok(matrices),
    }
}

/// A product of factors without elements, where MLX would divide by zero.
fn zeros_if_empty(y: Array, factors: &[&Array]) -> Result<Array> {
    if y.size() == 0 || factors.iter().any(|factor| factor.size() == 0) {
        return zeros(y.shape(), y.dtype());
    }
    Ok(y)
}

/// `x @ wᵀ` with both sides quantised; `x` is quantised here: `[…, k]` → `[…, n]`. `w` `[n, k]` may be packed already,
/// with its scales.
///
/// # Errors
/// The mode is affine, the sizes do not fit, or the back end does not support it: the CPU supports only one row and a
/// packed `w`.
pub fn qqmm(x: &Array, w: &Array, w_scales: Option<&Array>, scheme: Scheme) -> Result<Array> {
    require(x.ndim() > 0 && w.ndim() == 2, "qqmm", "w", "a matrix", w)?;
    let scheme = scheme.checked()?;
    let refuse = |message| Err(Error::new(ErrorKind::Unsupported, message));
    if scheme.mode == QuantMode::Affine {
        return refuse(
            "qqmm: affine quantization has no such product; mxfp4, mxfp8 and nvfp4 have",
        );
    }
    let row = x.shape().last().is_some_and(|&k| x.size() == k as usize);
    let simple = row && w_scales.is_some();
    if !simple && !is_on_gpu()? {
        return refuse("qqmm: the CPU back end multiplies one row by a packed matrix only");
    }
    if let Some(scales) = w_scales {
        scheme.check_parts("qqmm", w, scales, None)?;
    }
    let (group_size, bits, mode) = scheme.args();
    let none = None::<&Array>;
    op!(mlx_qqmm(x, w, w_scales, group_size, bits, mode, none, none))
}

/// As [`qqmm`] for chosen pairs, as [`gather_mm`](Array::gather_mm): `x` `[…A, m, k]` with the matrices `w` `[…B, n, k]`,
/// which may be packed already, with their scales → `[…I, m, n]`. `sorted` promises that the right indices ascend.
///
/// # Errors
/// The mode is affine, the sizes do not fit, an index array holds no integers, or the current stream is that of a CPU, for
/// which MLX has no such product.
pub fn gather_qqmm(
    x: &Array,
    w: &Array,
    w_scales: Option<&Array>,
    lhs_indices: Option<&Array>,
    rhs_indices: Option<&Array>,
    scheme: Scheme,
    sorted: bool,
) -> Result<Array> {
    let matrices = x.ndim() > 1 && w.ndim() > 1;
    require(matrices, "gather_qqmm", "x and w", "matrices", (x, w))?;
    let scheme = scheme.checked()?;
    let refuse = |message| Err(Error::new(ErrorKind::Unsupported, message));
    if scheme.mode == QuantMode::Affine {
        return refuse(
            "gather_qqmm: affine quantization has no such product; mxfp8 and nvfp4 have",
        );
    }
    if let Some(scales) = w_scales {
        scheme.check_parts("gather_qqmm", w, scales, None)?;
    }
    if !is_on_gpu()? {
        return refuse("gather_qqmm: the CPU back end has no such product; gather_qmm has");
    }
    let lhs_indices = checked_matrices(c"gather_qqmm", x, lhs_indices)?;
    let rhs_indices = checked_matrices(c"gather_qqmm", w, rhs_indices)?;
    let (group_size, bits, mode) = scheme.args();
    let none = None::<&Array>;
    op!(mlx_gather_qqmm(
        x,
        w,
        w_scales,
        lhs_indices,
        rhs_indices,
        group_size,
        bits,
        mode,
        none,
        none,
        sorted
    ))
}

/// # Floating point of 8 bits
///
/// ```
/// use mlx_core::{array, DType};
///
/// # fn main() -> mlx_core::Result<()> {
/// let codes = array![1.0f32, 448.0].to_fp8()?;
/// assert_eq!(codes.dtype(), DType::U8);
/// assert_eq!(codes.from_fp8(DType::F32)?.to_vec::<f32>()?, [1.0, 448.0]);
/// # Ok(())
/// # }
/// ```
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
