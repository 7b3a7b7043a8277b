//! The `lion` method.

use mlx_core::{Array, Result};
use serde::{Deserialize, Serialize};

use super::{Update, check_range};

/// Lion (Chen et al., arXiv:2302.06675):
/// `w -= rate * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * w)`, then
/// `m = beta2 * m + (1 - beta2) * g`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lion {
    /// The weight of the momentum in a step, and the decay of the momentum; in [0, 1).
    pub betas: [f64; 2],
    /// Every step subtracts this times the rate times the parameter.
    pub weight_decay: f64,
}

impl Default for Lion {
    fn default() -> Self {
        Self {
            betas: [0.9, 0.99],
            weight_decay: 0.0,
        }
    }
}

impl Lion {
    pub(super) fn check(&self) -> Result<()> {
        check_range("betas[0]", self.betas[0], 0.0, 1.0)?;
        check_range("betas[1]", self.betas[1], 0.0, 1.0)?;
        check_range("weight_decay", self.weight_decay, 0.0, f64::INFINITY)
    }

    pub(super) fn update(&self, mut update: Update<'_>) -> Result<Array> {
        let [beta1, beta2] = self.betas;
        let (rate, grad) = (update.rate, update.grad.clone());
        let old = update.remembered("m", grad.shape())?;
        let direction = old.multiply(beta1)?.add(grad.multiply(1.0 - beta1)?)?;
        update.average("m", beta2, &grad)?;
        update
            .param
            .multiply(1.0 - rate * self.weight_decay)?
            .subtract(direction.sign()?.multiply(rate)?)
    }
}
