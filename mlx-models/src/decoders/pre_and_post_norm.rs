//! A decoder with norms before *and* after each half of a layer (Gemma 2 and 3, GLM 4).

use mlx_core::{Array, Result};
use mlx_nn::{Attention, FeedForward, Norm, Step, module};

use crate::config::plan::DecoderConfig;
use crate::decoders::causal_lm::{CausalLm, DecoderLayer};

/// A layer of a [`PreAndPostNorm`].
#[derive(Clone)]
pub struct PreAndPostNormLayer {
    self_attn: Attention,
    mlp: FeedForward,
    input_layernorm: Norm,
    post_attention_layernorm: Norm,
    pre_feedforward_layernorm: Norm,
    post_feedforward_layernorm: Norm,
}
module!(PreAndPostNormLayer {
    self_attn,
    mlp,
    input_layernorm,
    post_attention_layernorm,
    pre_feedforward_layernorm,
    post_feedforward_layernorm
});

impl PreAndPostNormLayer {
    fn new(c: &DecoderConfig, index: usize) -> Result<Self> {
        Ok(Self {
            self_attn: c.attention(None, c.ropes[index].as_ref())?,
            mlp: c.mlp(&c.feed_forward[index])?,
            input_layernorm: c.norm()?,
            post_attention_layernorm: c.norm()?,
            pre_feedforward_layernorm: c.norm()?,
            post_feedforward_layernorm: c.norm()?,
        })
    }
}

impl DecoderLayer for PreAndPostNormLayer {
    fn forward(&self, x: &Array, state: usize, step: &mut Step<'_>) -> Result<Array> {
        let y = self
            .self_attn
            .forward(&self.input_layernorm.forward(x)?, state, step)?;
        let [x, y] = step.narrow([x, &y])?;
        let inner = Some(&self.post_attention_layernorm);
        let (x, y) = self.pre_feedforward_layernorm.after_add(&x, &y, inner)?;
        let y = self.mlp.forward(&y)?;
        self.post_feedforward_layernorm.add_to(&x, &y)
    }
}

/// A decoder-only transformer with four norms a layer.
pub type PreAndPostNorm = CausalLm<PreAndPostNormLayer>;

impl PreAndPostNorm {
    /// The decoder of a config, without values.
    ///
    /// # Errors
    /// Sizes that do not fit each other.
    pub fn new(config: &DecoderConfig) -> Result<Self> {
        Self::of(config, PreAndPostNormLayer::new)
    }
}
