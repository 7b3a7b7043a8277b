//! AltUp (Baykal et al., arXiv:2301.13310): several residual streams; a layer computes one of them
//! and corrects the others.

use mlx_core::{Array, DType, Result, fast, ops::concat};
use mlx_nn::{Initial, Linear, Param, Residual, RmsNorm, module};

use crate::decoders::causal_lm::Ends;
use crate::decoders::per_layer_inputs::LayerInputs;

/// Sizes of the streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    /// The number of streams.
    pub n: i32,
    /// The index of the active stream, which layers compute.
    pub active: i32,
    /// Features of each stream.
    pub hidden: i32,
    /// Epsilon of the router's norm.
    pub eps: f32,
}

/// How a layer mixes the streams.
#[derive(Clone)]
pub(super) struct AltUp {
    correct_output_scale: Param,
    correction_coefs: Linear,
    prediction_coefs: Linear,
    modality_router: Linear,
    router_norm: RmsNorm,
    streams: Streams,
}
module!(AltUp {
    correct_output_scale,
    correction_coefs,
    prediction_coefs,
    modality_router,
    router_norm
} plain { streams });

impl AltUp {
    pub(super) fn new(streams: Streams) -> Result<Self> {
        let Streams { n, hidden, .. } = streams;
        Ok(Self {
            correct_output_scale: Param::starting(&[hidden], Initial::Constant(1.0))?,
            correction_coefs: Linear::empty(n, n, false)?,
            prediction_coefs: Linear::empty(n, n * n, false)?,
            modality_router: Linear::empty(hidden, n, false)?,
            router_norm: RmsNorm::empty(hidden, streams.eps)?,
            streams,
        })
    }

    /// The active stream `[1, T, E]` of the streams `[1, T, n, E]`.
    pub(super) fn active(&self, streams: &Array) -> Result<Array> {
        let active = self.streams.active;
        streams.slice_axis(2, active, active + 1)?.squeeze(2)
    }

    /// Predicts the streams after the layer from those before it, all `[1, T, n, E]`.
    pub(super) fn predict(&self, streams: &Array) -> Result<Array> {
        let [b, l, n, _] = streams.dims()?;
        let coefs = self
            .prediction_coefs
            .forward(&self.modalities(&self.active(streams)?)?)?;
        let coefs = coefs.reshape(&[b, l, n, n])?;
        let mut predictions = streams.clone();
        for from in 0..n {
            let share = coefs.slice_axis(3, from, from + 1)?;
            let stream = streams.slice_axis(2, from, from + 1)?;
            predictions = predictions.add(share.multiply(stream)?)?;
        }
        Ok(predictions)
    }

    /// The predictions `[1, T, n, E]`, corrected by the difference between `activated` `[1, T, E]` and the active
    /// prediction.
    pub(super) fn correct(&self, predictions: &Array, activated: &Array) -> Result<Array> {
        let coefs = self
            .correction_coefs
            .forward(&self.modalities(activated)?)?
            .add(1.0)?;
        let off = activated.subtract(&self.active(predictions)?)?;
        let moved = off.expand_dims(2)?.multiply(coefs.expand_dims(-1)?)?;
        predictions.add(&moved)
    }

    /// The corrected active stream `[1, T, E]`, scaled for the gate of the layer's input.
    pub(super) fn scaled(&self, x: &Array) -> Result<Array> {
        x.multiply(self.correct_output_scale.value())
    }

    /// The router's coefficients of the streams: `[1, T, E] -> [1, T, n]`.
    fn modalities(&self, x: &Array) -> Result<Array> {
        let normed = self.router_norm.forward(x)?;
        let normed = normed.multiply(1.0 / self.streams.hidden as f32)?;
        let routed = self.modality_router.forward(&normed)?;
        routed.astype(DType::F32)?.tanh()?.astype(x.dtype())
    }
}

/// The parameters that make the streams before the first layer and join them after the last, and
/// those of the inputs of layers. The residual stream holds the streams, followed by the inputs.
#[derive(Clone)]
pub(crate) struct StreamEnds {
    inputs: LayerInputs,
    altup_projections: Vec<Linear>,
    altup_unembed_projections: Vec<Linear>,
    hidden: i32,
}
module!(StreamEnds { altup_projections, altup_unembed_projections } flat { inputs } plain { hidden });

impl StreamEnds {
    pub(super) fn new(streams: Streams, inputs: LayerInputs) -> Result<Self> {
        let Streams { n, hidden, .. } = streams;
        let others = || {
            let each = (1..n).map(|_| Linear::empty(hidden, hidden, false));
            each.collect::<Result<Vec<_>>>()
        };
        Ok(Self {
            inputs,
            altup_projections: others()?,
            altup_unembed_projections: others()?,
            hidden,
        })
    }
}

/// The root of the mean square over the last axis, which is kept with size 1. It is at least
/// `sqrt(least)`.
fn magnitude(x: &Array, least: f32) -> Result<Array> {
    x.square()?.mean(-1, true)?.maximum(least)?.sqrt()
}

/// `x` with the magnitude `target`.
fn levelled(x: &Array, target: &Array) -> Result<Array> {
    x.multiply(target)?.divide(magnitude(x, 1e-5)?)
}

impl Ends for StreamEnds {
    fn enter(&self, tokens: &Array, x: Array) -> Result<Array> {
        let target = magnitude(&x, 0.0)?;
        let mut all = vec![x.clone()];
        for projection in &self.altup_projections {
            all.push(levelled(&projection.forward(&x)?, &target)?);
        }
        all.push(self.inputs.forward(tokens, &x)?);
        concat(&all, -1)
    }

    fn leave(&self, x: Residual) -> Result<Residual> {
        let x = x.sum()?;
        let first = x.slice_axis(-1, 0, self.hidden)?;
        let target = magnitude(&first, 0.0)?;
        let mut sum = first;
        for (at, projection) in (1..).zip(&self.altup_unembed_projections) {
            let stream = x.slice_axis(-1, at * self.hidden, (at + 1) * self.hidden)?;
            sum = fast::add(&levelled(&projection.forward(&stream)?, &target)?, &sum)?;
        }
        let mean = sum.divide((self.altup_unembed_projections.len() + 1) as f32)?;
        Ok(mean.into())
    }
}
