//! A decoder with norms before *and* after each half of a layer (Gemma 2 and 3, GLM 4, PLaMo 3).

use mlx_core::{Array, Result};
use mlx_nn::{
    Attention, FeedForward, LayerKind, Norm, NormConfig, NormKind, Normed, Recurrence, Residual,
    Step, module,
};

use crate::config::plan::DecoderConfig;
use crate::decoders::causal_lm::{CausalLm, DecoderLayer};

/// A layer of a [`PreAndPostNorm`].
#[derive(Clone)]
pub struct PreAndPostNormLayer {
    self_attn: Option<Attention>,
    linear_attn: Option<Recurrence>,
    mlp: FeedForward,
    input_layernorm: Norm,
    post_attention_layernorm: Norm,
    pre_feedforward_layernorm: Norm,
    post_feedforward_layernorm: Norm,
    residual_scale: Option<f32>,
}
module!(PreAndPostNormLayer {
    self_attn,
    linear_attn,
    mlp,
    input_layernorm,
    post_attention_layernorm,
    pre_feedforward_layernorm,
    post_feedforward_layernorm
} plain { residual_scale });

impl PreAndPostNormLayer {
    /// The layer `index` of a decoder. Its parameters have no values.
    ///
    /// # Errors
    /// Sizes do not fit each other.
    pub(crate) fn new(c: &DecoderConfig, index: usize) -> Result<Self> {
        let (self_attn, linear_attn) = match (c.layers[index], c.recurrence) {
            (LayerKind::Recurrent(_), Some(config)) => (None, Some(Recurrence::empty(config)?)),
            _ => (Some(c.attention(None, c.ropes[index].as_ref())?), None),
        };
        let after = |half: usize| {
            let kind = c.norm.after_offsets.map(|of| NormKind::Rms(of[half]));
            let config = NormConfig {
                kind: kind.unwrap_or(c.norm.kind),
                eps: c.norm.after.unwrap_or(c.norm.eps),
            };
            Norm::empty(c.hidden, &config)
        };
        Ok(Self {
            self_attn,
            linear_attn,
            mlp: c.mlp(&c.feed_forward[index])?,
            input_layernorm: c.norm()?,
            post_attention_layernorm: after(0)?,
            pre_feedforward_layernorm: c.norm()?,
            post_feedforward_layernorm: after(1)?,
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
        let y = match (&self.self_attn, &self.linear_attn) {
            (Some(attention), _) => attention.forward(&normed, state, step)?,
            (None, Some(recurrence)) => recurrence.forward(normed.array()?, state, step)?,
            (None, None) => unreachable!("a layer has one of them"),
        };
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
