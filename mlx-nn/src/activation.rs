//! Activation functions, by the names config.json uses.

use std::fmt;

use mlx_core::{Array, Error, ErrorKind, Result, fast};

mod xielu;

pub use xielu::Xielu;

/// An elementwise activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// `x * Phi(x)` with the exact normal distribution function.
    Gelu,
    /// `x * Phi(x)` by the tanh approximation (Hendrycks and Gimpel, arXiv:1606.08415).
    GeluTanh,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)^2`
    ReluSquared,
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

    /// The activation that `hidden_act` names.
    ///
    /// # Errors
    /// An unknown name; the message lists the known ones.
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

    /// The fused gate that this activation makes, if there is one.
    pub(crate) fn gate(self) -> Option<fast::Gate> {
        match self {
            Self::Silu => Some(fast::Gate::Silu),
            Self::GeluTanh => Some(fast::Gate::GeluTanh),
            Self::Gelu | Self::Relu | Self::ReluSquared => None,
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

    /// `[..] -> [..]`
    ///
    /// # Errors
    /// MLX refuses the dtype.
    pub fn forward(self, x: &Array) -> Result<Array> {
        match self {
            Self::Silu => x.multiply(x.sigmoid()?),
            Self::Gelu => {
                let phi = x
                    .multiply(std::f32::consts::FRAC_1_SQRT_2)?
                    .erf()?
                    .add(1.0)?
                    .multiply(0.5)?;
                x.multiply(phi)
            }
            Self::GeluTanh => {
                let cubic = x.multiply(x)?.multiply(x)?.multiply(0.044_715)?;
                let inner = x
                    .add(cubic)?
                    .multiply((2.0 / std::f32::consts::PI).sqrt())?;
                x.multiply(inner.tanh()?.add(1.0)?.multiply(0.5)?)
            }
            Self::Relu => x.maximum(0.0),
            Self::ReluSquared => x.maximum(0.0)?.square(),
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES
            .iter()
            .find(|(_, activation)| activation == self);
        f.write_str(name.expect("every activation has a name").0)
    }
}
