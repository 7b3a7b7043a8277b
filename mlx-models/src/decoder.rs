//! The pre-norm decoder that most families share. Differences of value are fields of
//! [`DecoderConfig`], of presence Options or bools; a difference of order is a file of its own.

use mlx_core::{Array, Result, fast};
use mlx_nn::{
    Attention, AttentionConfig, Embedding, ExpertsMlp, FeedForward, GatedMlp, Head, LayerKind,
    Linear, RmsNorm, Rope, Step, module,
};

use crate::Model;

mod config;

pub use config::{DecoderConfig, MlpConfig};

struct Layer {
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
            sinks: false,
        };
        let mlp = match *mlp {
            MlpConfig::Dense {
                intermediate,
                bias,
                activation,
            } => FeedForward::Dense(GatedMlp::new(c.hidden, intermediate, bias, activation)?),
            MlpConfig::Experts(experts) => FeedForward::Experts(ExpertsMlp::new(experts)?),
        };
        Ok(Self {
            input_layernorm: RmsNorm::new(c.hidden, c.norm_eps)?,
            self_attn: Attention::new(&attention, Rope::new(&c.rope, c.head_dim)?)?,
            post_attention_layernorm: RmsNorm::new(c.hidden, c.norm_eps)?,
            mlp,
        })
    }

    fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let y = self
            .self_attn
            .forward(&self.input_layernorm.forward(x)?, layer, step)?;
        let (x, y) = self.post_attention_layernorm.after_add(x, &y, None)?;
        fast::add(&self.mlp.forward(&y)?, &x)
    }
}

struct Backbone {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
}
module!(Backbone {
    embed_tokens,
    layers,
    norm
});

/// A decoder-only transformer with a norm in front of each half of a layer.
pub struct Decoder {
    model: Backbone,
    lm_head: Option<Linear>,
    kinds: Vec<LayerKind>,
    switches_after: Option<usize>,
}
module!(Decoder { model, lm_head } plain { kinds, switches_after });

impl Decoder {
    /// The decoder of a config, without values.
    ///
    /// # Errors
    /// Sizes that do not fit each other.
    pub fn new(config: &DecoderConfig) -> Result<Self> {
        let layers: Result<Vec<_>> = config
            .mlps
            .iter()
            .map(|mlp| Layer::new(config, mlp))
            .collect();
        Ok(Self {
            model: Backbone {
                embed_tokens: Embedding::new(config.vocab, config.hidden)?,
                layers: layers?,
                norm: RmsNorm::new(config.hidden, config.norm_eps)?,
            },
            lm_head: if config.tied {
                None
            } else {
                Some(Linear::new(config.hidden, config.vocab, false)?)
            },
            kinds: config.layers.clone(),
            switches_after: Rope::new(&config.rope, config.head_dim)?.switches_after(),
        })
    }
}

impl Model for Decoder {
    fn embed(&self, tokens: &Array) -> Result<Array> {
        self.model.embed_tokens.forward(tokens)
    }

    fn layer(&self, index: usize, x: &Array, step: &mut Step<'_>) -> Result<Array> {
        self.model.layers[index].forward(x, index, step)
    }

    fn norm(&self, x: &Array) -> Result<Array> {
        self.model.norm.forward(x)
    }

    fn head(&self) -> Head<'_> {
        Head::of(self.lm_head.as_ref(), &self.model.embed_tokens, None)
    }

    fn layers(&self) -> &[LayerKind] {
        &self.kinds
    }

    fn switches_after(&self) -> Option<usize> {
        self.switches_after
    }
}
