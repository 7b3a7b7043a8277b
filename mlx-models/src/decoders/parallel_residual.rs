//! A decoder with attention and MLP in parallel: both read one norm of the layer's input (Cohere, Phi 2, some
//! StableLM), or each reads its own (GPT-NeoX).

use mlx_core::{Result, fast};
use mlx_nn::{Attention, FeedForward, Norm, Normed, Residual, Step, module};

use crate::config::plan::DecoderConfig;
use crate::decoders::causal_lm::{CausalLm, DecoderLayer};

/// A layer of a [`ParallelResidual`].
#[derive(Clone)]
pub struct ParallelResidualLayer {
    input_layernorm: Norm,
    self_attn: Attention,
    /// The norm before the MLP, if the MLP does not read the first norm.
    post_attention_layernorm: Option<Norm>,
    mlp: FeedForward,
}
module!(ParallelResidualLayer {
    input_layernorm,
    self_attn,
    post_attention_layernorm,
    mlp
});

impl ParallelResidualLayer {
    fn new(c: &DecoderConfig, index: usize) -> Result<Self> {
        Ok(Self {
            input_layernorm: c.norm()?,
            self_attn: c.attention(None, c.ropes[index].as_ref())?,
            post_attention_layernorm: None,
            mlp: c.mlp(&c.feed_forward[index])?,
        })
    }
}

impl DecoderLayer for ParallelResidualLayer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let normed = Normed::new(x, &self.input_layernorm);
        let attended = self.self_attn.forward(&normed, state, step)?;
        let [x, inner, attended] = step.narrow([normed.sum()?, normed.array()?, &attended])?;
        let inner = match &self.post_attention_layernorm {
            Some(norm) => norm.forward(&x)?,
            None => inner,
        };
        // The two small terms first: at the magnitude of the stream there is one rounding.
        let added = fast::add(&self.mlp.forward(&inner)?, &attended)?;
        Ok(Residual::new(x, added))
    }
}

/// A decoder-only transformer with attention and MLP in parallel.
pub type ParallelResidual = CausalLm<ParallelResidualLayer>;

impl ParallelResidual {
    /// The decoder of a config. Its parameters have no values.
    ///
    /// # Errors
    /// Sizes do not fit each other.
    pub fn new(config: &DecoderConfig) -> Result<Self> {
        Self::of(config, ParallelResidualLayer::new)
    }

    /// The decoder whose MLPs have a norm of their own. Its parameters have no values.
    ///
    /// # Errors
    /// Sizes do not fit each other.
    pub fn with_two_norms(config: &DecoderConfig) -> Result<Self> {
        Self::of(config, |config, index| {
            Ok(ParallelResidualLayer {
                post_attention_layernorm: Some(config.norm()?),
                ..ParallelResidualLayer::new(config, index)?
            })
        })
    }
}
