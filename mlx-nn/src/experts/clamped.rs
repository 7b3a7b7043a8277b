//! Gates whose inputs are bounded.

use mlx_core::{Array, Result};

use crate::activation::Activation;

/// The gate `a * (up + shift)`, where `|up| <= limit`. By default `a = gate * sigmoid(alpha * gate)`
/// with `gate <= limit` (gpt-oss, arXiv:2508.10925); with `bounds_result` the bound is that of `a`
/// instead of that of `gate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClampedGate {
    /// The factor in the sigmoid.
    pub alpha: f32,
    /// The upper bound of the gate, and of the absolute value of `up`.
    pub limit: f32,
    /// The number that is added to `up`.
    pub shift: f32,
    /// Whether the bound is one of the activation's result (Step 3.5), not of its input.
    pub bounds_result: bool,
    /// The function of the bounded gate in place of `gate * sigmoid(alpha * gate)`.
    pub activation: Option<Activation>,
}

impl ClampedGate {
    /// `[..] -> [..]`
    pub(crate) fn gated(self, gate: &Array, up: &Array) -> Result<Array> {
        let gate = match self.bounds_result {
            true => gate.clone(),
            false => gate.minimum(self.limit)?,
        };
        let mut up = up.maximum(-self.limit)?.minimum(self.limit)?;
        if self.shift != 0.0 {
            up = up.add(self.shift)?;
        }
        let mut opened = match self.activation {
            Some(activation) => activation.forward(&gate)?,
            None if self.alpha == 1.0 => gate.multiply(gate.sigmoid()?)?,
            None => gate.multiply(gate.multiply(self.alpha)?.sigmoid()?)?,
        };
        if self.bounds_result {
            opened = opened.minimum(self.limit)?;
        }
        opened.multiply(up)
    }
}
