//! [`Xielu`]: an activation with learned slopes.

use mlx_core::{Array, DType, Result};

use crate::init::Initial;
use crate::module::Param;

/// xIELU (arXiv:2411.13010): `p x^2 + beta x` above 0, `n (exp(min(x, eps)) - 1 - x) + beta x` below. `p` is the
/// softplus of `alpha_p`; `n` is `beta` plus the softplus of `alpha_n`.
#[derive(Clone, Debug)]
pub struct Xielu {
    alpha_p: Param,
    alpha_n: Param,
    beta: Param,
    eps: Param,
}

crate::module!(Xielu {
    alpha_p,
    alpha_n,
    beta,
    eps
});

impl Xielu {
    /// An activation without values. `shape` is the shape of each slope in files, with one element.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(shape: &[i32]) -> Result<Self> {
        // Both slopes start at 0.8.
        let slope = |value: f32| Param::starting(shape, Initial::Constant(value.exp_m1().ln()));
        Ok(Self {
            alpha_p: slope(0.8)?,
            alpha_n: slope(0.3)?,
            beta: Param::starting(&[], Initial::Constant(0.5))?,
            eps: Param::starting(&[], Initial::Constant(-1e-6))?,
        })
    }

    /// `[..] -> [..]`; slopes are computed in F32.
    ///
    /// # Errors
    /// MLX refuses the dtype.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let dtype = x.dtype();
        let number = |param: &Param| param.get()?.astype(DType::F32);
        let softplus = |alpha: &Param| number(alpha)?.logaddexp(0.0);
        let (beta, eps) = (number(&self.beta)?, number(&self.eps)?.astype(dtype)?);
        let p = softplus(&self.alpha_p)?.astype(dtype)?;
        let n = softplus(&self.alpha_n)?.add(&beta)?.astype(dtype)?;
        let linear = x.multiply(beta.astype(dtype)?)?;
        let above = x.square()?.multiply(p)?;
        let below = x.minimum(eps)?.expm1()?.subtract(x)?.multiply(n)?;
        x.greater(0.0)?.select(&above, &below)?.add(&linear)
    }
}
