//! Scaled dot-product attention with everything the architectures ask of it.

use mlx_core::ops::concat;
use mlx_core::{Array, DType, Result, fast};

use crate::mask::AttentionMask;

/// What an architecture asks of attention beside keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// What scores are multiplied by.
    pub scale: f32,
    /// `cap * tanh(scores / cap)`, before the mask (Gemma 2, arXiv:2408.00118).
    pub softcap: Option<f32>,
    /// `[H]`: a score a query head that takes part in the softmax and adds no value.
    pub sinks: Option<&'a Array>,
}

/// `q [B, H, L, D]`, `k [B, K, S, D]`, `v [B, K, S, Dv]` -> `[B, H, L, Dv]`; `H` is a multiple of `K`.
pub(crate) fn attend(
    q: &Array,
    k: &Array,
    v: &Array,
    mask: &AttentionMask,
    options: &Attend<'_>,
) -> Result<Array> {
    match options.softcap {
        None => {
            fast::scaled_dot_product_attention(q, k, v, options.scale, mask.fused(), options.sinks)
        }
        Some(cap) => capped(q, k, v, mask, options, cap),
    }
}

/// Attention with a soft cap, which no fused kernel has. Softmax in f32.
fn capped(
    q: &Array,
    k: &Array,
    v: &Array,
    mask: &AttentionMask,
    options: &Attend<'_>,
    cap: f32,
) -> Result<Array> {
    let [b, heads, l, d] = q.dims()?;
    let [_, kv_heads, s, _] = k.dims()?;
    let groups = heads / kv_heads;
    let q = q
        .multiply(options.scale)?
        .reshape(&[b, kv_heads, groups, l, d])?;
    let k = k.expand_dims(2)?;
    let v = v.expand_dims(2)?;
    let scores = q.matmul(&k.swap_axes(-1, -2)?)?;
    let mut scores = scores
        .divide(cap)?
        .tanh()?
        .multiply(cap)?
        .astype(DType::F32)?;
    if let Some(mask) = mask.array(l as usize, s as usize)? {
        scores = mask.expand_dims(1)?.select(&scores, f32::NEG_INFINITY)?;
    }
    if let Some(sinks) = options.sinks {
        let sinks = sinks
            .astype(DType::F32)?
            .reshape(&[1, kv_heads, groups, 1, 1])?;
        let sinks = sinks.broadcast_to(&[b, kv_heads, groups, l, 1])?;
        scores = concat(&[&scores, &sinks], -1)?;
    }
    let weights = scores
        .softmax(-1, true)?
        .slice_axis(-1, 0, s)?
        .astype(v.dtype())?;
    let y = weights.matmul(&v)?;
    let dv = v.dim(-1)?;
    y.reshape(&[b, heads, l, dv])
}
