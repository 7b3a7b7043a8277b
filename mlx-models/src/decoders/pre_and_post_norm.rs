//! A decoder with norms before *and* after each half of a layer (Gemma 2 and 3, GLM 4).

use mlx_core::{Array, Result};
use mlx_nn::{Attention, FeedForward, Norm, Normed, Residual, Step, module};

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
    residual_scale: Option<f32>,
}
module!(PreAndPostNormLayer {
    self_attn,
    mlp,
    input_layernorm,
    post_attention_layernorm,
    pre_feedforward_layernorm,
    post_feedforward_layernorm
} plain { residual_scale });

impl PreAndPostNormLayer {
    fn new(c: &DecoderConfig, index: usize) -> Result<Self> {
        Ok(Self {
            self_attn: c.attention(None, c.ropes[index].as_ref())?,
            mlp: c.mlp(&c.feed_forward[index])?,
            input_layernorm: c.norm()?,
            post_attention_layernorm: c.norm()?,
            pre_feedforward_layernorm: c.norm()?,
            post_feedforward_layernorm: c.norm()?,
            residual_scale: c.scales.residual,
        })
    }

    /// `x + norm(y)`. The second term is multiplied by the config's factor of the residual, if it
    /// has one.
    fn add(&self, x: Array, norm: &Norm, y: Array) -> Result<Residual> {
        match self.residual_scale {
            Some(scale) => Ok(Residual::new(x, norm.forward(&y)?.multiply(scale)?)),
            None => Residual::with_norm(x, norm, y),
        }
    }
}

impl DecoderLayer for PreAndPostNormLayer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let normed = Normed::new(x, &self.input_layernorm);
        let y = self.self_attn.forward(&normed, state, step)?;
        let [x, y] = step.narrow([normed.sum()?, &y])?;
        let x = self.add(x, &self.post_attention_layernorm, y)?;
        let normed = Normed::new(x, &self.pre_feedforward_layernorm);
        let y = self.mlp.forward(&normed)?;
        self.add(normed.sum()?.clone(), &self.post_feedforward_layernorm, y)
    }
}

/// A decoder-only transformer with four norms a layer.
pub type PreAndPostNorm = CausalLm<PreAndPostNormLayer>;

impl PreAndPostNorm {
    /// The decoder of a config. Its parameters have no values.
    ///
    /// # Errors
    /// Sizes do not fit each other.
    pub fn new(config: &DecoderConfig) -> Result<Self> {
        Self::of(config, PreAndPostNormLayer::new)
    }
}
