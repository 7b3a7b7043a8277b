//! The decoder of Gemma 2 and 3: norms before *and* after each half of a layer, embeddings scaled
//! by the root of their size, norms that store `weight - 1`.

use mlx_core::{Array, Result};
use mlx_nn::{
    Activation, Attention, AttentionConfig, Embedding, GatedMlp, Head, LayerKind, Linear, RmsNorm,
    Rope, RopeConfig, Step, module,
};

use crate::Model;

/// Gemma's norms multiply by `1 + weight`.
const NORM_OFFSET: f32 = 1.0;

/// Everything that distinguishes one Gemma from another.
#[derive(Clone, Debug)]
pub struct GemmaConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Features inside the MLP.
    pub intermediate: i32,
    /// Rows of the embedding.
    pub vocab: i32,
    /// Query heads.
    pub heads: i32,
    /// Key and value heads.
    pub kv_heads: i32,
    /// Features of a head.
    pub head_dim: i32,
    /// Scores are divided by the root of this.
    pub query_pre_attn_scalar: f64,
    /// What each layer remembers.
    pub layers: Vec<LayerKind>,
    /// Rope of layers that remember everything.
    pub rope: RopeConfig,
    /// Rope of layers with a window.
    pub local_rope: RopeConfig,
    /// Epsilon of every norm.
    pub norm_eps: f32,
    /// The MLP's activation.
    pub activation: Activation,
    /// Bias on q, k, v and the attention's output.
    pub attention_bias: bool,
    /// Norms on each head's q and k.
    pub qk_norm: bool,
    /// Soft cap of attention scores.
    pub attn_softcap: Option<f32>,
    /// Soft cap of logits.
    pub final_softcap: Option<f32>,
    /// The head is the embedding.
    pub tied: bool,
}

struct Layer {
    self_attn: Attention,
    mlp: GatedMlp,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    post_feedforward_layernorm: RmsNorm,
}
module!(Layer {
    self_attn,
    mlp,
    input_layernorm,
    post_attention_layernorm,
    pre_feedforward_layernorm,
    post_feedforward_layernorm
});

impl Layer {
    fn new(c: &GemmaConfig, kind: LayerKind) -> Result<Self> {
        let attention = AttentionConfig {
            hidden: c.hidden,
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            scale: c.query_pre_attn_scalar.powf(-0.5) as f32,
            qkv_bias: c.attention_bias,
            out_bias: c.attention_bias,
            qk_norm: c.qk_norm.then_some((c.norm_eps, NORM_OFFSET)),
            softcap: c.attn_softcap,
            sinks: false,
        };
        let rope = if kind == LayerKind::Full {
            &c.rope
        } else {
            &c.local_rope
        };
        let norm = || RmsNorm::with_offset(c.hidden, c.norm_eps, NORM_OFFSET);
        Ok(Self {
            self_attn: Attention::new(&attention, Rope::new(rope, c.head_dim)?)?,
            mlp: GatedMlp::new(c.hidden, c.intermediate, false, c.activation)?,
            input_layernorm: norm()?,
            post_attention_layernorm: norm()?,
            pre_feedforward_layernorm: norm()?,
            post_feedforward_layernorm: norm()?,
        })
    }

    fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let y = self
            .self_attn
            .forward(&self.input_layernorm.forward(x)?, layer, step)?;
        let inner = Some(&self.post_attention_layernorm);
        let (x, y) = self.pre_feedforward_layernorm.after_add(x, &y, inner)?;
        let y = self.mlp.forward(&y)?;
        self.post_feedforward_layernorm.add_to(&x, &y)
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

/// A Gemma 2 or 3 text model.
pub struct Gemma {
    model: Backbone,
    lm_head: Option<Linear>,
    kinds: Vec<LayerKind>,
    embed_scale: f32,
    final_softcap: Option<f32>,
    switches_after: Option<usize>,
}
module!(Gemma { model, lm_head } plain { kinds, embed_scale, final_softcap, switches_after });

impl Gemma {
    /// The model of a config, without values.
    ///
    /// # Errors
    /// Sizes that do not fit each other.
    pub fn new(config: &GemmaConfig) -> Result<Self> {
        let layers: Result<Vec<_>> = config
            .layers
            .iter()
            .map(|&kind| Layer::new(config, kind))
            .collect();
        Ok(Self {
            model: Backbone {
                embed_tokens: Embedding::new(config.vocab, config.hidden)?,
                layers: layers?,
                norm: RmsNorm::with_offset(config.hidden, config.norm_eps, NORM_OFFSET)?,
            },
            lm_head: if config.tied {
                None
            } else {
                Some(Linear::new(config.hidden, config.vocab, false)?)
            },
            kinds: config.layers.clone(),
            embed_scale: f64::from(config.hidden).sqrt() as f32,
            final_softcap: config.final_softcap,
            switches_after: Rope::new(&config.rope, config.head_dim)?.switches_after(),
        })
    }
}

impl Model for Gemma {
    fn embed(&self, tokens: &Array) -> Result<Array> {
        // The scalar takes the embedding's dtype: in bf16 the factor itself is rounded, as in training.
        let x = self.model.embed_tokens.forward(tokens)?;
        x.multiply(self.embed_scale)
    }

    fn layer(&self, index: usize, x: &Array, step: &mut Step<'_>) -> Result<Array> {
        self.model.layers[index].forward(x, index, step)
    }

    fn norm(&self, x: &Array) -> Result<Array> {
        self.model.norm.forward(x)
    }

    fn head(&self) -> Head<'_> {
        Head::of(
            self.lm_head.as_ref(),
            &self.model.embed_tokens,
            self.final_softcap,
        )
    }

    fn layers(&self) -> &[LayerKind] {
        &self.kinds
    }

    fn switches_after(&self) -> Option<usize> {
        self.switches_after
    }
}
