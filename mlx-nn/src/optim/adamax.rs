//! The `adamax` method.

use mlx_core::{Array, Result};
use serde::{Deserialize, Serialize};

use super::{Update, check_range};

/// Adamax (Kingma and Ba, arXiv:1412.6980), without bias correction, as MLX has it:
/// `m = beta1 * m + (1 - beta1) * g`, `v = max(beta2 * v, |g|)`, `w -= rate * m / (v + eps)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adamax {
    /// The decay of the mean of the gradients, and that of their largest magnitude; in [0, 1).
    pub betas: [f64; 2],
    /// Added to the divisor.
    pub eps: f64,
}

impl Default for Adamax {
    fn default() -> Self {
        Self {
            betas: [0.9, 0.999],
            eps: 1e-8,
        }
    }
}

impl Adamax {
    pub(super) fn check(&self) -> Result<()> {
        check_range("betas[0]", self.betas[0], 0.0, 1.0)?;
        check_range("betas[1]", self.betas[1], 0.0, 1.0)?;
        check_range("eps", self.eps, 0.0, f64::INFINITY)
    }

    pub(super) fn update(&self, mut update: Update<'_>) -> Result<Array> {
        let [beta1, beta2] = self.betas;
        let grad = update.grad.clone();
        let m = update.average("m", beta1, &grad)?;
        let old = update.remembered("v", grad.shape())?;
        let v = old.multiply(beta2)?.maximum(grad.abs()?)?;
        update.state.insert("v", v.clone());
        let step = m.multiply(update.rate)?.divide(v.add(self.eps)?)?;
        update.param.subtract(step)
    }
}
