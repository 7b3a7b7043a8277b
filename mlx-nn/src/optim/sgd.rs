//! The `sgd` method.

use mlx_core::{Array, Result};
use serde::{Deserialize, Serialize};

use super::{Update, check_range};

/// `w -= rate * b`, where `b = momentum * b + (1 - dampening) * g` and `g` is the gradient with
/// `weight_decay * w` added; with Nesterov momentum, `w -= rate * (g + momentum * b)`.
///
/// At the first step `b = g`, whatever the dampening, as in PyTorch's `SGD`, unless
/// [`zero_start`](Self::zero_start) is set.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::{Linear, Module, Sgd, value_and_grad};
///
/// # fn main() -> Result<()> {
/// let mut layer = Linear::new(2, 1, false)?;
/// let before = layer.parameters()["weight"].clone();
/// let mut optimizer = Sgd::new(0.1);
/// let (_, grads) = value_and_grad(&mut layer, |layer| layer.forward(&array![[1.0, 2.0]])?.sum_all())?;
/// optimizer.update(&mut layer, &grads)?;
/// let expected = (before - array![[0.1, 0.2]])?;
/// assert!(layer.parameters()["weight"].allclose(&expected)?.item::<bool>()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[doc(alias = "SGD")]
pub struct Sgd {
    /// The factor of the last `b` in the next one; in [0, 1).
    pub momentum: f64,
    /// The part of the gradient that is left out of `b`; in [0, 1).
    pub dampening: f64,
    /// Whether the step uses Nesterov momentum.
    pub nesterov: bool,
    /// The factor of the parameter that is added to the gradient.
    pub weight_decay: f64,
    /// Whether the momentum starts at zero, so that the dampening shortens the first step too, as
    /// in MLX's `SGD`.
    pub zero_start: bool,
}

impl Sgd {
    pub(super) fn check(&self) -> Result<()> {
        check_range("momentum", self.momentum, 0.0, 1.0)?;
        check_range("dampening", self.dampening, 0.0, 1.0)?;
        check_range("weight_decay", self.weight_decay, 0.0, f64::INFINITY)
    }

    pub(super) fn update(&self, update: Update<'_>) -> Result<Array> {
        let Update {
            rate,
            param,
            mut grad,
            state,
            ..
        } = update;
        if self.weight_decay != 0.0 {
            grad = grad.add(param.multiply(self.weight_decay)?)?;
        }
        let mut change = grad.clone();
        if self.momentum != 0.0 {
            let momentum = match state.get("momentum") {
                Some(old) => old
                    .multiply(self.momentum)?
                    .add(grad.multiply(1.0 - self.dampening)?)?,
                None if self.zero_start => grad.multiply(1.0 - self.dampening)?,
                None => grad.clone(),
            };
            state.insert("momentum", momentum.clone());
            change = if self.nesterov {
                grad.add(momentum.multiply(self.momentum)?)?
            } else {
                momentum
            };
        }
        param.subtract(change.multiply(rate)?)
    }
}
