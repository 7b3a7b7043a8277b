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
use crate::ffi::{Opt, op};

pub mod plain;

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

/// `gate · sigmoid(gate) · up`. Source: Shazeer 2020, "GLU Variants Improve Transformer".
///
/// # Errors
/// The shapes do not broadcast.
pub fn swiglu(gate: &Array, up: &Array) -> Result<Array> {
    op!(mlxrs_fast_swiglu(gate, up))
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

/// Which stored tokens a query sees.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    /// All of them.
    None,
    /// Query `l` of `L` sees stored tokens `0 ..= S - L + l`: the last query sees everything.
    Causal,
    /// Booleans (`true` is seen) or numbers to add to the scores, of a shape that broadcasts to
    /// `[B, H, L, S]`.
    Array(&'a Array),
}

/// `softmax(scale · q kᵀ + mask) v`, with F32 softmax.
///
/// `q` is `[B, H, L, D]`, `k` and `v` are `[B, K, S, D]`; `H` is a multiple of `K`, and query head
/// `h` reads head `h · K / H`. The result is `[B, H, L, D of v]`. `sinks`, `[H]`, are scores of one
/// further token each that is attended to and has no value.
///
/// A query that sees nothing gives a meaningless but finite result; stored NaNs poison every
/// result, seen or not.
///
/// # Errors
/// Shapes or dtypes do not fit.
pub fn scaled_dot_product_attention(
    q: &Array,
    k: &Array,
    v: &Array,
    scale: f32,
    mask: Mask<'_>,
    sinks: Option<&Array>,
) -> Result<Array> {
    let (mode, array) = match mask {
        Mask::None => (c"", None),
        Mask::Causal => (c"causal", None),
        Mask::Array(array) => (c"array", Some(array)),
    };
    check_attention(q, k, v)?;
    let mode = mode.to_owned();
    op!(mlxrs_fast_attention(q, k, v, scale, mode, array, sinks))
}

/// What MLX does not check: it divides by the number of heads, and trusts `v` to be as long as `k`.
fn check_attention(q: &Array, k: &Array, v: &Array) -> Result<()> {
    let ([_, heads, ..], [_, kv_heads, stored, _], [_, _, values, _]) =
        (q.dims::<4>()?, k.dims::<4>()?, v.dims::<4>()?);
    if heads == 0 || kv_heads == 0 {
        let message =
            format!("attention needs heads, found {heads} of queries and {kv_heads} of keys");
        return Err(Error::new(ErrorKind::Shape, message));
    }
    if stored != values {
        let message =
            format!("attention needs as many values as keys, found {values} and {stored}");
        return Err(Error::new(ErrorKind::Shape, message));
    }
    Ok(())
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
    op!(mlx_fast_cross_entropy(logits, targets))
}
