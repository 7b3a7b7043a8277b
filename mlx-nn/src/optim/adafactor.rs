//! The `adafactor` method.

use mlx_core::{Array, Result};
use serde::{Deserialize, Serialize};

use super::{Form, Update, check_range};

/// Adafactor (Shazeer and Stern, arXiv:1804.04235).
///
/// A matrix's second moments are kept as the means of its rows and of its columns, their decay
/// follows `1 - t^decay`, the rate of step t is `min(rate, 1 / sqrt(t))` times the root mean square
/// of the parameter (at least `eps[1]`), and no update, before the rate multiplies it, has a larger
/// root mean square than `clip`.
///
/// MLX's [form](Form) adds `eps[0]` to the squared gradients, and multiplies the weight decay by
/// the scaled rate. In PyTorch's form `eps[0]` is the lower bound of the root of a moment, and the
/// weight decay is multiplied by the rate of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adafactor {
    /// The exponent of the moments' decay; below 0.
    #[serde(alias = "decay_rate")]
    pub decay: f64,
    /// The lower bound of the root of a second moment, and that of the root mean square that
    /// multiplies the rate.
    pub eps: [f64; 2],
    /// The largest root mean square of an update; above 0.
    #[serde(alias = "clip_threshold")]
    pub clip: f64,
    /// Every step subtracts this times the rate times the parameter.
    pub weight_decay: f64,
    /// The decay of a mean of the updates, which replaces the update; in [0, 1). `None`: no mean.
    #[serde(alias = "beta_1")]
    pub beta1: Option<f64>,
    /// Whether the rate is multiplied by the root mean square of the parameter.
    pub scale_parameter: bool,
    /// Whether the rate of step t is at most `1 / sqrt(t)`.
    pub relative_step: bool,
    /// The form, which determines the use of `eps[0]` and of the weight decay.
    pub form: Form,
}

impl Default for Adafactor {
    fn default() -> Self {
        Self {
            decay: -0.8,
            eps: [f64::from(f32::EPSILON), 1e-3],
            clip: 1.0,
            weight_decay: 0.0,
            beta1: None,
            scale_parameter: true,
            relative_step: true,
            form: Form::Pytorch,
        }
    }
}

impl Adafactor {
    pub(super) fn check(&self) -> Result<()> {
        check_range("decay", self.decay, f64::MIN, 0.0)?;
        check_range("eps[0]", self.eps[0], f64::MIN_POSITIVE, f64::INFINITY)?;
        check_range("eps[1]", self.eps[1], 0.0, f64::INFINITY)?;
        check_range("clip", self.clip, f64::MIN_POSITIVE, f64::INFINITY)?;
        check_range("beta1", self.beta1.unwrap_or(0.0), 0.0, 1.0)?;
        check_range("weight_decay", self.weight_decay, 0.0, f64::INFINITY)
    }

    pub(super) fn update(&self, mut update: Update<'_>) -> Result<Array> {
        let (param, grad) = (update.param.clone(), update.grad.clone());
        let t = update.step as f64;
        let beta = 1.0 - t.powf(self.decay);
        let relative = match self.relative_step {
            true => update.rate.min(t.sqrt().recip()),
            false => update.rate,
        };
        let rate = match self.scale_parameter {
            true => root_mean_square(&param)?.maximum(self.eps[1])?,
            false => Array::scalar(1.0f32)?,
        };
        let rate = rate.multiply(relative)?;
        let factor = match self.form {
            Form::Pytorch => self.inverse_root(&mut update, beta)?,
            Form::Mlx => self.inverse_root_of_shifted(&mut update, beta)?,
        };
        let step = factor.multiply(&grad)?;
        let longest = root_mean_square(&step)?.divide(self.clip)?.maximum(1.0)?;
        let mut step = step.multiply(rate.divide(longest)?)?;
        if let Some(beta1) = self.beta1 {
            step = update.average("m", beta1, &step)?;
        }
        let kept = match self.form {
            Form::Pytorch => param.multiply(1.0 - update.rate * self.weight_decay)?,
            Form::Mlx if self.weight_decay == 0.0 => param,
            Form::Mlx => param.subtract(param.multiply(rate.multiply(self.weight_decay)?)?)?,
        };
        kept.subtract(step)
    }

    /// `1 / sqrt(v)` of the second moments `v`, where `sqrt(v)` is at least `eps[0]`.
    fn inverse_root(&self, update: &mut Update<'_>, beta: f64) -> Result<Array> {
        let eps = self.eps[0];
        let squares = update.grad.square()?;
        let moments = if squares.ndim() > 1 {
            let row = update.average("row", beta, &squares.mean(-1, true)?)?;
            let column = update.average("column", beta, &squares.mean(-2, true)?)?;
            let mean = row.mean(-2, true)?.maximum(eps)?;
            row.multiply(column)?.divide(mean)?
        } else {
            update.average("v", beta, &squares)?
        };
        moments.maximum(eps * eps)?.rsqrt()
    }

    /// `1 / sqrt(v)` of the moments of `g² + eps[0]`. The roots of rows and of columns are computed
    /// separately, because a product of two moments can be 0 in F32.
    fn inverse_root_of_shifted(&self, update: &mut Update<'_>, beta: f64) -> Result<Array> {
        let squares = update.grad.square()?.add(self.eps[0])?;
        if squares.ndim() < 2 {
            return update.average("v", beta, &squares)?.rsqrt();
        }
        let row = update.average("row", beta, &squares.mean(-1, true)?)?;
        let column = update.average("column", beta, &squares.mean(-2, true)?)?;
        let row = row.divide(row.mean(-2, true)?)?.rsqrt()?;
        row.multiply(column.rsqrt()?)
    }
}

fn root_mean_square(array: &Array) -> Result<Array> {
    array.square()?.mean(.., false)?.sqrt()
}
