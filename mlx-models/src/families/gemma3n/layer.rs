//! A layer of Gemma 3n. It computes one of several residual streams, with a low-rank path parallel
//! to the attention, and an MLP that may set most of its features to zero.

use mlx_core::{Array, Result, fast, ops::concat};
use mlx_nn::{Attention, GatedMlp, Linear, Norm, Normed, Residual, RmsNorm, Step, module};

use super::altup::AltUp;
use crate::decoders::causal_lm::DecoderLayer;
use crate::decoders::per_layer_inputs::LayerInput;

/// The low-rank path beside the attention (LAuReL, arXiv:2411.07501).
#[derive(Clone)]
pub(super) struct Laurel {
    linear_left: Linear,
    linear_right: Linear,
    post_laurel_norm: RmsNorm,
}
module!(Laurel {
    linear_left,
    linear_right,
    post_laurel_norm
});

impl Laurel {
    pub(super) fn new(hidden: i32, rank: i32, eps: f32) -> Result<Self> {
        Ok(Self {
            linear_left: Linear::empty(hidden, rank, false)?,
            linear_right: Linear::empty(rank, hidden, false)?,
            post_laurel_norm: RmsNorm::empty(hidden, eps)?,
        })
    }

    fn forward(&self, x: &Normed<'_>) -> Result<Array> {
        let y = self.linear_right.forward(&self.linear_left.forward(x)?)?;
        self.post_laurel_norm.add_to(x.array()?, &y)
    }
}

/// A layer of a [`Gemma3n`](super::Gemma3n).
#[derive(Clone)]
pub(crate) struct Gemma3nLayer {
    pub(super) self_attn: Attention,
    pub(super) mlp: GatedMlp,
    pub(super) altup: AltUp,
    pub(super) laurel: Laurel,
    pub(super) input_layernorm: Norm,
    pub(super) post_attention_layernorm: Norm,
    pub(super) pre_feedforward_layernorm: Norm,
    pub(super) post_feedforward_layernorm: Norm,
    pub(super) input: LayerInput,
    pub(super) streams: i32,
    pub(super) hidden: i32,
    pub(super) width: i32,
    /// Whether the active stream is multiplied by a vector before it gates the layer's input.
    pub(super) scales: bool,
}
module!(Gemma3nLayer {
    self_attn,
    mlp,
    altup,
    laurel,
    input_layernorm,
    post_attention_layernorm,
    pre_feedforward_layernorm,
    post_feedforward_layernorm
} flat { input } plain { streams, hidden, width, scales });

impl Gemma3nLayer {
    /// The active stream after attention and MLP: `[1, T, E] -> [1, T, E]`.
    fn activated(&self, x: &Array, state: usize, step: &mut Step<'_>) -> Result<Array> {
        let normed = Normed::new(x.clone(), &self.input_layernorm);
        let laurel = self.laurel.forward(&normed)?;
        let y = self.self_attn.forward(&normed, state, step)?;
        let [x, y, laurel] = step.narrow([x, &y, &laurel])?;
        let x = self.post_attention_layernorm.add_to(&x, &y)?;
        let x = fast::add(&x, &laurel)?.multiply(std::f32::consts::FRAC_1_SQRT_2)?;
        let normed = Normed::new(x.clone(), &self.pre_feedforward_layernorm);
        let y = self.mlp.forward(&normed)?;
        self.post_feedforward_layernorm.add_to(&x, &y)
    }
}

impl DecoderLayer for Gemma3nLayer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let x = x.sum()?;
        let [b, l, end] = x.dims()?;
        let of_streams = self.streams * self.hidden;
        let own = of_streams + self.width;
        let input = x.slice_axis(-1, of_streams, own)?;
        let streams = x.slice_axis(-1, 0, of_streams)?;
        let streams = streams.reshape(&[b, l, self.streams, self.hidden])?;
        let predictions = self.altup.predict(&streams)?;
        let activated = self.activated(&self.altup.active(&predictions)?, state, step)?;
        let [predictions, input] = step.narrow([&predictions, &input])?;
        let corrected = self.altup.correct(&predictions, &activated)?;
        let mut active = self.altup.active(&corrected)?;
        if self.scales {
            active = self.altup.scaled(&active)?;
        }
        let added = self.input.forward(&active, &input)?.expand_dims(2)?;
        let first = corrected.slice_axis(2, 0, 1)?;
        let others = corrected.slice_axis(2, 1, self.streams)?.add(&added)?;
        let streams = concat(&[first, others], 2)?.reshape(&[b, -1, of_streams])?;
        match own < end {
            true => Ok(concat(&[streams, x.slice_axis(-1, own, end)?], -1)?.into()),
            false => Ok(streams.into()),
        }
    }
}
