//! [`PRelu`]: a leaky ReLU with a trained slope.

use mlx_core::ops::create::full;
use mlx_core::{Array, DType, Result};

use super::prelu;
use crate::layer::layer;
use crate::module::Param;
use crate::sizes::check_positive;

/// `max(x, 0) + weight * min(x, 0)`, with one weight, or one weight for each feature of the last
/// axis (He et al., arXiv:1502.01852).
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::PRelu;
///
/// # fn main() -> Result<()> {
/// let x = Array::from_slice(&[-2.0f32, 2.0], &[2])?;
/// assert_eq!(PRelu::new()?.forward(&x)?.to_vec::<f32>()?, [-0.5, 2.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "PReLU")]
pub struct PRelu {
    weight: Param,
}

crate::module!(PRelu { weight });
layer!(PRelu;);

impl PRelu {
    /// One weight, which starts at 0.25.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> Result<Self> {
        Self::with(1, 0.25)
    }

    /// `weights` weights, all `value` at first.
    ///
    /// # Errors
    /// `weights` is below 1.
    pub fn with(weights: i32, value: f32) -> Result<Self> {
        check_positive("prelu", "weights", &[weights])?;
        let weight = Param::new(full(&[weights], value, DType::F32)?);
        Ok(Self { weight })
    }

    /// `[..] -> [..]`
    ///
    /// # Errors
    /// There are several weights, and their number is not the size of the last axis.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        prelu(x, self.weight.value())
    }
}
