//! The `adafactor` method.

use mlx_core::{Array, Result};
use serde::{Deserialize, Serialize};

use super::{Update, check_range};

/// Adafactor (Shazeer and Stern, arXiv:1804.04235), as PyTorch has it.
///
/// A matrix's second moments are kept as the means of its rows and of its columns, their decay
/// follows `1 - t^decay`, the rate of step t is `min(rate, 1 / sqrt(t))` times the root mean square
/// of the parameter (at least `eps[1]`), and no update has a larger root mean square than `clip`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adafactor {
    /// The exponent of the moments' decay; below 0.
    #[serde(alias = "decay_rate")]
    pub decay: f64,
    /// The least root of a second moment, and the least size of a parameter that rates scale with.
    pub eps: [f64; 2],
    /// The largest root mean square of an update; above 0.
    #[serde(alias = "clip_threshold")]
    pub clip: f64,
    /// Every step subtracts this times the rate times the parameter.
    pub weight_decay: f64,
}

impl Default for Adafactor {
    fn default() -> Self {
        Self {
            decay: -0.8,
            eps: [f64::from(f32::EPSILON), 1e-3],
            clip: 1.0,
            weight_decay: 0.0,
        }
    }
}

impl Adafactor {
    pub(super) fn check(&self) -> Result<()> {
        check_range("decay", self.decay, f64::MIN, 0.0)?;
        check_range("eps[0]", self.eps[0], f64::MIN_POSITIVE, f64::INFINITY)?;
        check_range("eps[1]", self.eps[1], 0.0, f64::INFINITY)?;
        check_range("clip", self.clip, f64::MIN_POSITIVE, f64::INFINITY)?;
        check_range("weight_decay", self.weight_decay, 0.0, f64::INFINITY)
    }

    pub(super) fn update(&self, mut update: Update<'_>) -> Result<Array> {
        let [eps1, eps2] = self.eps;
        let (param, grad) = (update.param.clone(), update.grad.clone());
        let t = update.step as f64;
        let beta = 1.0 - t.powf(self.decay);
        let relative = update.rate.min(t.sqrt().recip());
        let rate = root_mean_square(&param)?
            .maximum(eps2)?
            .multiply(relative)?;
        let squares = grad.square()?;
        let moments = if grad.ndim() > 1 {
            let row = update.average("row", beta, &squares.mean(-1, true)?)?;
            let column = update.average("column", beta, &squares.mean(-2, true)?)?;
            let mean = row.mean(-2, true)?.maximum(eps1)?;
            row.multiply(column)?.divide(mean)?
        } else {
            update.average("v", beta, &squares)?
        };
        let step = moments.maximum(eps1 * eps1)?.rsqrt()?.multiply(&grad)?;
        let longest = root_mean_square(&step)?.divide(self.clip)?.maximum(1.0)?;
        param
            .multiply(1.0 - update.rate * self.weight_decay)?
            .subtract(step.multiply(rate.divide(longest)?)?)
    }
}

fn root_mean_square(array: &Array) -> Result<Array> {
    array.square()?.mean(.., false)?.sqrt()
}
