//! Methods that divide by a root of squared gradients, and keep no mean of the gradients: RMSprop, Adagrad, AdaDelta.

use mlx_core::{Array, Result};
use serde::{Deserialize, Serialize};

use super::{Update, check_range};

/// RMSprop (Tieleman and Hinton, 2012, lecture 6.5 of "Neural networks for machine learning"):
/// `v = alpha * v + (1 - alpha) * g²`, `w -= rate * g / (sqrt(v) + eps)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[doc(alias = "RMSprop")]
pub struct RmsProp {
    /// The decay of the mean of the squares; in [0, 1).
    pub alpha: f64,
    /// Added to the divisor; above 0.
    pub eps: f64,
}

impl Default for RmsProp {
    fn default() -> Self {
        Self {
            alpha: 0.99,
            eps: 1e-8,
        }
    }
}

impl RmsProp {
    pub(super) fn check(&self) -> Result<()> {
        check_range("alpha", self.alpha, 0.0, 1.0)?;
        check_range("eps", self.eps, f64::MIN_POSITIVE, f64::INFINITY)
    }

    pub(super) fn update(&self, mut update: Update<'_>) -> Result<Array> {
        let grad = update.grad.clone();
        let v = update.average("v", self.alpha, &grad.square()?)?;
        divided(&update, &v, self.eps)
    }
}

/// Adagrad (Duchi, Hazan and Singer, JMLR 2011): `v += g²`, `w -= rate * g / (sqrt(v) + eps)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adagrad {
    /// Added to the divisor; above 0.
    pub eps: f64,
}

impl Default for Adagrad {
    fn default() -> Self {
        Self { eps: 1e-8 }
    }
}

impl Adagrad {
    pub(super) fn check(&self) -> Result<()> {
        check_range("eps", self.eps, f64::MIN_POSITIVE, f64::INFINITY)
    }

    pub(super) fn update(&self, update: Update<'_>) -> Result<Array> {
        let old = update.remembered("v", update.grad.shape())?;
        let v = old.add(update.grad.square()?)?;
        update.state.insert("v", v.clone());
        divided(&update, &v, self.eps)
    }
}

/// `w - rate * g / (sqrt(v) + eps)`
fn divided(update: &Update<'_>, v: &Array, eps: f64) -> Result<Array> {
    let step = update.grad.multiply(update.rate)?;
    update.param.subtract(step.divide(v.sqrt()?.add(eps)?)?)
}

/// AdaDelta (Zeiler, arXiv:1212.5701) with a rate:
/// `v = rho * v + (1 - rho) * g²`, `d = sqrt(u + eps) / sqrt(v + eps) * g`, `u = rho * u + (1 - rho) * d²`,
/// `w -= rate * d`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaDelta {
    /// The decay of the means of the squares; in [0, 1).
    pub rho: f64,
    /// Added under both roots; above 0.
    pub eps: f64,
}

impl Default for AdaDelta {
    fn default() -> Self {
        Self {
            rho: 0.9,
            eps: 1e-6,
        }
    }
}

impl AdaDelta {
    pub(super) fn check(&self) -> Result<()> {
        check_range("rho", self.rho, 0.0, 1.0)?;
        check_range("eps", self.eps, f64::MIN_POSITIVE, f64::INFINITY)
    }

    pub(super) fn update(&self, mut update: Update<'_>) -> Result<Array> {
        let grad = update.grad.clone();
        let u = update.remembered("u", grad.shape())?;
        let v = update.average("v", self.rho, &grad.square()?)?;
        let root = |array: &Array| array.add(self.eps)?.sqrt();
        let change = root(&u)?.divide(root(&v)?)?.multiply(&grad)?;
        update.average("u", self.rho, &change.square()?)?;
        update.param.subtract(change.multiply(update.rate)?)
    }
}
