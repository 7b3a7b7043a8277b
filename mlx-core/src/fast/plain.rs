//! The fused operations, written out: the reference for tests, and for readers.

mod draw;

pub use draw::{draw, gumbel};

use super::{Attention, KeySlots, Mask, Placed, Rope};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::create::arange;
use crate::ops::quantize::{Quantized, Scheme, dequantize, quantize};
use crate::ops::shape::{concat, stack};

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

/// [`quantized_linear`](super::quantized_linear), written out.
///
/// # Errors
/// As there.
pub fn quantized_linear(
    x: &Array,
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    scheme: Scheme,
) -> Result<Array> {
    linear(
        x,
        &dequantize(packed, scales, biases, scheme, Some(x.dtype()))?,
    )
}

/// [`quantized_rows`](super::quantized_rows), written out.
///
/// # Errors
/// As there.
pub fn quantized_rows(
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    indices: &Array,
    scheme: Scheme,
    dtype: DType,
) -> Result<Array> {
    let wide = dequantize(packed, scales, biases, scheme, Some(dtype))?;
    wide.take(indices, 0)
}

/// [`swiglu`](super::swiglu), written out.
///
/// # Errors
/// As there.
pub fn swiglu(gate: &Array, up: &Array) -> Result<Array> {
    gate.multiply(&gate.sigmoid()?)?.multiply(up)
}

/// [`geglu`](super::geglu), written out.
///
/// # Errors
/// As there.
pub fn geglu(gate: &Array, up: &Array) -> Result<Array> {
    let cubic = gate.multiply(gate)?.multiply(gate)?.multiply(0.044_715)?;
    let inner = gate
        .add(cubic)?
        .multiply((2.0 / std::f32::consts::PI).sqrt())?;
    gate.multiply(inner.tanh()?.add(1.0)?.multiply(0.5)?)?
        .multiply(up)
}

/// [`soft_cap`](super::soft_cap), written out.
///
/// # Errors
/// As there.
pub fn soft_cap(x: &Array, cap: f32) -> Result<Array> {
    x.divide(cap)?.tanh()?.multiply(cap)
}

/// [`rms_norm_add`](super::rms_norm_add), written out.
///
/// # Errors
/// As there.
pub fn rms_norm_add(x: &Array, weight: &Array, residual: &Array, eps: f32) -> Result<Array> {
    residual.add(rms_norm(x, Some(weight), eps)?)
}

/// [`add_rms_norm`](super::add_rms_norm), written out.
///
/// # Errors
/// As there.
pub fn add_rms_norm(
    x: &Array,
    residual: &Array,
    inner: Option<&Array>,
    weight: &Array,
    eps: f32,
) -> Result<(Array, Array)> {
    let sum = match inner {
        Some(inner) => rms_norm_add(x, inner, residual, eps)?,
        None => residual.add(x)?,
    };
    let normed = rms_norm(&sum, Some(weight), eps)?;
    Ok((sum, normed))
}

/// [`heads`](super::heads), written out.
///
/// # Errors
/// As there.
pub fn heads(
    x: &Array,
    head_dim: i32,
    norm: Option<(&Array, f32)>,
    dims: i32,
    freqs: &Array,
    offsets: &Array,
) -> Result<Array> {
    let [b, l, width] = x.dims()?;
    let mut heads = x
        .reshape(&[b, l, width / head_dim, head_dim])?
        .swap_axes(1, 2)?;
    if let Some((weight, eps)) = norm {
        heads = rms_norm(&heads, Some(weight), eps)?;
    }
    let options = Rope {
        dims,
        traditional: false,
        base: None,
        scale: 1.0,
        freqs: Some(freqs),
    };
    rope(&heads, &options, offsets)
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
    let options = Attention {
        scale,
        soft_cap: None,
        mask,
        sinks,
    };
    attention(q, k, v, &options)
}

/// [`attention`](super::attention()), written out.
///
/// # Errors
/// As there.
pub fn attention(q: &Array, k: &Array, v: &Array, options: &Attention<'_>) -> Result<Array> {
    let [rows, heads, queries, _] = q.dims::<4>()?;
    let [_, kv_heads, stored, _] = k.dims::<4>()?;
    let groups = heads / kv_heads;
    let (k, v) = (k.repeat(groups, 1)?, v.repeat(groups, 1)?);
    let mut scores = q
        .multiply(options.scale)?
        .matmul(&k.swap_axes(-1, -2)?)?
        .astype(DType::F32)?;
    if let Some(cap) = options.soft_cap {
        scores = soft_cap(&scores, cap)?;
    }
    let seen = match options.mask {
        Mask::None => None,
        Mask::Causal => {
            let offsets = Array::scalar(stored - queries)?;
            let placed = Placed {
                offsets: &offsets,
                window: None,
                slots: KeySlots::Straight,
            };
            Some(placed_mask(&placed, queries, stored)?)
        }
        Mask::Placed(placed) => Some(placed_mask(&placed, queries, stored)?),
        Mask::Array(mask) if mask.dtype() == DType::Bool => Some(mask.clone()),
        Mask::Array(mask) => {
            scores = scores.add(&mask.astype(DType::F32)?)?;
            None
        }
    };
    if let Some(seen) = seen {
        scores = seen.select(&scores, f32::NEG_INFINITY)?;
    }
    if let Some(sinks) = options.sinks {
        let column = sinks.astype(DType::F32)?.reshape(&[1, heads, 1, 1])?;
        let column = column.broadcast_to(&[rows, heads, queries, 1])?;
        scores = concat(&[column, scores], -1)?;
    }
    let mut weights = scores.softmax(-1, true)?;
    if options.sinks.is_some() {
        weights = weights.slice_axis(-1, 1, stored + 1)?;
    }
    weights.astype(q.dtype())?.matmul(&v)
}

/// True where a query sees a key: `[B or 1, 1, L, S]`.
fn placed_mask(placed: &Placed<'_>, queries: i32, stored: i32) -> Result<Array> {
    let along = |n: i32, shape: &[i32]| arange(0.0, f64::from(n), 1.0, DType::I32)?.reshape(shape);
    let first = placed.offsets.reshape(&[-1, 1, 1, 1])?;
    let query = first.add(&along(queries, &[1, 1, queries, 1])?)?;
    let slot = along(stored, &[1, 1, 1, stored])?;
    let key = match placed.slots {
        KeySlots::Straight => slot,
        KeySlots::Ring => {
            let last = first.add(queries - 1)?;
            last.subtract(&last.subtract(&slot)?.remainder(stored)?)?
        }
        KeySlots::Behind => slot.add(&first)?.subtract(stored - queries)?,
    };
    let mut seen = key
        .less_equal(&query)?
        .logical_and(&key.greater_equal(0)?)?;
    if let Some(window) = placed.window {
        seen = seen.logical_and(&query.subtract(&key)?.less(window)?)?;
    }
    Ok(seen)
}

/// [`logsumexp`](super::logsumexp), written out.
///
/// # Errors
/// As there.
pub fn logsumexp(x: &Array) -> Result<Array> {
    x.astype(DType::F32)?.logsumexp(-1, false)
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

/// [`pack`](super::pack), written out.
///
/// # Errors
/// As there.
pub fn pack(x: &Array, scheme: Scheme) -> Result<Array> {
    let Quantized {
        packed,
        scales,
        biases,
    } = quantize(x, scheme)?;
    let biases = biases.ok_or_else(|| Error::new(ErrorKind::Unsupported, "rows have biases"))?;
    let factors = stack(&[scales, biases], -1)?.flatten(-2, -1)?;
    concat(&[packed, factors.view(DType::U32)?], -1)
}

/// What packed rows, of numbers of `dtype`, stand for: F32 `[…, D]`.
///
/// # Errors
/// They are no packed rows of this scheme.
pub fn unpack(rows: &Array, scheme: Scheme, dtype: DType) -> Result<Array> {
    let words = rows.dim(-1)?;
    let of_group = super::packed_words(scheme.group_size, dtype, scheme)?;
    let groups = words / of_group;
    if rows.dtype() != DType::U32 || words % of_group != 0 {
        let message = format!("{:?} are no packed rows in {scheme}", rows.shape());
        return Err(Error::new(ErrorKind::Shape, message));
    }
    let codes = groups * scheme.group_size * scheme.bits / 32;
    let factors = rows.slice_axis(-1, codes, words)?.contiguous()?;
    let mut shape = rows.shape().to_vec();
    shape.pop();
    shape.extend([groups, 2]);
    let factors = factors.view(dtype)?.astype(DType::F32)?.reshape(&shape)?;
    let of = |i| factors.slice_axis(-1, i, i + 1)?.squeeze(-1);
    dequantize(
        &rows.slice_axis(-1, 0, codes)?,
        &of(0)?,
        Some(&of(1)?),
        scheme,
        None,
    )
}
