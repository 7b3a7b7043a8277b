//! What distinguishes one decoder from another.

use mlx_core::Result;
use mlx_nn::{
    Activation, Attention, AttentionConfig, ExpertsConfig, ExpertsMlp, FeedForward, GatedMlp,
    Growth, KvShape, LatentAttention, LatentConfig, LayerKind, Norm, NormConfig, PlainMlp, QkNorm,
    RecurrenceConfig, Rope, RopeConfig, Xielu,
};

use crate::decoders::causal_lm::Surroundings;
use crate::model::Geometry;
use crate::model::LayerGeometry;
use crate::model::kv_heads;

/// The feed-forward half of one layer.
#[derive(Clone, Debug)]
pub enum MlpConfig {
    /// One gated MLP.
    Dense {
        /// Features inside.
        intermediate: i32,
        /// Bias on its three projections.
        bias: bool,
        /// Its activation.
        activation: Activation,
    },
    /// One MLP without a gate.
    Plain {
        /// Features inside.
        intermediate: i32,
        /// Bias on its two projections.
        bias: bool,
        /// Its activation.
        activation: Activation,
    },
    /// One MLP without a gate, whose activation is [`Xielu`] with slopes of this many axes.
    Learned {
        /// Features inside.
        intermediate: i32,
        /// Axes of the slopes in the files: 0 or 1.
        axes: usize,
    },
    /// A router and experts.
    Experts(ExpertsConfig),
}

/// Everything that distinguishes one decoder from another of the same order of operations.
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Rows of the embedding.
    pub vocab: i32,
    /// Query heads.
    pub heads: i32,
    /// Key and value heads.
    pub kv_heads: i32,
    /// Features of a head.
    pub head_dim: i32,
    /// What each layer keeps. Recurrent layers mix tokens as `recurrence` says, the others attend.
    pub layers: Vec<LayerKind>,
    /// The feed-forward half of each layer.
    pub mlps: Vec<MlpConfig>,
    /// The rotary embedding of each layer, where it has one.
    pub ropes: Vec<Option<RopeConfig>>,
    /// Every norm, but those on q and k.
    pub norm: NormConfig,
    /// The factor of attention scores.
    pub attention_scale: f32,
    /// Bias on q, k and v.
    pub qkv_bias: bool,
    /// Bias on the attention's output.
    pub out_bias: bool,
    /// Norms on q and k.
    pub qk_norm: Option<QkNorm>,
    /// q, k and v are brought into `-clip ..= clip`.
    pub qkv_clip: Option<f32>,
    /// Queries are scaled by a function of their position.
    pub query_growth: Option<Growth>,
    /// ALiBi, whose bias is multiplied by this.
    pub alibi: Option<f32>,
    /// One learned score a query head that takes part in the softmax and adds no value.
    pub sinks: bool,
    /// Layers with a window attend within fixed chunks of this many positions.
    pub chunk: Option<usize>,
    /// Soft cap of attention scores.
    pub attention_softcap: Option<f32>,
    /// The epsilon of norms before the output projections of attention and gated MLP.
    pub sub_norms: Option<f32>,
    /// A gate on the attention's output.
    pub output_gate: bool,
    /// Latent attention, over compressed keys and values, in place of attention over heads.
    pub latent: Option<LatentConfig>,
    /// For each layer, whether its queries see the positions that an earlier layer's indexer chose. Empty if no layer
    /// does.
    pub shares_index: Vec<bool>,
    /// The recurrence of recurrent layers.
    pub recurrence: Option<RecurrenceConfig>,
    /// Embeddings are multiplied by this.
    pub embed_scale: Option<f32>,
    /// The outputs of attention and MLP are multiplied by this before they are added to the residual.
    pub residual_scale: Option<f32>,
    /// Logits are multiplied by this.
    pub logit_scale: Option<f32>,
    /// Soft cap of logits.
    pub logit_softcap: Option<f32>,
    /// Bias on the output head.
    pub head_bias: bool,
    /// The head is the embedding.
    pub tied: bool,
    /// The context length, if the config has one.
    pub max_positions: Option<usize>,
}

impl DecoderConfig {
    /// The parts before and after the layers.
    ///
    /// # Errors
    /// A rope is none.
    pub fn surroundings(&self) -> Result<Surroundings> {
        let kv = self.kv();
        let layers = self.layers.iter().enumerate();
        let layers = layers.map(|(layer, &kind)| match kind {
            LayerKind::Recurrent(shape) => LayerGeometry::recurrent(shape),
            kind => {
                let attention = LayerGeometry::attention(self.heads, kv, kind);
                match self.latent.and_then(|latent| latent.index) {
                    Some(index) if !self.shares_index(layer) => attention.with_index(index.dim),
                    _ => attention,
                }
            }
        });
        self.surroundings_of(layers.collect())
    }

    /// The parts before and after layers of these sizes.
    ///
    /// # Errors
    /// A rope is none.
    pub fn surroundings_of(&self, layers: Vec<LayerGeometry>) -> Result<Surroundings> {
        let (mut switches_after, mut grows_after) = (None, None);
        for (rope, layer) in self.ropes.iter().zip(&layers) {
            let head_dim = layer.kv.map_or(self.head_dim, |kv| kv.key_dim);
            if let Some(rope) = rope {
                let rope = Rope::new(rope, head_dim)?;
                switches_after = switches_after.or(rope.switches_after());
                grows_after = grows_after.or(rope.grows_after());
            }
        }
        Ok(Surroundings {
            geometry: Geometry::new(self.vocab, self.hidden, layers)
                .with_positions(self.max_positions, switches_after)
                .growing_after(grows_after),
            norm: self.norm,
            tied: self.tied,
            head_bias: self.head_bias,
            embed_scale: self.embed_scale,
            logit_scale: self.logit_scale,
            softcap: self.logit_softcap,
        })
    }

    /// The heads and sizes of the keys and values that attention layers cache.
    pub(crate) fn kv(&self) -> KvShape {
        match &self.latent {
            Some(latent) => KvShape {
                heads: 1,
                key_dim: latent.kept_dim(),
                value_dim: latent.rank,
            },
            None => kv_heads(self.kv_heads, self.head_dim),
        }
    }

    /// The attention over compressed keys and values of a layer with this rope, without values.
    ///
    /// # Errors
    /// The rope is none.
    pub fn latent_attention(
        &self,
        latent: LatentConfig,
        rope: Option<&RopeConfig>,
    ) -> Result<LatentAttention> {
        LatentAttention::new(latent, rope)
    }

    /// Whether the queries of a layer see the positions that an earlier layer's indexer chose.
    pub(crate) fn shares_index(&self, layer: usize) -> bool {
        self.shares_index.get(layer) == Some(&true)
    }

    /// The attention of a layer with this rope and chunks of this size, without values.
    ///
    /// # Errors
    /// The rope is none.
    pub fn attention(&self, chunk: Option<usize>, rope: Option<&RopeConfig>) -> Result<Attention> {
        let rope = rope.map(|rope| Rope::new(rope, self.head_dim));
        let config = AttentionConfig {
            chunk,
            ..self.attention_config()
        };
        Attention::new(&config, rope.transpose()?)
    }

    /// The sizes and options of a layer's attention.
    pub fn attention_config(&self) -> AttentionConfig {
        AttentionConfig {
            scale: self.attention_scale,
            qkv_bias: self.qkv_bias,
            out_bias: self.out_bias,
            qk_norm: self.qk_norm,
            clip: self.qkv_clip,
            growth: self.query_growth,
            alibi: self.alibi,
            softcap: self.attention_softcap,
            output_gate: self.output_gate,
            sinks: self.sinks,
            sub_norm: self.sub_norms,
            ..AttentionConfig::plain(self.hidden, self.heads, self.kv_heads, self.head_dim)
        }
    }

    /// The feed-forward half of a layer, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn mlp(&self, mlp: &MlpConfig) -> Result<FeedForward> {
        Ok(match *mlp {
            MlpConfig::Dense {
                intermediate,
                bias,
                activation,
            } => {
                let mlp = GatedMlp::new(self.hidden, intermediate, bias, activation)?;
                FeedForward::Dense(Box::new(mlp.with_sub_norm(self.sub_norms)?))
            }
            MlpConfig::Plain {
                intermediate,
                bias,
                activation,
            } => FeedForward::Plain(Box::new(PlainMlp::new(
                self.hidden,
                intermediate,
                bias,
                activation,
            )?)),
            MlpConfig::Learned { intermediate, axes } => {
                let mlp = PlainMlp::new(self.hidden, intermediate, false, Activation::Relu)?;
                let xielu = Xielu::new(&[1][..axes])?;
                FeedForward::Plain(Box::new(mlp.with_xielu(Some(xielu))))
            }
            MlpConfig::Experts(experts) => {
                FeedForward::Experts(Box::new(ExpertsMlp::new(experts)?))
            }
        })
    }

    /// A norm over a token's features, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn norm(&self) -> Result<Norm> {
        Norm::new(self.hidden, &self.norm)
    }
}
