//! Activation functions, as values of [`Activation`] and as functions of an array.
//! [`Activation::parse`] reads their names in config.json.
//!
//! ```
//! use mlx_core::{Result, array};
//! use mlx_nn::{Activation, activation};
//!
//! # fn main() -> Result<()> {
//! let x = array![-1.0, 2.0];
//! let y = activation::leaky_relu_with(&x, 0.1)?;
//! assert_eq!(y.to_vec::<f32>()?, [-0.1, 2.0]);
//! assert_eq!(Activation::Relu.forward(&x)?.to_vec::<f32>()?, [0.0, 2.0]);
//! # Ok(())
//! # }
//! ```

use std::fmt;

use mlx_core::{Array, DType, Error, ErrorKind, Result, fast};

use crate::module::{Module, Path, Visit, VisitMut};

mod functions;
mod prelu;
mod xielu;

pub use functions::*;
pub use prelu::PRelu;
pub use xielu::Xielu;

/// An activation. The last four compute along the last axis, and the others are elementwise. It is
/// a layer without parameters.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::Activation;
///
/// # fn main() -> Result<()> {
/// let x = Array::from_slice(&[-2.0f32, 8.0], &[2])?;
/// assert_eq!(Activation::LeakyRelu(0.1).forward(&x)?.to_vec::<f32>()?, [-0.2, 8.0]);
/// assert_eq!(Activation::Relu6.forward(&x)?.to_vec::<f32>()?, [0.0, 6.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`
    #[doc(alias = "SiLU")]
    Silu,
    /// `x * Phi(x)` with the exact normal distribution function.
    #[doc(alias = "GELU")]
    Gelu,
    /// `x * Phi(x)` by the tanh approximation (Hendrycks and Gimpel, arXiv:1606.08415).
    #[doc(alias = "gelu_approx")]
    GeluTanh,
    /// `max(x, 0)`
    #[doc(alias = "ReLU")]
    Relu,
    /// `max(x, 0)^2`
    #[doc(alias = "ReLU2")]
    #[doc(alias = "relu2")]
    ReluSquared,
    /// `x * sigmoid(1.702 * x)`
    #[doc(alias = "gelu_fast_approx")]
    GeluSigmoid,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// `min(max(x, 0), 6)`
    #[doc(alias = "ReLU6")]
    Relu6,
    /// `max(slope * x, x)`, with this slope.
    #[doc(alias = "LeakyReLU")]
    LeakyRelu(f32),
    /// `x` above 0, and `alpha * (exp(x) - 1)` below, with this alpha.
    #[doc(alias = "ELU")]
    Elu(f32),
    /// `max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)`, with this alpha.
    #[doc(alias = "CELU")]
    Celu(f32),
    /// `1.0507 * elu(x)` with an alpha of 1.67326.
    #[doc(alias = "SELU")]
    Selu,
    /// `ln(1 + exp(x))`
    Softplus,
    /// `x / (1 + |x|)`
    Softsign,
    /// `x - limit` above this limit, `x + limit` below `-limit`, and 0 between.
    Softshrink(f32),
    /// `x` where `|x|` is above this limit, and 0 elsewhere.
    HardShrink(f32),
    /// `min(max(x, -1), 1)`
    HardTanh,
    /// `x * min(max(x + 3, 0), 6) / 6`
    Hardswish,
    /// `-ln(1 + exp(-x))`
    LogSigmoid,
    /// `x * tanh(softplus(x))`
    Mish,
    /// 1 where `x` is at least this threshold, and 0 elsewhere, as I32.
    Step(f32),
    /// `exp(x) / sum(exp(x))` along the last axis.
    Softmax,
    /// `ln(softmax(x))` along the last axis.
    LogSoftmax,
    /// `softmax(-x)` along the last axis.
    Softmin,
    /// `a * sigmoid(b)` of the halves of the last axis: `[.., 2 n] -> [.., n]`.
    #[doc(alias = "GLU")]
    Glu,
}

/// Activations have no parameters.
impl Module for Activation {
    fn visit(&self, _path: &mut Path, _v: &mut dyn Visit) -> Result<()> {
        Ok(())
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)
    }

    crate::known_type!();
}

impl Activation {
    const NAMES: [(&'static str, Activation); 8] = [
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("gelu_new", Activation::GeluTanh),
        ("gelu_fast", Activation::GeluTanh),
        ("relu", Activation::Relu),
        ("relu2", Activation::ReluSquared),
    ];

    /// The activation of this name, as `hidden_act` of config.json gives it.
    ///
    /// # Errors
    /// The name is unknown; the message lists the known names.
    pub fn parse(name: &str) -> Result<Self> {
        Self::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|&(_, activation)| activation)
            .ok_or_else(|| {
                let known: Vec<_> = Self::NAMES.iter().map(|(known, _)| *known).collect();
                Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "activation {name:?} is unknown; known: {}",
                        known.join(", ")
                    ),
                )
            })
    }

    /// The gate of the fused operations that applies this activation, if there is one.
    pub(crate) fn gate(self) -> Option<fast::Gate> {
        match self {
            Self::Silu => Some(fast::Gate::Silu),
            Self::GeluTanh => Some(fast::Gate::GeluTanh),
            _ => None,
        }
    }

    /// `self(gate) * up`: the gate of an MLP. `[..] -> [..]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn gated(self, gate: &Array, up: &Array) -> Result<Array> {
        match self.gate() {
            Some(kind) => fast::gated(kind, gate, up),
            None => self.forward(gate)?.multiply(up),
        }
    }

    /// [`forward`](Self::forward) in one operation where the back end has one for 16 bits. Then the result is rounded
    /// once.
    ///
    /// # Errors
    /// The same as those of [`forward`](Self::forward).
    pub(crate) fn at_once(self, x: &Array) -> Result<Array> {
        if ![DType::BF16, DType::F16].contains(&x.dtype()) {
            return self.forward(x);
        }
        match self.gate() {
            Some(gate) if fast::form(fast::Op::Gated)? != fast::Form::Plain => {
                let one = Array::scalar(1.0f32)?.astype(x.dtype())?;
                fast::gated(gate, x, &one.broadcast_to(x.shape())?)
            }
            None if self == Self::Gelu => fast::gelu(x),
            _ => self.forward(x),
        }
    }

    /// `[..] -> [..]`; [`Glu`](Self::Glu) halves the last axis.
    ///
    /// # Errors
    /// MLX refuses the dtype, or the last axis of the input of [`Glu`](Self::Glu) is odd.
    pub fn forward(self, x: &Array) -> Result<Array> {
        match self {
            Self::Silu => x.silu(),
            Self::Gelu => x.gelu(),
            Self::GeluTanh => {
                let cubic = x.multiply(x)?.multiply(x)?.multiply(0.044_715)?;
                let inner = x
                    .add(cubic)?
                    .multiply((2.0 / std::f32::consts::PI).sqrt())?;
                x.multiply(inner.tanh()?.add(1.0)?.multiply(0.5)?)
            }
            Self::Relu => x.relu(),
            Self::ReluSquared => x.maximum(0.0)?.square(),
            Self::GeluSigmoid => x.multiply(x.multiply(1.702)?.sigmoid()?),
            Self::Sigmoid => x.sigmoid(),
            Self::Tanh => x.tanh(),
            Self::Relu6 => hard_tanh_with(x, 0.0, 6.0),
            Self::LeakyRelu(slope) => leaky_relu_with(x, slope),
            Self::Elu(alpha) => elu_with(x, alpha),
            Self::Celu(alpha) => celu_with(x, alpha),
            Self::Selu => elu_with(x, 1.67326)?.multiply(1.0507),
            Self::Softplus => x.logaddexp(0.0),
            Self::Softsign => x.divide(x.abs()?.add(1.0)?),
            Self::Softshrink(limit) => softshrink_with(x, limit),
            Self::HardShrink(limit) => hard_shrink_with(x, limit),
            Self::HardTanh => hard_tanh_with(x, -1.0, 1.0),
            Self::Hardswish => {
                let gate = hard_tanh_with(&x.add(3.0)?, 0.0, 6.0)?;
                x.multiply(gate)?.divide(6.0)
            }
            Self::LogSigmoid => x.negative()?.logaddexp(0.0)?.negative(),
            Self::Mish => x.multiply(x.logaddexp(0.0)?.tanh()?),
            Self::Step(threshold) => step_with(x, threshold),
            Self::Softmax => softmax_with(x, -1),
            Self::LogSoftmax => log_softmax_with(x, -1),
            Self::Softmin => softmin_with(x, -1),
            Self::Glu => glu_with(x, -1),
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES
            .iter()
            .find(|(_, activation)| activation == self);
        match name {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{self:?}"),
        }
    }
}
