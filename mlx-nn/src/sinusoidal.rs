//! [`SinusoidalPositionalEncoding`]: positions as sines and cosines.

use std::f64::consts::PI;

use mlx_core::ops::create::arange;
use mlx_core::{Array, DType, Error, ErrorKind, Result, ops::concat};

use crate::layer::layer;

/// Sines and cosines of a position at frequencies between `min_freq` and `max_freq` in a geometric
/// series (Vaswani et al., arXiv:1706.03762): `[..] -> [.., dims]`.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::SinusoidalPositionalEncoding;
///
/// # fn main() -> Result<()> {
/// let encoding = SinusoidalPositionalEncoding::new(8)?;
/// let positions = Array::from_slice(&[0.0f32, 1.0, 2.0], &[3])?;
/// assert_eq!(encoding.forward(&positions)?.shape(), [3, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SinusoidalPositionalEncoding {
    dims: i32,
    min_freq: f64,
    max_freq: f64,
    scale: f64,
    cos_first: bool,
    full_turns: bool,
}

crate::module!(SinusoidalPositionalEncoding {} plain { dims, min_freq, max_freq, scale, cos_first, full_turns });
layer!(SinusoidalPositionalEncoding;);

impl SinusoidalPositionalEncoding {
    /// An encoding in `dims` numbers, with frequencies from 0.0001 to 1 radians per position,
    /// multiplied by `sqrt(2 / dims)`.
    ///
    /// # Errors
    /// `dims` is not positive and even.
    pub fn new(dims: i32) -> Result<Self> {
        if dims <= 0 || dims % 2 != 0 {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("positional encoding: dims must be positive and even, given {dims}"),
            ));
        }
        Ok(Self {
            dims,
            min_freq: 1e-4,
            max_freq: 1.0,
            scale: (2.0 / f64::from(dims)).sqrt(),
            cos_first: false,
            full_turns: false,
        })
    }

    /// The lowest and the highest frequency, both above 0. Default: 0.0001, 1.
    ///
    /// # Errors
    /// A frequency is not a finite number above 0.
    pub fn frequencies(mut self, min_freq: f64, max_freq: f64) -> Result<Self> {
        for frequency in [min_freq, max_freq] {
            if !(frequency.is_finite() && frequency > 0.0) {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "positional encoding: a frequency must be a number above 0, given {frequency}"
                    ),
                ));
            }
        }
        (self.min_freq, self.max_freq) = (min_freq, max_freq);
        Ok(self)
    }

    /// The factor of the result. Default: `sqrt(2 / dims)`.
    #[must_use]
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    /// Whether cosines come before sines. Default: false.
    #[must_use]
    pub fn cos_first(mut self, cos_first: bool) -> Self {
        self.cos_first = cos_first;
        self
    }

    /// Whether frequencies are in turns per position, not in radians. Default: false.
    #[must_use]
    pub fn full_turns(mut self, full_turns: bool) -> Self {
        self.full_turns = full_turns;
        self
    }

    /// `[..] -> [.., dims]`
    ///
    /// # Errors
    /// MLX refuses the dtype.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let y = x.expand_dims(-1)?.multiply(&self.sigmas()?)?;
        let (sine, cosine) = (y.sin()?, y.cos()?);
        let parts = if self.cos_first {
            [cosine, sine]
        } else {
            [sine, cosine]
        };
        let y = concat(&parts, -1)?;
        if self.scale == 1.0 {
            Ok(y)
        } else {
            y.multiply(self.scale)
        }
    }

    /// The frequencies, highest first: F32 `[dims / 2]`.
    fn sigmas(&self) -> Result<Array> {
        let half = self.dims / 2;
        let one_to_zero = if half == 1 {
            Array::from_slice(&[1.0f32], &[1])?
        } else {
            let steps = arange(0.0, f64::from(half), 1.0, DType::F32)?;
            let parts = steps.divide(f64::from(half - 1))?;
            Array::scalar(1.0f32)?.subtract(parts)?
        };
        let (least, most) = (self.min_freq.ln(), self.max_freq.ln());
        let sigmas = one_to_zero.multiply(most - least)?.add(least)?.exp()?;
        if self.full_turns {
            sigmas.multiply(2.0 * PI)
        } else {
            Ok(sigmas)
        }
    }
}
