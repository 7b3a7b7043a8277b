//! Fused operations: one kernel each where the back end has it, else the graph that MLX falls back
//! to.
//!
//! Each has a twin in [`plain`] made of ordinary operations, which says exactly what is computed and
//! which tests hold the fused form to.
//!
//! Axes: `B` rows, `H` query heads, `K` heads of keys and values, `L` new tokens, `S` stored tokens,
//! `D` head dimension.

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::vector::VectorArray;
use crate::ffi::{Opt, op};
use crate::memory::check_shape;
use crate::ops::quantize::Scheme;

mod attention;
mod choose;
mod draw;
mod packed;
pub mod plain;

pub use attention::{
    Attention, KeySlots, Mask, Placed, attention, has_kernels, packed_attention,
    scaled_dot_product_attention,
};
pub use choose::{argmax, logsumexp, nucleus, top};
pub use draw::{Draw, NO_TOKEN, draw};
pub(crate) use packed::packing;
pub use packed::{check_packing, pack, packed_words};

/// `x / sqrt(mean(x²) + eps) · weight` over the last axis, accumulated in F32.
///
/// `weight` is `[last axis]`. Source: Zhang and Sennrich 2019, "Root Mean Square Layer
/// Normalization".
///
/// # Errors
/// `x` is a scalar or not floating point, or `weight` does not fit its last axis.
pub fn rms_norm(x: &Array, weight: Option<&Array>, eps: f32) -> Result<Array> {
    op!(mlxrs_fast_rms_norm(x, weight, eps))
}

/// `(x - mean) / sqrt(variance + eps) · weight + bias` over the last axis, accumulated in F32.
///
/// # Errors
/// As [`rms_norm`].
pub fn layer_norm(
    x: &Array,
    weight: Option<&Array>,
    bias: Option<&Array>,
    eps: f32,
) -> Result<Array> {
    op!(mlx_fast_layer_norm(x, weight, bias, eps))
}

/// `x weightᵀ`: `x` is `[.., in]`, `weight` `[out, in]`, the result `[.., out]`.
///
/// # Errors
/// The shapes do not fit.
pub fn linear(x: &Array, weight: &Array) -> Result<Array> {
    op!(mlxrs_fast_linear(x, weight))
}

/// `x wᵀ` for a quantised `w` `[out, in]`: `x` is `[.., in]`, the result `[.., out]`.
///
/// The weights count as what [`dequantize`](crate::ops::quantize::dequantize) gives in `x`'s dtype, or as what they stand
/// for, not rounded; sums are in F32. On CPUs a 16-bit `x` with affine weights, on those with AMX up to eight rows of it, is
/// first rounded to whole numbers of 16 bits, each group (or 256 elements) by its largest, which is less than rounding weights to BF16
/// costs (`docs/cpu-matmul.md`).
///
/// # Errors
/// The parts do not belong together, the sizes do not fit, or MLX does not know the scheme.
pub fn quantized_linear(
    x: &Array,
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    scheme: Scheme,
) -> Result<Array> {
    if x.ndim() == 0 {
        let message = "quantized_linear needs x to be at least a vector, found a scalar";
        return Err(Error::new(ErrorKind::Shape, message));
    }
    scheme.check_parts("quantized_linear", packed, scales, biases)?;
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme;
    let mode = mode.c_name();
    op!(mlxrs_fast_packed_linear(
        x, packed, scales, biases, group_size, bits, mode
    ))
}

/// The same arrays. On the CPU, where they are 16-bit products of one array ([`linear`] or [`quantized_linear`], with matrices that are
/// written alike) that are not computed yet, they become one operation: it reads `x` once, and all threads work on all of it.
///
/// # Errors
/// No memory for a handle.
pub fn together(products: &[Array]) -> Result<Vec<Array>> {
    let products = VectorArray::new(products)?;
    op!(vector mlxrs_fast_together(products))
}

/// `x[…] w[indices[…]]ᵀ`: each row of `x` `[…A, 1, in]` by one matrix of `w` `[experts, out, in]`,
/// for `indices` `[…B]` of I32 or U32 → `[…, 1, out]`, where `A` and `B` broadcast.
///
/// # Errors
/// The shapes do not fit.
pub fn experts_linear(x: &Array, w: &Array, indices: &Array) -> Result<Array> {
    let (group, bits, mode) = (0, 0, c"affine");
    let none = None::<&Array>;
    op!(mlxrs_fast_experts(
        x, w, none, none, indices, group, bits, mode
    ))
}

/// [`experts_linear`] with quantised matrices, as [`quantized_linear`] takes one.
///
/// # Errors
/// The parts do not belong together, the sizes do not fit, or MLX does not know the scheme.
pub fn quantized_experts_linear(
    x: &Array,
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    indices: &Array,
    scheme: Scheme,
) -> Result<Array> {
    scheme.check_parts("quantized_experts_linear", packed, scales, biases)?;
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme;
    let mode = mode.c_name();
    op!(mlxrs_fast_experts(
        x, packed, scales, biases, indices, group_size, bits, mode
    ))
}

/// Rows of `w` `[rows, in]` that `indices` `[..]` name, counted from the end where they are negative: `[.., in]`.
///
/// # Errors
/// `w` is not a matrix of floating point. On evaluation, on the CPU: an index beyond the end.
pub fn rows(w: &Array, indices: &Array) -> Result<Array> {
    let (group, bits, mode) = (0, 0, c"affine");
    let none = None::<&Array>;
    op!(mlxrs_fast_lookup(
        indices,
        w,
        none,
        none,
        group,
        bits,
        mode,
        w.dtype()
    ))
}

/// [`rows`] of a quantised matrix, written out in `dtype`.
///
/// # Errors
/// The parts do not belong together, or MLX does not know the scheme. On evaluation as [`rows`].
pub fn quantized_rows(
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    indices: &Array,
    scheme: Scheme,
    dtype: DType,
) -> Result<Array> {
    scheme.check_parts("quantized_rows", packed, scales, biases)?;
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme;
    let mode = mode.c_name();
    op!(mlxrs_fast_lookup(
        indices, packed, scales, biases, group_size, bits, mode, dtype
    ))
}

/// Zeros of `shape` for what is written bit by bit, such as a cache: on a CPU under Linux, big ones take memory only
/// where they are touched.
///
/// # Errors
/// A dimension is negative, or the array exceeds the byte limit.
pub fn blank(shape: &[i32], dtype: DType) -> Result<Array> {
    check_shape(shape, dtype)?;
    op!(mlxrs_fast_blank([shape], dtype))
}

/// `gate · sigmoid(gate) · up`. Source: Shazeer 2020, "GLU Variants Improve Transformer".
///
/// On the CPU, where both are 16-bit products of one array ([`linear`] or [`quantized_linear`]) that are not computed yet,
/// this is one node with them and neither is ever in memory; who needs them elsewhere too has them computed again.
///
/// # Errors
/// The shapes do not broadcast.
pub fn swiglu(gate: &Array, up: &Array) -> Result<Array> {
    op!(mlxrs_fast_gated(false, gate, up))
}

/// `gelu(gate) · up`, with the tanh approximation of gelu (Hendrycks and Gimpel, arXiv:1606.08415); else as [`swiglu`].
///
/// # Errors
/// The shapes do not broadcast.
pub fn geglu(gate: &Array, up: &Array) -> Result<Array> {
    op!(mlxrs_fast_gated(true, gate, up))
}

/// `cap · tanh(x / cap)`: keeps numbers within ±`cap` (Gemma 2, arXiv:2408.00118).
///
/// # Errors
/// `x` is not floating point.
pub fn soft_cap(x: &Array, cap: f32) -> Result<Array> {
    op!(mlxrs_fast_soft_cap(x, cap))
}

/// `residual + x`, as an addition; on the CPU all threads take part.
///
/// # Errors
/// The shapes do not broadcast.
pub fn add(x: &Array, residual: &Array) -> Result<Array> {
    op!(mlxrs_fast_add(x, residual))
}

/// `residual + rms_norm(x, weight)`: how Gemma ends each half of a layer.
///
/// On the CPU it is rounded once, where the two operations apart round twice.
///
/// # Errors
/// As [`rms_norm`], or the shapes do not broadcast.
pub fn rms_norm_add(x: &Array, weight: &Array, residual: &Array, eps: f32) -> Result<Array> {
    op!(mlxrs_fast_rms_norm_add(x, weight, residual, eps))
}

/// `sum = residual + x`, or `residual + rms_norm(x, inner)` with an inner weight, and
/// `rms_norm(sum, weight)`, both: what stands between the halves of a layer.
///
/// The norm is that of the sum as it was rounded to its dtype.
///
/// # Errors
/// As [`rms_norm`], or the shapes do not broadcast.
pub fn add_rms_norm(
    x: &Array,
    residual: &Array,
    inner: Option<&Array>,
    weight: &Array,
    eps: f32,
) -> Result<(Array, Array)> {
    op!(pair mlxrs_fast_add_rms_norm(x, residual, inner, weight, eps))
}

/// Rotary position embedding: what stays the same from call to call.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// How many of the first features are rotated; even, at most the last axis of the input.
    pub dims: i32,
    /// Rotates the pairs (2i, 2i + 1) as the paper does, else (i, i + dims / 2) as most
    /// checkpoints do.
    pub traditional: bool,
    /// Pair `i` turns by `position · scale · base^(-2i / dims)`. Exactly one of `base` and `freqs`.
    pub base: Option<f32>,
    /// Multiplies positions.
    pub scale: f32,
    /// Periods in place of `base`, `[dims / 2]`: pair `i` turns by `position · scale / freqs[i]`.
    pub freqs: Option<&'a Array>,
}

/// Rotates `x`, of shape `[B, …, L, D]`, by its positions: token `l` of row `b` stands at
/// `offsets[b] + l`.
///
/// `offsets` is an integer array `[B]`, or `[1]` or a scalar for all rows. Source: Su et al. 2021,
/// "RoFormer".
///
/// # Errors
/// Shapes do not fit, `dims` is odd or too large, or not exactly one of `base` and `freqs` is given.
pub fn rope(x: &Array, rope: &Rope<'_>, offsets: &Array) -> Result<Array> {
    let Rope {
        dims,
        traditional,
        base,
        scale,
        freqs,
    } = *rope;
    op!(mlxrs_fast_rope(
        x,
        dims,
        traditional,
        Opt(base),
        scale,
        offsets,
        freqs
    ))
}

/// A projection `[B, L, H · D]` as heads `[B, H, L, D]`, each through [`rms_norm`] where there is a
/// `norm` (weight `[D]` and epsilon), and then rotated in its first `dims` features as [`rope`] does
/// with `freqs` and `offsets`.
///
/// # Errors
/// `head_dim` does not divide the last axis, or as [`rms_norm`] and [`rope`].
pub fn heads(
    x: &Array,
    head_dim: i32,
    norm: Option<(&Array, f32)>,
    dims: i32,
    freqs: &Array,
    offsets: &Array,
) -> Result<Array> {
    let (weight, eps) = (
        norm.map(|(weight, _)| weight),
        norm.map_or(0.0, |(_, eps)| eps),
    );
    op!(mlxrs_fast_heads(
        x, head_dim, weight, eps, dims, offsets, freqs
    ))
}

/// `logsumexp(logits) - logits[target]` over the last axis, in F32.
///
/// `logits` is `[…, V]`, `targets` are class numbers of shape `[…]`; the result has their shape. On
/// the CPU, a target outside `0 .. V` is not noticed.
///
/// # Errors
/// The shapes do not fit, or `targets` are not integers.
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
    op!(mlxrs_fast_cross_entropy(logits, targets))
}
