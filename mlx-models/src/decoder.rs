//! The pre-norm decoder that most families share. Differences of value are fields of
//! [`DecoderConfig`], of presence Options or bools; a difference of order is a file of its own.

use mlx_core::{Array, Result, fast};
use mlx_nn::{
    Attention, AttentionConfig, ExpertsMlp, FeedForward, GatedMlp, RmsNorm, Rope, Step, module,
};

use crate::causal::{CausalLm, DecoderLayer};

mod config;

pub use config::{DecoderConfig, MlpConfig};

/// A layer of a [`Decoder`].
pub struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}
module!(Layer {
    input_layernorm,
    self_attn,
    post_attention_layernorm,
    mlp
});

impl Layer {
    fn new(c: &DecoderConfig, mlp: &MlpConfig) -> Result<Self> {
        let attention = AttentionConfig {
            hidden: c.hidden,
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            scale: (c.head_dim as f32).powf(-0.5),
            qkv_bias: c.qkv_bias,
            out_bias: c.out_bias,
            qk_norm: c.qk_norm.then_some((c.norm_eps, 0.0)),
            softcap: None,
            output_gate: false,
            sinks: false,
        };
        let mlp = match *mlp {
            MlpConfig::Dense {
                intermediate,
                bias,
                activation,
            } => FeedForward::Dense(Box::new(GatedMlp::new(
                c.hidden,
                intermediate,
                bias,
                activation,
            )?)),
            MlpConfig::Experts(experts) => {
                FeedForward::Experts(Box::new(ExpertsMlp::new(experts)?))
            }
        };
        Ok(Self {
            input_layernorm: RmsNorm::new(c.hidden, c.norm_eps)?,
            self_attn: Attention::new(&attention, Rope::new(&c.rope, c.head_dim)?)?,
            post_attention_layernorm: RmsNorm::new(c.hidden, c.norm_eps)?,
            mlp,
        })
    }
}

impl DecoderLayer for Layer {
    fn forward(&self, x: &Array, state: usize, step: &mut Step<'_>) -> Result<Array> {
        let y = self
            .self_attn
            .forward(&self.input_layernorm.forward(x)?, state, step)?;
        let (x, y) = self.post_attention_layernorm.after_add(x, &y, None)?;
        fast::add(&self.mlp.forward(&y)?, &x)
    }
}

/// A decoder-only transformer with a norm in front of each half of a layer.
pub type Decoder = CausalLm<Layer>;

impl Decoder {
    /// The decoder of a config, without values.
    ///
    /// # Errors
    /// Sizes that do not fit each other.
    pub fn new(config: &DecoderConfig) -> Result<Self> {
        let layers = config.mlps.iter().map(|mlp| Layer::new(config, mlp));
        Self::around(layers.collect::<Result<_>>()?, config.surroundings()?)
    }
}
