//! The pre-norm decoder that most families share. A difference in a value is a field of
//! [`DecoderConfig`], an optional part is an `Option` or a bool, and another order of operations is
//! a file of its own.

use mlx_core::{Array, Error, ErrorKind, Result};
use mlx_nn::{
    Embedding, FeedForward, LayerKind, Norm, Normed, Recurrence, Residual, RopeConfig, Step, module,
};

use crate::decoders::causal_lm::{CausalLm, DecoderLayer};

pub(super) mod attention;

pub use crate::config::plan::{
    AttentionPlan, DecoderConfig, HeadPlan, MlpConfig, NormPlan, ScalePlan,
};
use attention::SelfAttention;

/// A layer of a [`Decoder`].
#[derive(Clone)]
pub struct PreNormLayer {
    input_layernorm: Norm,
    self_attn: Option<SelfAttention>,
    linear_attn: Option<Recurrence>,
    post_attention_layernorm: Norm,
    mlp: FeedForward,
    positions: Option<Embedding>,
    /// The row of position 0 in `positions`.
    first_position: i32,
    residual_scale: Option<f32>,
}
module!(PreNormLayer {
    input_layernorm,
    self_attn,
    linear_attn,
    post_attention_layernorm,
    mlp,
    positions
} plain { first_position, residual_scale });

impl PreNormLayer {
    /// The layer `index` of a decoder. Its parameters have no values.
    pub(crate) fn new(c: &DecoderConfig, index: usize) -> Result<Self> {
        let mut layer = Self::with(
            &c.of_layer(index),
            c.layers[index],
            &c.feed_forward[index],
            c.ropes[index].as_ref(),
        )?;
        if c.shares_index(index) {
            layer.self_attn = layer.self_attn.map(SelfAttention::sharing_index);
        }
        Ok(layer)
    }

    /// A layer whose state is of this kind. Its parameters have no values.
    ///
    /// # Errors
    /// Sizes do not fit each other.
    pub(crate) fn with(
        c: &DecoderConfig,
        kind: LayerKind,
        mlp: &MlpConfig,
        rope: Option<&RopeConfig>,
    ) -> Result<Self> {
        let (self_attn, linear_attn) = match (kind, c.recurrence) {
            (LayerKind::Recurrent(_), Some(config)) => (None, Some(Recurrence::empty(config)?)),
            (LayerKind::Recurrent(_), None) => {
                let message = "a recurrent layer in a decoder without a recurrence";
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            _ => (Some(SelfAttention::new(c, kind, rope)?), None),
        };
        Ok(Self {
            input_layernorm: c.norm()?,
            self_attn,
            linear_attn,
            post_attention_layernorm: c.norm()?,
            mlp: c.mlp(mlp)?,
            positions: None,
            first_position: 0,
            residual_scale: c.scales.residual,
        })
    }

    /// Makes this the first layer of a decoder with learned positions: it adds their features to
    /// those of the tokens. Row `first_position` of the table is that of position 0.
    #[must_use]
    pub(crate) fn with_positions(self, positions: Option<Embedding>, first_position: i32) -> Self {
        Self {
            positions,
            first_position,
            ..self
        }
    }

    fn positioned(&self, x: Residual, step: &Step<'_>) -> Result<Residual> {
        match &self.positions {
            Some(table) => {
                // The position of a token that is not kept may exceed the last row of the table.
                let last = table.weight().shape()[0] - 1;
                let rows = match self.first_position {
                    0 => step.positions().clone(),
                    first => step.positions().add(first)?,
                };
                let of_positions = table.forward(&rows.minimum(last)?)?;
                Ok(x.sum()?.add(of_positions)?.into())
            }
            None => Ok(x),
        }
    }

    fn scaled(&self, y: Array) -> Result<Array> {
        match self.residual_scale {
            Some(scale) => y.multiply(scale),
            None => Ok(y),
        }
    }
}

impl DecoderLayer for PreNormLayer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let normed = Normed::new(self.positioned(x, step)?, &self.input_layernorm);
        let y = match (&self.self_attn, &self.linear_attn) {
            (Some(attention), _) => attention.forward(&normed, state, step)?,
            (None, Some(recurrence)) => recurrence.forward(normed.array()?, state, step)?,
            (None, None) => unreachable!("a layer has one of them"),
        };
        let [x, y] = step.narrow([normed.sum()?, &y])?;
        let x = Residual::new(x, self.scaled(y)?);
        let normed = Normed::new(x, &self.post_attention_layernorm);
        let y = self.scaled(self.mlp.forward(&normed)?)?;
        Ok(Residual::new(normed.sum()?.clone(), y))
    }
}

/// A decoder-only transformer with a norm before each half of a layer.
pub type Decoder = CausalLm<PreNormLayer>;

impl Decoder {
    /// The decoder of a config. Its parameters have no values.
    ///
    /// # Errors
    /// Sizes do not fit each other.
    pub fn new(config: &DecoderConfig) -> Result<Self> {
        Self::of(config, PreNormLayer::new)
    }
}
