//! The attention of a layer of a pre-norm decoder.

use mlx_core::{Array, Result};
use mlx_nn::{Attention, LatentAttention, LayerKind, Module, Normed, RopeConfig, Step};

use crate::config::plan::DecoderConfig;

/// The attention of a layer.
#[derive(Clone, Module)]
pub(in crate::decoders) enum SelfAttention {
    /// Attention over the keys and values of heads.
    Heads(Box<Attention>),
    /// Latent attention, over compressed keys and values.
    Latent(Box<LatentAttention>),
}

impl SelfAttention {
    pub(in crate::decoders) fn new(
        c: &DecoderConfig,
        kind: LayerKind,
        rope: Option<&RopeConfig>,
    ) -> Result<Self> {
        Ok(match c.attention.latent {
            Some(latent) => Self::Latent(Box::new(c.latent_attention(latent, rope)?)),
            None => {
                let chunk = c.attention.chunk.filter(|_| kind != LayerKind::Full);
                Self::Heads(Box::new(c.attention(chunk, rope)?))
            }
        })
    }

    /// The same attention, except that its queries see the positions that an earlier layer's
    /// indexer chose.
    pub(in crate::decoders) fn sharing_index(self) -> Self {
        match self {
            Self::Latent(attention) => Self::Latent(Box::new(attention.sharing_index())),
            heads @ Self::Heads(_) => heads,
        }
    }

    /// Computes the attention's output from the normed input: `[1, T, E] -> [1, T, E]`.
    pub(in crate::decoders) fn forward(
        &self,
        x: &Normed<'_>,
        state: usize,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        match self {
            Self::Heads(attention) => attention.forward(x, state, step),
            Self::Latent(attention) => attention.forward(x, state, step),
        }
    }
}
