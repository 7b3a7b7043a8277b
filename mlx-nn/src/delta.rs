//! [`GatedDeltaNet`]: a linear attention whose state decays and corrects itself (Yang et al., arXiv:2412.06464).

use mlx_core::fast::{self, Gate, GatedDelta};
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use crate::activation::Activation;
use crate::cache::{LayerKind, RecurrentShape, StatePart};
use crate::init::Initial;
use crate::linear::Linear;
use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::norm::RmsNorm;
use crate::step::{Replay, StateAfter, Step};

/// Sizes of a [`GatedDeltaNet`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Heads of queries and keys.
    pub key_heads: i32,
    /// Heads of values; a multiple of `key_heads`.
    pub value_heads: i32,
    /// Features of a query or key.
    pub key_dim: i32,
    /// Features of a value.
    pub value_dim: i32,
    /// Taps of the convolution, at least 2.
    pub taps: i32,
    /// The activation behind the convolution.
    pub activation: Activation,
    /// Epsilon of the output's norm.
    pub norm_eps: f32,
}

/// Parts of the layer state.
const CONV: usize = 0;
const DELTA: usize = 1;

impl DeltaConfig {
    fn keys(&self) -> i32 {
        self.key_heads * self.key_dim
    }

    fn values(&self) -> i32 {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> i32 {
        2 * self.keys() + self.values()
    }

    /// The state of a row: the last inputs of the convolution, and a matrix in F32 for each value head.
    pub fn kind(&self) -> LayerKind {
        let shape = RecurrentShape::new(&[
            StatePart::Window {
                name: "conv",
                len: self.taps - 1,
                width: self.channels(),
            },
            StatePart::Carry {
                name: "delta",
                shape: [self.value_heads, self.value_dim, self.key_dim],
                dtype: DType::F32,
            },
        ]);
        LayerKind::Recurrent(shape.replayed())
    }

    fn check(&self) -> Result<()> {
        let Self {
            key_heads,
            value_heads,
            taps,
            ..
        } = *self;
        if key_heads < 1 || value_heads < 1 || value_heads % key_heads != 0 {
            let message =
                format!("{value_heads} value heads are not a multiple of {key_heads} key heads");
            return Err(Error::new(ErrorKind::Shape, message));
        }
        if taps < 2 {
            let message = format!("the convolution needs at least 2 taps, given {taps}");
            return Err(Error::new(ErrorKind::Shape, message));
        }
        Ok(())
    }
}

/// The taps of a causal convolution of single channels.
#[derive(Clone, Debug)]
struct Conv {
    /// `[channels, taps, 1]`, as MLX has them.
    weight: Param,
    /// `[taps, channels]`
    taps: Array,
}

impl Conv {
    fn new(channels: i32, taps: i32) -> Result<Self> {
        let deviation = (taps as f32).powf(-0.5);
        let weight = Param::starting(&[channels, taps, 1], Initial::Normal(deviation))?;
        Ok(Self {
            taps: weight.value().clone(),
            weight,
        })
    }

    /// `[B, taps - 1 + L, channels] -> [B, L, channels]`
    fn forward(&self, x: &Array, activation: Activation) -> Result<Array> {
        if activation == Activation::Silu {
            return fast::causal_conv(x, &self.taps);
        }
        let [taps, _] = self.taps.dims()?;
        let tokens = x.dim(1)? - taps + 1;
        let mut sum = None::<Array>;
        for tap in 0..taps {
            let inputs = x.slice_axis(1, tap, tap + tokens)?.astype(DType::F32)?;
            let term = inputs.multiply(self.taps.slice_axis(0, tap, tap + 1)?)?;
            sum = Some(match sum {
                None => term,
                Some(sum) => sum.add(&term)?,
            });
        }
        let sum = sum.expect("there are taps");
        activation.forward(&sum)?.astype(x.dtype())
    }
}

impl Module for Conv {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("weight", |path| self.weight.visit(path, v))?;
        v.derived(&self.taps)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        path.scoped("weight", |path| self.weight.visit_mut(path, v))?;
        if self.weight.is_filled() {
            self.taps = self.weight.value().squeeze(-1)?.t()?.contiguous()?;
        }
        Ok(())
    }
}

/// How much the state of each value head decays.
#[derive(Clone, Debug)]
struct Decay {
    a_log: Param,
    dt_bias: Param,
    /// `exp(a_log)` and `dt_bias`, F32.
    rate: Array,
    bias: Array,
}

impl Decay {
    fn new(heads: i32) -> Result<Self> {
        let a_log = Param::starting(&[heads], Initial::LogUniform(16.0))?.never_narrowed();
        let dt_bias = Param::starting(&[heads], Initial::Constant(1.0))?;
        Ok(Self {
            rate: a_log.value().clone(),
            bias: dt_bias.value().clone(),
            a_log,
            dt_bias,
        })
    }

    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("A_log", |path| self.a_log.visit(path, v))?;
        path.scoped("dt_bias", |path| self.dt_bias.visit(path, v))?;
        v.derived(&self.rate)?;
        v.derived(&self.bias)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        path.scoped("A_log", |path| self.a_log.visit_mut(path, v))?;
        path.scoped("dt_bias", |path| self.dt_bias.visit_mut(path, v))?;
        self.rate = self.a_log.value().astype(DType::F32)?.exp()?;
        self.bias = self.dt_bias.value().astype(DType::F32)?;
        Ok(())
    }
}

/// A recurrent layer in the place of an attention.
///
/// Projections, a causal convolution of queries, keys and values, the gated delta rule, a gated norm, and a projection
/// back. The projections' rows are flat: `in_proj_qkv` is queries, keys and values, each head by head.
#[derive(Clone, Debug)]
pub struct GatedDeltaNet {
    in_proj_qkv: Linear,
    in_proj_z: Linear,
    in_proj_b: Linear,
    in_proj_a: Linear,
    conv1d: Conv,
    decay: Decay,
    norm: RmsNorm,
    out_proj: Linear,
    config: DeltaConfig,
}

impl GatedDeltaNet {
    /// A layer without values.
    ///
    /// # Errors
    /// Value heads are not a multiple of key heads, or there are fewer than 2 taps.
    pub fn new(config: DeltaConfig) -> Result<Self> {
        config.check()?;
        let (hidden, heads) = (config.hidden, config.value_heads);
        Ok(Self {
            in_proj_qkv: Linear::new(hidden, config.channels(), false)?,
            in_proj_z: Linear::new(hidden, config.values(), false)?,
            in_proj_b: Linear::new(hidden, heads, false)?,
            in_proj_a: Linear::new(hidden, heads, false)?,
            conv1d: Conv::new(config.channels(), config.taps)?,
            decay: Decay::new(heads)?,
            norm: RmsNorm::new(config.value_dim, config.norm_eps)?,
            out_proj: Linear::new(config.values(), hidden, false)?,
            config,
        })
    }

    /// `x: [B, L, E] -> [B, L, E]`, reading and writing layer `layer` of the step's cache. What padding gives means nothing.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let projections = [
            &self.in_proj_qkv,
            &self.in_proj_z,
            &self.in_proj_b,
            &self.in_proj_a,
        ];
        let [qkv, z, b, a] = Linear::forward_all(projections, x)?;
        let window = step.window(layer, CONV, &qkv)?;
        let qkv = self.conv1d.forward(&window, self.config.activation)?;
        let inputs = [
            qkv,
            a,
            b,
            self.decay.rate.clone(),
            self.decay.bias.clone(),
            step.state(layer, DELTA)?,
        ];
        let (y, end) = delta(&inputs, &step.real_widths()?)?;
        let replay = Replay {
            inputs: inputs.into(),
            run: |inputs, keep| Ok(delta(inputs, keep)?.1),
        };
        step.set_state(layer, DELTA, StateAfter::Again { end, replay })?;
        let [rows, tokens, width] = y.dims()?;
        let heads = [rows, tokens, self.config.value_heads, self.config.value_dim];
        let normed = self.norm.forward(&y.reshape(&heads)?)?;
        // The norm's weight may be F32 in a model of 16 bits.
        let normed = normed.astype(x.dtype())?;
        let gated = fast::gated(Gate::Silu, &z.reshape(&heads)?, &normed)?;
        self.out_proj
            .forward(&gated.reshape(&[rows, tokens, width])?)
    }
}

/// The outputs of the first `widths` tokens of each row, and the state after them. `inputs` are qkv, a, b, rate, bias and the
/// state before.
fn delta(inputs: &[Array], widths: &Array) -> Result<(Array, Array)> {
    let [qkv, a, b, rate, bias, state] = inputs else {
        let message = format!("the delta rule has 6 inputs, given {}", inputs.len());
        return Err(Error::new(ErrorKind::Invalid, message));
    };
    let ([_, _, width], [_, heads, value_dim, key_dim]) = (qkv.dims()?, state.dims()?);
    fast::gated_delta(&GatedDelta {
        qkv,
        a,
        b,
        rate,
        bias,
        state,
        widths,
        key_heads: (width - heads * value_dim) / (2 * key_dim),
    })
}

impl Module for GatedDeltaNet {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("in_proj_qkv", |path| self.in_proj_qkv.visit(path, v))?;
        path.scoped("in_proj_z", |path| self.in_proj_z.visit(path, v))?;
        path.scoped("in_proj_b", |path| self.in_proj_b.visit(path, v))?;
        path.scoped("in_proj_a", |path| self.in_proj_a.visit(path, v))?;
        path.scoped("conv1d", |path| self.conv1d.visit(path, v))?;
        self.decay.visit(path, v)?;
        path.scoped("norm", |path| self.norm.visit(path, v))?;
        path.scoped("out_proj", |path| self.out_proj.visit(path, v))
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        path.scoped("in_proj_qkv", |path| self.in_proj_qkv.visit_mut(path, v))?;
        path.scoped("in_proj_z", |path| self.in_proj_z.visit_mut(path, v))?;
        path.scoped("in_proj_b", |path| self.in_proj_b.visit_mut(path, v))?;
        path.scoped("in_proj_a", |path| self.in_proj_a.visit_mut(path, v))?;
        path.scoped("conv1d", |path| self.conv1d.visit_mut(path, v))?;
        self.decay.visit_mut(path, v)?;
        path.scoped("norm", |path| self.norm.visit_mut(path, v))?;
        path.scoped("out_proj", |path| self.out_proj.visit_mut(path, v))
    }
}
