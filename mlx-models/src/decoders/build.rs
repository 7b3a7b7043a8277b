//! The modules of a decoder, built from its plan.

use std::borrow::Cow;

use mlx_core::{Error, ErrorKind, Result};
use mlx_nn::{
    Activation, Attention, AttentionConfig, ExpertsMlp, FeedForward, GatedMlp, KvShape,
    LatentAttention, LatentConfig, LayerKind, Norm, PlainMlp, Rope, RopeConfig, Xielu,
    kv_taps_kind,
};

use super::causal_lm::Surroundings;
use crate::config::plan::{AttentionPlan, DecoderConfig, MlpConfig};
use crate::model::{Geometry, LayerGeometry, kv_heads};

impl DecoderConfig {
    /// The parts before and after the layers.
    ///
    /// # Errors
    /// The settings of a rope are invalid.
    pub fn surroundings(&self) -> Result<Surroundings> {
        let layers = self.layers.iter().enumerate();
        let layers = layers.map(|(layer, &kind)| match kind {
            LayerKind::Recurrent(shape) => LayerGeometry::recurrent(shape),
            kind => {
                let plan = self.attention_of(layer);
                let kv = kv_of(plan);
                let mut attention = LayerGeometry::attention(plan.heads, kv, kind);
                if plan.kv_taps {
                    let width = kv.heads * (kv.key_dim + kv.value_dim);
                    attention.states.push(kv_taps_kind(width));
                }
                if self.shares_index(layer) {
                    let recurs = |at: usize| matches!(self.layers[at], LayerKind::Recurrent(_));
                    let mut before = (0..layer).rev();
                    attention.reads = before.find(|&at| !recurs(at) && !self.shares_index(at));
                }
                match self.attention.latent.and_then(|latent| latent.index) {
                    Some(index) if !self.shares_index(layer) => {
                        attention.with_index(index.kept_dim())
                    }
                    _ => match plan.blocks {
                        Some(blocks) => attention.with_index(blocks.dim),
                        None => attention,
                    },
                }
            }
        });
        self.surroundings_of(layers.collect())
    }

    /// The parts before and after layers of these sizes.
    ///
    /// # Errors
    /// The settings of a rope are invalid.
    pub fn surroundings_of(&self, layers: Vec<LayerGeometry>) -> Result<Surroundings> {
        let (mut switches_after, mut grows_after) = (None, None);
        for (rope, layer) in self.ropes.iter().zip(&layers) {
            let head_dim = layer.kv.map_or(self.attention.head_dim, |kv| kv.key_dim);
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
            norm: self.norm.config(),
            tied: self.head.tied,
            head_bias: self.head.bias,
            embed_scale: self.scales.embedding,
            logit_scale: self.scales.logits,
            softcap: self.scales.logit_softcap,
        })
    }

    /// The attention of a layer.
    pub(crate) fn attention_of(&self, layer: usize) -> &AttentionPlan {
        self.attentions.get(layer).unwrap_or(&self.attention)
    }

    /// The config in which all layers have the attention of this one.
    pub(crate) fn of_layer(&self, layer: usize) -> Cow<'_, Self> {
        match self.attentions.get(layer) {
            Some(attention) => Cow::Owned(Self {
                attention: attention.clone(),
                attentions: Vec::new(),
                ..self.clone()
            }),
            None => Cow::Borrowed(self),
        }
    }

    /// The number and the sizes of the KV heads that attention layers cache.
    pub(crate) fn kv(&self) -> KvShape {
        kv_of(&self.attention)
    }

    /// The latent attention of a layer with this rope. Its parameters have no values.
    ///
    /// # Errors
    /// The settings of the rope are invalid.
    pub fn latent_attention(
        &self,
        latent: LatentConfig,
        rope: Option<&RopeConfig>,
    ) -> Result<LatentAttention> {
        LatentAttention::empty(latent, rope)
    }

    /// Whether the queries of a layer see the positions that an earlier layer's indexer chose.
    pub(crate) fn shares_index(&self, layer: usize) -> bool {
        self.attention.shares_index.get(layer) == Some(&true)
    }

    /// The attention of a layer with this rope and chunks of this size. Its parameters have no
    /// values.
    ///
    /// # Errors
    /// The settings of the rope are invalid.
    pub fn attention(&self, chunk: Option<usize>, rope: Option<&RopeConfig>) -> Result<Attention> {
        let own = rope.map(|rope| Rope::new(rope, self.attention.head_dim));
        let config = AttentionConfig {
            chunk,
            ..self.attention_config()
        };
        let mut attention = Attention::empty(&config, own.transpose()?)?;
        if let Some(pattern) = self.attention.pattern {
            attention = attention.with_pattern(pattern)?;
        }
        if self.attention.kv_taps {
            attention = attention.with_kv_taps()?;
        }
        match (self.attention.blocks, rope) {
            (Some(blocks), Some(rope)) => {
                let rope = RopeConfig {
                    dims: rope.dims.min(blocks.dim),
                    ..rope.clone()
                };
                attention.with_blocks(blocks, Rope::new(&rope, blocks.dim)?)
            }
            (Some(_), None) => Err(Error::new(
                ErrorKind::Invalid,
                "a choice of blocks in a layer without a rope",
            )),
            (None, _) => Ok(attention),
        }
    }

    /// The sizes and options of a layer's attention.
    pub fn attention_config(&self) -> AttentionConfig {
        let plan = &self.attention;
        AttentionConfig {
            scale: plan.scale,
            qkv_bias: plan.qkv_bias,
            out_bias: plan.out_bias,
            qk_norm: plan.qk_norm,
            clip: plan.qkv_clip,
            growth: plan.query_growth,
            alibi: plan.alibi,
            softcap: plan.softcap,
            output_gate: plan.output_gate,
            gate: plan.gate,
            value_dim: plan.value_dim,
            value_scale: plan.value_scale,
            sinks: plan.sinks,
            sub_norm: self.norm.before_outputs,
            ..AttentionConfig::plain(self.hidden, plan.heads, plan.kv_heads, plan.head_dim)
        }
    }

    /// The feed-forward half of a layer. Its parameters have no values.
    ///
    /// # Errors
    /// There is no memory for an array's handle.
    pub fn mlp(&self, mlp: &MlpConfig) -> Result<FeedForward> {
        Ok(match *mlp {
            MlpConfig::Dense {
                intermediate,
                bias,
                activation,
                clamp,
            } => {
                let mlp = GatedMlp::empty(self.hidden, intermediate, bias, activation)?;
                let mlp = mlp.with_clamp(clamp);
                FeedForward::Dense(Box::new(mlp.with_sub_norm(self.norm.before_outputs)?))
            }
            MlpConfig::Plain {
                intermediate,
                bias,
                activation,
            } => FeedForward::Plain(Box::new(PlainMlp::empty(
                self.hidden,
                intermediate,
                bias,
                activation,
            )?)),
            MlpConfig::Paired { intermediate, gate } => FeedForward::Plain(Box::new(
                PlainMlp::paired(self.hidden, intermediate, true, gate)?,
            )),
            MlpConfig::Learned { intermediate, axes } => {
                let mlp = PlainMlp::empty(self.hidden, intermediate, false, Activation::Relu)?;
                let xielu = Xielu::empty(&[1][..axes])?;
                FeedForward::Plain(Box::new(mlp.with_xielu(Some(xielu))))
            }
            MlpConfig::Experts(experts) => {
                FeedForward::Experts(Box::new(ExpertsMlp::empty(experts)?))
            }
        })
    }

    /// A norm over a token's features. Its parameters have no values.
    ///
    /// # Errors
    /// There is no memory for an array's handle.
    pub fn norm(&self) -> Result<Norm> {
        Norm::empty(self.hidden, &self.norm.config())
    }
}

/// The number and the sizes of the KV heads that attention caches.
fn kv_of(plan: &AttentionPlan) -> KvShape {
    match (&plan.latent, plan.value_dim) {
        (Some(latent), _) => KvShape {
            heads: 1,
            key_dim: latent.kept_dim(),
            value_dim: latent.rank,
        },
        (None, Some(value_dim)) => KvShape {
            heads: plan.kv_heads,
            key_dim: plan.head_dim,
            value_dim,
        },
        (None, None) => kv_heads(plan.kv_heads, plan.head_dim),
    }
}
