//! [`EncoderLayer`]: attention in both directions and an MLP.

use mlx_core::fast::{self, FlatAttention, Seen};
use mlx_core::{Array, Result};
use mlx_nn::attention::{merge_heads, split_heads};
use mlx_nn::{Activation, Linear, Norm, RmsNorm, Rope, module};

use super::plan::{EncoderPlan, LayerPlan, NormPlaces};
use crate::model::encoder::Texts;

/// Attention over the tokens of a text, in both directions.
#[derive(Clone)]
struct EncoderAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    rope: Option<Rope>,
    reach: Option<i32>,
    head_dim: i32,
    scale: f32,
}
module!(EncoderAttention { q_proj, k_proj, v_proj, o_proj, q_norm, k_norm }
        plain { rope, reach, head_dim, scale });

impl EncoderAttention {
    fn empty(plan: &EncoderPlan, layer: &LayerPlan) -> Result<Self> {
        let (hidden, dim) = (plan.hidden, plan.head_dim);
        let norm = || {
            let norm = plan.qk_norm;
            norm.map(|(eps, offset)| RmsNorm::with_offset(dim, eps, offset))
                .transpose()
        };
        let rope = layer.rope.as_ref().map(|rope| Rope::new(rope, dim));
        Ok(Self {
            q_proj: Linear::empty(hidden, plan.heads * dim, plan.qkv_bias)?,
            k_proj: Linear::empty(hidden, plan.kv_heads * dim, plan.qkv_bias)?,
            v_proj: Linear::empty(hidden, plan.kv_heads * dim, plan.qkv_bias)?,
            o_proj: Linear::empty(plan.heads * dim, hidden, plan.out_bias)?,
            q_norm: norm()?,
            k_norm: norm()?,
            rope: rope.transpose()?,
            reach: layer.reach,
            head_dim: dim,
            scale: plan.scale,
        })
    }

    /// `[T, E] -> [T, E]`
    fn forward(&self, x: &Array, texts: &Texts) -> Result<Array> {
        let [q, k, v] = Linear::forward_all(
            [&self.q_proj, &self.k_proj, &self.v_proj],
            &x.expand_dims(0)?,
        )?;
        let q = self.heads(&q, self.q_norm.as_ref(), texts)?;
        let k = self.heads(&k, self.k_norm.as_ref(), texts)?;
        let v = split_heads(&v, self.head_dim)?;
        // Keys at most `reach` places away, or those of the whole text.
        let seen = Seen {
            window: self.reach.map(|reach| reach.saturating_add(1)),
            ahead: self.reach.unwrap_or(i32::MAX),
            ..Seen::default()
        };
        let options = FlatAttention {
            scale: self.scale,
            soft_cap: None,
            seen,
            sinks: None,
        };
        let y = fast::ragged_attention(&q, &k, &v, &texts.rows(), &options)?;
        self.o_proj.forward(&merge_heads(&y)?.squeeze(0)?)
    }

    /// The heads of queries or keys, normed and rotated: `[1, T, H * D] -> [1, H, T, D]`
    fn heads(&self, x: &Array, norm: Option<&RmsNorm>, texts: &Texts) -> Result<Array> {
        let (places, longest) = (texts.positions(), texts.longest());
        if let Some(rope) = &self.rope {
            return rope.heads_from_start(x, self.head_dim, norm, places, longest);
        }
        let heads = split_heads(x, self.head_dim)?;
        norm.map_or(Ok(heads.clone()), |norm| norm.forward(&heads))
    }
}

/// An MLP with or without a gate.
#[derive(Clone)]
struct EncoderMlp {
    gate_proj: Option<Linear>,
    up_proj: Linear,
    down_proj: Linear,
    activation: Activation,
}
module!(EncoderMlp { gate_proj, up_proj, down_proj } plain { activation });

impl EncoderMlp {
    fn empty(plan: &EncoderPlan) -> Result<Self> {
        let (hidden, inner) = (plan.hidden, plan.intermediate);
        let into = || Linear::empty(hidden, inner, plan.mlp_bias);
        Ok(Self {
            gate_proj: plan.gated.then(into).transpose()?,
            up_proj: into()?,
            down_proj: Linear::empty(inner, hidden, plan.mlp_out_bias)?,
            activation: plan.activation,
        })
    }

    fn forward(&self, x: &Array) -> Result<Array> {
        let inner = match &self.gate_proj {
            Some(gate) => {
                let [gate, up] = Linear::forward_all([gate, &self.up_proj], x)?;
                match self.activation {
                    Activation::Gelu => fast::gelu(&gate)?.multiply(&up)?,
                    other => other.gated(&gate, &up)?,
                }
            }
            None => {
                let inner = self.up_proj.forward(x)?;
                match self.activation {
                    Activation::Gelu => fast::gelu(&inner)?,
                    other => other.forward(&inner)?,
                }
            }
        };
        self.down_proj.forward(&inner)
    }
}

/// A layer of an [`EncoderModel`](super::EncoderModel).
#[derive(Clone)]
pub struct EncoderLayer {
    self_attn: EncoderAttention,
    mlp: EncoderMlp,
    attn_norm: Option<Norm>,
    attn_out_norm: Option<Norm>,
    mlp_norm: Option<Norm>,
    mlp_out_norm: Option<Norm>,
    norms: NormPlaces,
}
module!(EncoderLayer { self_attn, mlp, attn_norm, attn_out_norm, mlp_norm, mlp_out_norm }
        plain { norms });

impl EncoderLayer {
    /// A layer without values.
    pub(super) fn empty(plan: &EncoderPlan, layer: &LayerPlan) -> Result<Self> {
        let norm = |exists: bool| {
            let norm = exists.then(|| Norm::empty(plan.hidden, &plan.norm));
            norm.transpose()
        };
        let before = plan.norms != NormPlaces::AfterSums;
        let after = plan.norms != NormPlaces::Before;
        Ok(Self {
            self_attn: EncoderAttention::empty(plan, layer)?,
            mlp: EncoderMlp::empty(plan)?,
            attn_norm: norm(before && !layer.no_first_norm)?,
            attn_out_norm: norm(after)?,
            mlp_norm: norm(before)?,
            mlp_out_norm: norm(after)?,
            norms: plan.norms,
        })
    }

    /// `[T, E] -> [T, E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, texts: &Texts) -> Result<Array> {
        let y = self
            .self_attn
            .forward(&normed(self.attn_norm.as_ref(), x)?, texts)?;
        let x = self.sum(x, &y, self.attn_out_norm.as_ref())?;
        let y = self.mlp.forward(&normed(self.mlp_norm.as_ref(), &x)?)?;
        self.sum(&x, &y, self.mlp_out_norm.as_ref())
    }

    /// The sum of the stream and the result of a half of the layer.
    fn sum(&self, x: &Array, y: &Array, norm: Option<&Norm>) -> Result<Array> {
        match norm {
            Some(norm) if self.norms == NormPlaces::AfterSums => norm.forward(&fast::add(x, y)?),
            Some(norm) => norm.add_to(x, y),
            None => fast::add(x, y),
        }
    }
}

fn normed(norm: Option<&Norm>, x: &Array) -> Result<Array> {
    norm.map_or_else(|| Ok(x.clone()), |norm| norm.forward(x))
}
