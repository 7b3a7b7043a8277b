//! [`BatchNorm`]: a norm over the examples of a batch.

use mlx_core::ops::create::{ones, zeros};
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use super::group::affine;
use super::scaled;
use crate::layer::layer;
use crate::module::Param;
use crate::sizes::{check_eps, check_positive, misshapen};
use crate::training::{Mode, update_state};

/// `weight * (x - mean) / sqrt(variance + eps) + bias` for each channel (Ioffe and Szegedy, arXiv:1502.03167):
/// `[B, C]`, `[B, L, C]` or `[B, H, W, C]`.
///
/// In training, mean and variance are those of the batch, and the running mean and variance move
/// towards them. The running ones are buffers, which [`value_and_grad`](crate::value_and_grad) and
/// [`with_state`](crate::training::with_state) write back. After
/// [`train(false)`](crate::Module::train) the running ones are used.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::{BatchNorm, Module, training::with_state};
///
/// # fn main() -> Result<()> {
/// let mut norm = BatchNorm::new(1)?;
/// let x = Array::from_slice(&[1.0f32, 3.0], &[2, 1])?;
/// let y = with_state(&mut norm, |norm| norm.forward(&x))?;
/// assert!((y.to_vec::<f32>()?[1] - 1.0).abs() < 1e-4);
/// norm.train(false)?;
/// // The running mean has moved a tenth of the way to 2, the running variance from 1 to 1.1.
/// assert!((norm.forward(&x)?.to_vec::<f32>()?[1] - 2.8 / 1.1f32.sqrt()).abs() < 1e-4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BatchNorm {
    weight: Option<Param>,
    bias: Option<Param>,
    running_mean: Option<Array>,
    running_var: Option<Array>,
    mode: Mode,
    dims: i32,
    eps: f32,
    momentum: f64,
}

crate::module!(BatchNorm { weight, bias, mode } state { running_mean, running_var } plain { dims, eps, momentum });
layer!(BatchNorm;);

impl BatchNorm {
    /// A norm of `dims` channels with weight, bias and running statistics; epsilon is 1e-5 and the momentum 0.1.
    ///
    /// # Errors
    /// `dims` is below 1.
    pub fn new(dims: i32) -> Result<Self> {
        check_positive("batch norm", "channels", &[dims])?;
        let (weight, bias) = affine(dims)?;
        Ok(Self {
            weight,
            bias,
            running_mean: Some(zeros(&[dims], DType::F32)?),
            running_var: Some(ones(&[dims], DType::F32)?),
            mode: Mode::default(),
            dims,
            eps: 1e-5,
            momentum: 0.1,
        })
    }

    /// Added to the variance; above 0. Default: 1e-5.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> Self {
        self.eps = eps;
        self
    }

    /// The factor by which the running statistics move towards those of a batch. Default: 0.1.
    #[must_use]
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.momentum = momentum;
        self
    }

    /// The norm without weight and bias.
    #[must_use]
    pub fn without_affine(mut self) -> Self {
        (self.weight, self.bias) = (None, None);
        self
    }

    /// The norm without running statistics: it always uses those of the batch.
    #[must_use]
    pub fn without_running_stats(mut self) -> Self {
        (self.running_mean, self.running_var) = (None, None);
        self
    }

    /// `[B, C]`, `[B, L, C]` or `[B, H, W, C]`, to the same shape.
    ///
    /// # Errors
    /// The shape does not fit; epsilon is not above 0; a batch in training has a single number for
    /// each channel; or no pass that keeps states is running ([`update_state`]).
    pub fn forward(&self, x: &Array) -> Result<Array> {
        check_eps("batch norm", self.eps)?;
        if !(2..=4).contains(&x.ndim()) || x.dim(-1)? != self.dims {
            let expected = format!("[B, {0}], [B, L, {0}] or [B, H, W, {0}]", self.dims);
            return Err(misshapen("batch norm", &expected, x.shape()));
        }
        let training = self.mode.is_training();
        if training && x.size() == self.dims as usize {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "batch norm: training needs more than one number for a channel, found {:?}",
                    x.shape()
                ),
            ));
        }
        let (mean, variance) = match (&self.running_mean, &self.running_var) {
            (Some(mean), Some(variance)) if !training => (mean.clone(), variance.clone()),
            (Some(running_mean), Some(running_var)) => {
                let (mean, variance) = statistics(x, 0)?;
                let (_, unbiased) = statistics(x, 1)?;
                update_state(running_mean, |old| self.moved(old, &mean))?;
                update_state(running_var, |old| self.moved(old, &unbiased))?;
                (mean, variance)
            }
            _ => statistics(x, 0)?,
        };
        let normed = x
            .subtract(mean)?
            .multiply(variance.add(self.eps)?.rsqrt()?)?;
        scaled(normed, &self.weight, &self.bias)
    }

    /// `(1 - momentum) * old + momentum * new`, in the dtype of `old`.
    fn moved(&self, old: &Array, new: &Array) -> Result<Array> {
        let sum = old
            .multiply(1.0 - self.momentum)?
            .add(new.multiply(self.momentum)?)?;
        sum.astype(old.dtype())
    }
}

/// Mean and variance of each channel.
fn statistics(x: &Array, ddof: i32) -> Result<(Array, Array)> {
    let axes: Vec<i32> = (0..x.ndim() as i32 - 1).collect();
    Ok((
        x.mean(&axes[..], false)?,
        x.var_with(&axes[..], false, ddof)?,
    ))
}
