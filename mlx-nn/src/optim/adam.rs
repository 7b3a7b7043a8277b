//! The `adam` method.

use mlx_core::{Array, Result};
use serde::{Deserialize, Serialize};

use super::{Update, check_range};

/// Adam (Kingma and Ba, arXiv:1412.6980).
///
/// `m = beta1 * m + (1 - beta1) * g`, `v = beta2 * v + (1 - beta2) * g²`, then, with bias
/// correction, `w -= rate * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)`: PyTorch's formula.
///
/// Without bias correction `w -= rate * m / (sqrt(v) + eps)`: the default of MLX's own optimisers.
/// The moments start at zero, so the first step is then `(1 - beta1) / sqrt(1 - beta2)` times as
/// long as with it: 3.2 times with the usual betas.
///
/// go-mlx's AdamW always corrects: `w = w * (1 - rate * weight_decay) - rate * m' / (sqrt(v') +
/// eps)` with `m' = m / (1 - beta1^t)` and `v' = v / (1 - beta2^t)`, the formula of
/// [`Method::AdamW`](super::Method::AdamW) with bias correction. In go-mlx the moments have the
/// parameter's dtype, and the default decay is 0.01. Here the moments are F32, and the default
/// decay of this struct is 0.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::{Adam, AdamW, Linear, value_and_grad};
///
/// # fn main() -> Result<()> {
/// let mut layer = Linear::new(2, 1, true)?;
/// let mut optimizer = Adam::new(0.1);
/// let x = array![[1.0, 2.0]];
/// let (_loss, grads) = value_and_grad(&mut layer, |layer| layer.forward(&x)?.square()?.sum_all())?;
/// optimizer.update(&mut layer, &grads)?;
/// // AdamW with weight decay is a type of its own.
/// let _other = AdamW::new(1e-3).weight_decay(0.01).betas([0.9, 0.95]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adam {
    /// The decay of the mean of the gradients, and that of the mean of their squares; in [0, 1).
    pub betas: [f64; 2],
    /// Added to the divisor, so that the quotient stays finite.
    pub eps: f64,
    /// AdamW: `w -= rate * weight_decay * w` first; Adam: `g += weight_decay * w`.
    pub weight_decay: f64,
    /// Whether the moments are divided by `1 - beta^t`, which corrects their start at zero.
    pub bias_correction: bool,
}

impl Default for Adam {
    fn default() -> Self {
        Self {
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.0,
            bias_correction: true,
        }
    }
}

impl Adam {
    pub(super) fn check(&self) -> Result<()> {
        check_range("betas[0]", self.betas[0], 0.0, 1.0)?;
        check_range("betas[1]", self.betas[1], 0.0, 1.0)?;
        check_range("eps", self.eps, 0.0, f64::INFINITY)?;
        check_range("weight_decay", self.weight_decay, 0.0, f64::INFINITY)
    }

    pub(super) fn update(&self, mut update: Update<'_>, decoupled: bool) -> Result<Array> {
        let [beta1, beta2] = self.betas;
        let rate = update.rate;
        let mut param = update.param.clone();
        let mut grad = update.grad.clone();
        if self.weight_decay != 0.0 {
            if decoupled {
                param = param.multiply(1.0 - rate * self.weight_decay)?;
            } else {
                grad = grad.add(param.multiply(self.weight_decay)?)?;
            }
        }
        let m = update.average("m", beta1, &grad)?;
        let v = update.average("v", beta2, &grad.square()?)?;
        let power = update.step.min(i32::MAX as u64) as i32;
        let (c1, c2) = if self.bias_correction {
            (1.0 - beta1.powi(power), 1.0 - beta2.powi(power))
        } else {
            (1.0, 1.0)
        };
        let mut root = v.sqrt()?;
        if self.bias_correction {
            root = root.divide(c2.sqrt())?;
        }
        let denominator = root.add(self.eps)?;
        param.subtract(m.multiply(rate / c1)?.divide(denominator)?)
    }
}
