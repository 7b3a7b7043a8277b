//! A layer whose halves may be absent, or linear maps.

use mlx_core::{Array, Result};
use mlx_nn::{
    Activation, Attention, AttentionConfig, GatedMlp, Linear, Module, Norm, Normed, Residual, Rope,
    Step, module,
};

use crate::config::plan::DecoderConfig;
use crate::decoders::causal_lm::DecoderLayer;

/// A half of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Half<T> {
    /// The half is absent, and so is its norm.
    Absent,
    /// One linear map.
    Linear,
    /// Attention or an MLP.
    Whole(T),
}

/// One linear map in place of attention or an MLP.
#[derive(Clone)]
struct Replacement {
    linear: Linear,
}
module!(Replacement { linear });

#[derive(Clone, Module)]
enum Mixer {
    Attention(Box<Attention>),
    Linear(Box<Replacement>),
}

#[derive(Clone, Module)]
enum FeedForward {
    Mlp(Box<GatedMlp>),
    Linear(Box<Replacement>),
}

/// A layer of Llama-Nemotron.
#[derive(Clone)]
pub(crate) struct SearchedLayer {
    input_layernorm: Option<Norm>,
    self_attn: Option<Mixer>,
    post_attention_layernorm: Option<Norm>,
    mlp: Option<FeedForward>,
}
module!(SearchedLayer {
    input_layernorm,
    self_attn,
    post_attention_layernorm,
    mlp
});

/// What all layers share.
pub(super) struct Shared {
    pub(super) config: DecoderConfig,
    pub(super) activation: Activation,
    pub(super) mlp_bias: bool,
}

impl Shared {
    pub(super) fn layer(&self, attention: Half<i32>, mlp: Half<i32>) -> Result<SearchedLayer> {
        let (c, plan) = (&self.config, &self.config.attention);
        let linear = |bias| -> Result<Box<Replacement>> {
            let linear = Linear::empty(c.hidden, c.hidden, bias)?;
            Ok(Box::new(Replacement { linear }))
        };
        let norm = |absent: bool| (!absent).then(|| c.norm()).transpose();
        Ok(SearchedLayer {
            input_layernorm: norm(attention == Half::Absent)?,
            self_attn: match attention {
                Half::Absent => None,
                Half::Linear => Some(Mixer::Linear(linear(plan.qkv_bias)?)),
                Half::Whole(kv_heads) => {
                    let rope = c.ropes[0].as_ref();
                    let rope = rope
                        .map(|rope| Rope::new(rope, plan.head_dim))
                        .transpose()?;
                    let own = AttentionConfig {
                        kv_heads,
                        ..c.attention_config()
                    };
                    Some(Mixer::Attention(Box::new(Attention::empty(&own, rope)?)))
                }
            },
            post_attention_layernorm: norm(mlp == Half::Absent)?,
            mlp: match mlp {
                Half::Absent => None,
                Half::Linear => Some(FeedForward::Linear(linear(self.mlp_bias)?)),
                Half::Whole(width) => {
                    let mlp = GatedMlp::empty(c.hidden, width, self.mlp_bias, self.activation)?;
                    Some(FeedForward::Mlp(Box::new(mlp)))
                }
            },
        })
    }
}

impl DecoderLayer for SearchedLayer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let mut x = x;
        if let (Some(norm), Some(mixer)) = (&self.input_layernorm, &self.self_attn) {
            let normed = Normed::new(x, norm);
            let y = match mixer {
                Mixer::Attention(attention) => attention.forward(&normed, state, step)?,
                Mixer::Linear(map) => map.linear.forward(normed.array()?)?,
            };
            let [sum, y]: [Array; 2] = step.narrow([normed.sum()?, &y])?;
            x = Residual::new(sum, y);
        }
        if let (Some(norm), Some(mlp)) = (&self.post_attention_layernorm, &self.mlp) {
            let normed = Normed::new(x, norm);
            let y = match mlp {
                FeedForward::Mlp(mlp) => mlp.forward(&normed)?,
                FeedForward::Linear(map) => map.linear.forward(normed.array()?)?,
            };
            x = Residual::new(normed.sum()?.clone(), y);
        }
        Ok(x)
    }
}
