//! A decoder with norms after attention and after MLP, and none before them (OLMo 2 and 3, EXAONE 4).

use mlx_core::Result;
use mlx_nn::{Attention, FeedForward, Norm, Residual, Step, module};

use crate::config::plan::DecoderConfig;
use crate::decoders::causal_lm::{CausalLm, DecoderLayer};

/// A layer of a [`PostNorm`].
#[derive(Clone)]
pub struct PostNormLayer {
    self_attn: Attention,
    post_attention_layernorm: Norm,
    mlp: FeedForward,
    post_feedforward_layernorm: Norm,
}
module!(PostNormLayer {
    self_attn,
    post_attention_layernorm,
    mlp,
    post_feedforward_layernorm
});

impl PostNormLayer {
    /// The layer `index` of a decoder. Its parameters have no values.
    ///
    /// # Errors
    /// Sizes do not fit each other.
    pub(crate) fn new(c: &DecoderConfig, index: usize) -> Result<Self> {
        Ok(Self {
            self_attn: c.attention(None, c.ropes[index].as_ref())?,
            post_attention_layernorm: c.norm()?,
            mlp: c.mlp(&c.feed_forward[index])?,
            post_feedforward_layernorm: c.norm()?,
        })
    }
}

impl DecoderLayer for PostNormLayer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let x = x.sum()?;
        let y = self.self_attn.forward(&x, state, step)?;
        let [x, y] = step.narrow([&x, &y])?;
        let x = self.post_attention_layernorm.add_to(&x, &y)?;
        let y = self.mlp.forward(&x)?;
        Residual::with_norm(x, &self.post_feedforward_layernorm, y)
    }
}

/// A decoder-only transformer with norms after attention and after MLP.
pub type PostNorm = CausalLm<PostNormLayer>;

impl PostNorm {
    /// The decoder of a config. Its parameters have no values.
    ///
    /// # Errors
    /// Sizes do not fit each other.
    pub fn new(config: &DecoderConfig) -> Result<Self> {
        Self::of(config, PostNormLayer::new)
    }
}
