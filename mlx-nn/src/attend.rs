//! Scaled dot-product attention with everything the architectures ask of it.

use mlx_core::{Array, Result, Scheme, fast};

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

/// `q [B, H, L, D]`, `k [B, K, S, D]`, `v [B, K, S, Dv]` -> `[B, H, L, Dv]`; `H` is a multiple of `K`. With
/// a scheme keys and values are packed rows.
pub(crate) fn attend(
    q: &Array,
    k: &Array,
    v: &Array,
    scheme: Option<Scheme>,
    mask: &AttentionMask,
    options: &Attend<'_>,
) -> Result<Array> {
    let options = fast::Attention {
        scale: options.scale,
        soft_cap: options.softcap,
        mask: mask.fused(),
        sinks: options.sinks,
    };
    match scheme {
        Some(scheme) => fast::packed_attention(q, k, v, scheme, &options),
        None => fast::attention(q, k, v, &options),
    }
}
