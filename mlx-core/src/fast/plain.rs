//! The fused operations, written out: the reference for tests, and for readers.

use super::{Mask, Rope};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::create::arange;
use crate::ops::shape::concat;

/// [`rms_norm`](super::rms_norm), written out.
///
/// # Errors
/// As there.
pub fn rms_norm(x: &Array, weight: Option<&Array>, eps: f32) -> Result<Array> {
    let dtype = match weight {
        Some(weight) => x.multiply(weight)?.dtype(),
        None => x.dtype(),
    };
    let wide = x.astype(DType::F32)?;
    let inverse = wide.square()?.mean(-1, true)?.add(eps)?.rsqrt()?;
    let normal = wide.multiply(&inverse)?.astype(dtype)?;
    weight.map_or(Ok(normal.clone()), |weight| {
        normal.multiply(&weight.astype(dtype)?)
    })
}

/// [`linear`](super::linear), written out.
///
/// # Errors
/// As there.
pub fn linear(x: &Array, weight: &Array) -> Result<Array> {
    x.matmul(&weight.swap_axes(-1, -2)?)
}

/// [`swiglu`](super::swiglu), written out.
///
/// # Errors
/// As there.
pub fn swiglu(gate: &Array, up: &Array) -> Result<Array> {
    gate.multiply(&gate.sigmoid()?)?.multiply(up)
}

/// [`layer_norm`](super::layer_norm), written out.
///
/// # Errors
/// As there.
pub fn layer_norm(
    x: &Array,
    weight: Option<&Array>,
    bias: Option<&Array>,
    eps: f32,
) -> Result<Array> {
    let wide = x.astype(DType::F32)?;
    let centred = wide.subtract(&wide.mean(-1, true)?)?;
    let inverse = centred.square()?.mean(-1, true)?.add(eps)?.rsqrt()?;
    let mut normal = centred.multiply(&inverse)?.astype(x.dtype())?;
    if let Some(weight) = weight {
        normal = normal.multiply(weight)?;
    }
    if let Some(bias) = bias {
        normal = normal.add(bias)?;
    }
    Ok(normal)
}

/// [`rope`](super::rope), written out.
///
/// # Errors
/// As there.
pub fn rope(x: &Array, rope: &Rope<'_>, offsets: &Array) -> Result<Array> {
    let (ndim, tokens, features) = (x.ndim(), x.dim(-2)?, x.dim(-1)?);
    let half = rope.dims / 2;
    let inverse = match (rope.base, rope.freqs) {
        (Some(base), None) => {
            let exponents = arange(0.0, f64::from(half), 1.0, DType::F32)?;
            exponents.multiply(-base.ln() / half as f32)?.exp()?
        }
        (None, Some(freqs)) => freqs.astype(DType::F32)?.reciprocal()?,
        _ => {
            return Err(Error::new(
                ErrorKind::Invalid,
                "rope needs exactly one of base and freqs",
            ));
        }
    };
    // [B or 1, 1, …, L, 1]
    let mut rows = vec![1; ndim];
    rows[0] = offsets.size() as i32;
    let mut along = vec![1; ndim];
    along[ndim - 2] = tokens;
    let steps = arange(0.0, f64::from(tokens), 1.0, DType::F32)?.reshape(&along)?;
    let positions = offsets.astype(DType::F32)?.reshape(&rows)?.add(&steps)?;
    let theta = positions.multiply(rope.scale)?.multiply(&inverse)?;
    let (cos, sin) = (
        theta.cos()?.astype(x.dtype())?,
        theta.sin()?.astype(x.dtype())?,
    );

    let turned = x.slice_axis(-1, 0, rope.dims)?;
    let mut paired = x.shape().to_vec();
    paired.pop();
    let (split, axis) = if rope.traditional {
        ([half, 2], -1)
    } else {
        ([2, half], -2)
    };
    paired.extend(split);
    let pairs = turned.reshape(&paired)?.split(2, axis)?;
    let (first, second) = (pairs[0].squeeze(axis)?, pairs[1].squeeze(axis)?);
    let real = first.multiply(&cos)?.subtract(&second.multiply(&sin)?)?;
    let imaginary = first.multiply(&sin)?.add(&second.multiply(&cos)?)?;
    let mut whole = x.shape().to_vec();
    whole[ndim - 1] = rope.dims;
    let turned = concat(
        &[real.expand_dims(axis)?, imaginary.expand_dims(axis)?],
        axis,
    )?
    .reshape(&whole)?;
    if rope.dims == features {
        return Ok(turned);
    }
    concat(&[turned, x.slice_axis(-1, rope.dims, features)?], -1)
}

/// [`scaled_dot_product_attention`](super::scaled_dot_product_attention), written out.
///
/// # Errors
/// As there.
pub fn scaled_dot_product_attention(
    q: &Array,
    k: &Array,
    v: &Array,
    scale: f32,
    mask: Mask<'_>,
    sinks: Option<&Array>,
) -> Result<Array> {
    let [_, heads, queries, _] = q.dims::<4>()?;
    let [_, kv_heads, stored, _] = k.dims::<4>()?;
    let groups = heads / kv_heads;
    let (k, v) = (k.repeat(groups, 1)?, v.repeat(groups, 1)?);
    let mut scores = q
        .multiply(scale)?
        .matmul(&k.swap_axes(-1, -2)?)?
        .astype(DType::F32)?;
    match mask {
        Mask::None => {}
        Mask::Causal => {
            let rows = arange(0.0, f64::from(queries), 1.0, DType::I32)?.expand_dims(1)?;
            let columns = arange(0.0, f64::from(stored), 1.0, DType::I32)?.expand_dims(0)?;
            let seen = columns.less_equal(&rows.add(stored - queries)?)?;
            scores = seen.select(&scores, f32::NEG_INFINITY)?;
        }
        Mask::Array(mask) if mask.dtype() == DType::Bool => {
            scores = mask.select(&scores, f32::NEG_INFINITY)?;
        }
        Mask::Array(mask) => scores = scores.add(&mask.astype(DType::F32)?)?,
    }
    if let Some(sinks) = sinks {
        let [rows, ..] = q.dims::<4>()?;
        let column = sinks.astype(DType::F32)?.reshape(&[1, heads, 1, 1])?;
        let column = column.broadcast_to(&[rows, heads, queries, 1])?;
        scores = concat(&[column, scores], -1)?;
    }
    let mut weights = scores.softmax(-1, true)?;
    if sinks.is_some() {
        weights = weights.slice_axis(-1, 1, stored + 1)?;
    }
    weights.astype(q.dtype())?.matmul(&v)
}

/// [`cross_entropy`](super::cross_entropy), written out.
///
/// # Errors
/// As there.
pub fn cross_entropy(logits: &Array, targets: &Array) -> Result<Array> {
    let logits = logits.astype(DType::F32)?;
    let chosen = logits
        .take_along_axis(&targets.expand_dims(-1)?, -1)?
        .squeeze(-1)?;
    logits.logsumexp(-1, false)?.subtract(&chosen)
}
