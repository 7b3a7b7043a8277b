//! The pre-norm decoder that most families share. Differences of value are fields of
//! [`DecoderConfig`], of presence Options or bools; a difference of order is a file of its own.

use mlx_core::{Array, Error, ErrorKind, Result, fast};
use mlx_nn::{
    Attention, AttentionConfig, ExpertsMlp, FeedForward, GatedDeltaNet, GatedMlp, LayerKind,
    RmsNorm, Rope, Step, module,
};

use crate::causal::{CausalLm, DecoderLayer};

mod config;

pub use config::{DecoderConfig, MlpConfig};

/// A layer of a [`Decoder`].
pub struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Option<Attention>,
    linear_attn: Option<GatedDeltaNet>,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}
module!(Layer {
    input_layernorm,
    self_attn,
    linear_attn,
    post_attention_layernorm,
    mlp
});

impl Layer {
    /// A layer without values, which keeps `kind`.
    ///
    /// # Errors
    /// Sizes that do not fit each other.
    pub(crate) fn new(c: &DecoderConfig, kind: LayerKind, mlp: &MlpConfig) -> Result<Self> {
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
            output_gate: c.output_gate,
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
        let (self_attn, linear_attn) = match (kind, c.delta) {
            (LayerKind::Recurrent(_), Some(delta)) => (None, Some(GatedDeltaNet::new(delta)?)),
            (LayerKind::Recurrent(_), None) => {
                let message = "a recurrent layer in a decoder without a recurrence";
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            _ => {
                let rope = Rope::new(&c.rope, c.head_dim)?;
                (Some(Attention::new(&attention, rope)?), None)
            }
        };
        Ok(Self {
            input_layernorm: RmsNorm::new(c.hidden, c.norm_eps)?,
            self_attn,
            linear_attn,
            post_attention_layernorm: RmsNorm::new(c.hidden, c.norm_eps)?,
            mlp,
        })
    }
}

impl DecoderLayer for Layer {
    fn forward(&self, x: &Array, state: usize, step: &mut Step<'_>) -> Result<Array> {
        let y = self.input_layernorm.forward(x)?;
        let y = match (&self.self_attn, &self.linear_attn) {
            (Some(attention), _) => attention.forward(&y, state, step)?,
            (None, Some(delta)) => delta.forward(&y, state, step)?,
            (None, None) => unreachable!("a layer has one of them"),
        };
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
        let layers = config.layers.iter().zip(&config.mlps);
        let layers = layers.map(|(&kind, mlp)| Layer::new(config, kind, mlp));
        Self::around(layers.collect::<Result<_>>()?, config.surroundings()?)
    }
}
