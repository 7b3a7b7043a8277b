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
}

crate::module!(Attention { q_proj, k_proj, v_proj, o_proj, q_norm, k_norm, sinks }
               plain { rope, head_dim, scale, softcap });

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
        Ok(Self {
            q_proj: Linear::new(hidden, heads * head_dim, qkv_bias)?,
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
        })
    }

    /// `x: [B, L, E] -> [B, L, E]`, reading and writing layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, layer: usize, step: &mut Step) -> Result<Array> {
        let [q, k, v] = Linear::forward_all([&self.q_proj, &self.k_proj, &self.v_proj], x)?;
        let (offsets, dim) = (step.offsets().clone(), self.head_dim);
        let q = (self.rope).heads(&q, dim, self.q_norm.as_ref(), &offsets, step)?;
        let k = (self.rope).keys(&k, dim, self.k_norm.as_ref(), &offsets, step)?;
        let v = split_heads(&v, dim)?;
        let options = Attend {
            scale: self.scale,
            softcap: self.softcap,
            sinks: self.sinks.as_ref().map(Param::value),
        };
        let y = step.attend(layer, &q, k, &v, &options)?;
        self.o_proj.forward(&merge_heads(&y)?)
    }
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
