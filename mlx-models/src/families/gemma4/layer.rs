//! A layer of Gemma 4: four norms, experts beside the MLP, an input of its own, and a factor on its output.

use mlx_core::{Array, Result, fast, ops::concat};
use mlx_nn::{
    Attention, AttentionConfig, FeedForward, Initial, Norm, Normed, Param, Residual, Rope,
    RopeConfig, Step, module,
};

use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::decoders::causal_lm::DecoderLayer;
use crate::decoders::per_layer_inputs::LayerInput;
use crate::families::gemma4::beside::Beside;

/// A layer of a [`Gemma4`](super::Gemma4).
#[derive(Clone)]
pub(crate) struct Gemma4Layer {
    self_attn: Attention,
    mlp: FeedForward,
    input_layernorm: Norm,
    post_attention_layernorm: Norm,
    pre_feedforward_layernorm: Norm,
    post_feedforward_layernorm: Norm,
    layer_scalar: Param,
    experts: Option<Beside>,
    /// The layer's own input. It is the first part of the features that follow the residual stream.
    input: Option<LayerInput>,
    hidden: i32,
    width: i32,
}
module!(Gemma4Layer {
    self_attn,
    mlp,
    input_layernorm,
    post_attention_layernorm,
    pre_feedforward_layernorm,
    post_feedforward_layernorm,
    layer_scalar
} flat { experts, input } plain { hidden, width });

impl Gemma4Layer {
    /// A layer with this attention, rope and MLP, without experts and an input of its own. Its parameters have no values.
    pub(crate) fn new(
        config: &DecoderConfig,
        (attention, rope, mlp): (&AttentionConfig, &RopeConfig, &MlpConfig),
    ) -> Result<Self> {
        Ok(Self {
            self_attn: Attention::empty(attention, Rope::new(rope, attention.head_dim)?)?,
            mlp: config.mlp(mlp)?,
            input_layernorm: config.norm()?,
            post_attention_layernorm: config.norm()?,
            pre_feedforward_layernorm: config.norm()?,
            post_feedforward_layernorm: config.norm()?,
            layer_scalar: Param::starting(&[1], Initial::Constant(1.0))?,
            experts: None,
            input: None,
            hidden: config.hidden,
            width: 0,
        })
    }

    /// The layer with these experts, and an input of its own of this width.
    pub(crate) fn with(
        self,
        experts: Option<Beside>,
        input: Option<LayerInput>,
        width: i32,
    ) -> Self {
        Self {
            experts,
            input,
            width,
            ..self
        }
    }

    /// The features after the layer, from `x [1, T, E]` and the layer's input `[1, T, P]`.
    fn features(
        &self,
        x: &Array,
        input: Option<(&LayerInput, &Array)>,
        state: usize,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let normed = Normed::new(x.clone(), &self.input_layernorm);
        let y = self.self_attn.forward(&normed, state, step)?;
        let [x, y] = step.narrow([x, &y])?;
        let x = Residual::with_norm(x, &self.post_attention_layernorm, y)?;
        let normed = Normed::new(x, &self.pre_feedforward_layernorm);
        let mut y = self.mlp.forward(&normed)?;
        let x = normed.sum()?;
        if let Some(experts) = &self.experts {
            y = experts.forward(x, &y)?;
        }
        let mut x = self.post_feedforward_layernorm.add_to(x, &y)?;
        if let Some((layer, input)) = input {
            let [input] = step.narrow([input])?;
            x = fast::add(&layer.forward(&x, &input)?, &x)?;
        }
        x.multiply(self.layer_scalar.value())
    }
}

impl DecoderLayer for Gemma4Layer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let x = x.sum()?;
        let Some(input) = &self.input else {
            return Ok(self.features(&x, None, state, step)?.into());
        };
        let (end, own) = (x.dim(-1)?, self.hidden + self.width);
        let of_layer = x.slice_axis(-1, self.hidden, own)?;
        let features = x.slice_axis(-1, 0, self.hidden)?;
        let y = self.features(&features, Some((input, &of_layer)), state, step)?;
        match own < end {
            true => Ok(concat(&[&y, &x.slice_axis(-1, own, end)?], -1)?.into()),
            false => Ok(y.into()),
        }
    }
}
