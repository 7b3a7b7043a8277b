//! Attention of one layer: projections, q/k norm, rope, and the cache's `attend`.

use mlx_core::{Array, Result};

use crate::linear::Linear;
use crate::module::Param;
use crate::norm::RmsNorm;
use crate::rope::Rope;
use crate::step::{Attend, Step};

/// Sizes and options of an [`Attention`].
#[derive(Clone, Debug)]
pub struct AttentionConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Query heads.
    pub heads: i32,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: i32,
    /// Features of a head.
    pub head_dim: i32,
    /// The factor of the scores.
    pub scale: f32,
    /// Bias on q, k and v.
    pub qkv_bias: bool,
    /// Bias on the output projection.
    pub out_bias: bool,
    /// Epsilon and weight offset of the norms on q and k, where there are any.
    pub qk_norm: Option<(f32, f32)>,
    /// `cap * tanh(scores / cap)`
    pub softcap: Option<f32>,
    /// `q_proj` also has a gate for each output of a head, through whose sigmoid it goes: per head `[query | gate]`.
    pub output_gate: bool,
    /// One learned score a query head that takes part in the softmax and adds no value.
    pub sinks: bool,
}

/// Grouped-query attention (Ainslie et al., arXiv:2305.13245).
#[derive(Clone, Debug)]
pub struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    sinks: Option<Param>,
    rope: Rope,
    head_dim: i32,
    scale: f32,
    softcap: Option<f32>,
    output_gate: bool,
}

crate::module!(Attention { q_proj, k_proj, v_proj, o_proj, q_norm, k_norm, sinks }
               plain { rope, head_dim, scale, softcap, output_gate });

impl Attention {
    /// Attention without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn new(config: &AttentionConfig, rope: Rope) -> Result<Self> {
        let &AttentionConfig {
            hidden,
            heads,
            kv_heads,
            head_dim,
            qkv_bias,
            ..
        } = config;
        let norm = || match config.qk_norm {
            Some((eps, offset)) => RmsNorm::with_offset(head_dim, eps, offset).map(Some),
            None => Ok(None),
        };
        let queries = if config.output_gate { 2 } else { 1 };
        Ok(Self {
            q_proj: Linear::new(hidden, heads * head_dim * queries, qkv_bias)?,
            k_proj: Linear::new(hidden, kv_heads * head_dim, qkv_bias)?,
            v_proj: Linear::new(hidden, kv_heads * head_dim, qkv_bias)?,
            o_proj: Linear::new(heads * head_dim, hidden, config.out_bias)?,
            q_norm: norm()?,
            k_norm: norm()?,
            sinks: if config.sinks {
                Some(Param::empty(&[heads])?)
            } else {
                None
            },
            rope,
            head_dim,
            scale: config.scale,
            softcap: config.softcap,
            output_gate: config.output_gate,
        })
    }

    /// `x: [B, L, E] -> [B, L, E]`, reading and writing layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, layer: usize, step: &mut Step) -> Result<Array> {
        let [q, k, v] = Linear::forward_all([&self.q_proj, &self.k_proj, &self.v_proj], x)?;
        let (offsets, dim) = (step.offsets().clone(), self.head_dim);
        let (q, gate) = match self.output_gate {
            true => split_gate(&q, dim).map(|(q, gate)| (q, Some(gate)))?,
            false => (q, None),
        };
        let q = (self.rope).heads(&q, dim, self.q_norm.as_ref(), &offsets, step)?;
        let k = (self.rope).keys(&k, dim, self.k_norm.as_ref(), &offsets, step)?;
        let v = split_heads(&v, dim)?;
        let options = Attend {
            scale: self.scale,
            softcap: self.softcap,
            sinks: self.sinks.as_ref().map(Param::value),
        };
        let y = step.attend(layer, &q, k, &v, &options)?;
        let mut y = merge_heads(&y)?;
        if let Some(gate) = gate {
            y = y.multiply(gate.sigmoid()?)?;
        }
        self.o_proj.forward(&y)
    }
}

/// `[B, L, H * 2 D] -> 2 of [B, L, H * D]`: of each head the first half and the second.
fn split_gate(x: &Array, head_dim: i32) -> Result<(Array, Array)> {
    let [b, l, width] = x.dims()?;
    let heads = x.reshape(&[b, l, width / (2 * head_dim), 2 * head_dim])?;
    let half = |from: i32| {
        let half = heads.slice_axis(-1, from, from + head_dim)?;
        half.reshape(&[b, l, width / 2])
    };
    Ok((half(0)?, half(head_dim)?))
}

/// `[B, L, H * D] -> [B, H, L, D]`
///
/// # Errors
/// The last axis is not a multiple of `head_dim`.
pub fn split_heads(x: &Array, head_dim: i32) -> Result<Array> {
    let [b, l, width] = x.dims()?;
    x.reshape(&[b, l, width / head_dim, head_dim])?
        .swap_axes(1, 2)
}

/// `[B, H, L, D] -> [B, L, H * D]`
///
/// # Errors
/// There are not four dimensions.
pub fn merge_heads(x: &Array) -> Result<Array> {
    let [b, h, l, d] = x.dims()?;
    x.swap_axes(1, 2)?.reshape(&[b, l, h * d])
}
