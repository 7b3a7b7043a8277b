//! The decoder of Gemma 2 and 3: norms before *and* after each half of a layer, embeddings scaled
//! by the root of their size, norms that store `weight - 1`.

use mlx_core::{Array, Result};
use mlx_nn::{
    Activation, Attention, AttentionConfig, GatedMlp, LayerKind, RmsNorm, Rope, RopeConfig, Step,
    module,
};

use crate::causal::{CausalLm, DecoderLayer, Surroundings};
use crate::{Geometry, LayerGeometry, kv_heads};

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
    /// What each layer's KV cache keeps.
    pub layers: Vec<LayerKind>,
    /// Rope of layers with full attention.
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
    /// Positions the model was made for, if its config tells.
    pub max_positions: Option<usize>,
}

/// A layer of a [`Gemma`].
pub struct Layer {
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
            output_gate: false,
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
}

impl DecoderLayer for Layer {
    fn forward(&self, x: &Array, state: usize, step: &mut Step<'_>) -> Result<Array> {
        let y = self
            .self_attn
            .forward(&self.input_layernorm.forward(x)?, state, step)?;
        let inner = Some(&self.post_attention_layernorm);
        let (x, y) = self.pre_feedforward_layernorm.after_add(x, &y, inner)?;
        let y = self.mlp.forward(&y)?;
        self.post_feedforward_layernorm.add_to(&x, &y)
    }
}

/// A Gemma 2 or 3 text model.
pub type Gemma = CausalLm<Layer>;

impl Gemma {
    /// The model of a config, without values.
    ///
    /// # Errors
    /// Sizes that do not fit each other.
    pub fn new(config: &GemmaConfig) -> Result<Self> {
        let layers = config.layers.iter();
        let layers = layers.map(|&kind| Layer::new(config, kind));
        let switches_after = Rope::new(&config.rope, config.head_dim)?.switches_after();
        let kv = kv_heads(config.kv_heads, config.head_dim);
        let sizes = config.layers.iter();
        let sizes = sizes.map(|&kind| LayerGeometry::attention(config.heads, kv, kind));
        let around = Surroundings {
            geometry: Geometry::new(config.vocab, config.hidden, sizes.collect())
                .with_positions(config.max_positions, switches_after),
            norm_eps: config.norm_eps,
            norm_offset: NORM_OFFSET,
            tied: config.tied,
            embed_scale: Some(f64::from(config.hidden).sqrt() as f32),
            softcap: config.final_softcap,
        };
        Self::around(layers.collect::<Result<_>>()?, around)
    }
}
