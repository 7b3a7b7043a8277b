//! [`GroupNorm`] and [`InstanceNorm`]: norms over groups of channels, or single channels, of one example.

use mlx_core::ops::create::{ones, zeros};
use mlx_core::{Array, DType, Error, ErrorKind, Result, fast};

use super::scaled;
use crate::layer::layer;
use crate::module::Param;
use crate::sizes::{check_eps, check_positive, misshapen};

/// `weight * (x - mean) / sqrt(variance + eps) + bias`, with the mean and variance of each group of
/// channels over all positions of an example (Wu and He, arXiv:1803.08494):
/// `[B, .., C] -> [B, .., C]`.
///
/// As in MLX's Python, group `g` of `n` has the channels `c` with `c % n == g`, unless
/// [`pytorch_compatible`](Self::pytorch_compatible) gives each group neighbouring channels.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::ones};
/// use mlx_nn::GroupNorm;
///
/// # fn main() -> Result<()> {
/// let norm = GroupNorm::new(2, 8)?.pytorch_compatible(true);
/// assert_eq!(norm.forward(&ones(&[1, 4, 4, 8], DType::F32)?)?.shape(), [1, 4, 4, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct GroupNorm {
    weight: Option<Param>,
    bias: Option<Param>,
    groups: i32,
    dims: i32,
    eps: f32,
    neighbours: bool,
}

crate::module!(GroupNorm { weight, bias } plain { groups, dims, eps, neighbours });
layer!(GroupNorm;);

impl GroupNorm {
    /// A norm of `groups` groups of `dims` channels, with a weight of ones, a bias of zeros and an epsilon of 1e-5.
    ///
    /// # Errors
    /// `groups` or `dims` is below 1, or `groups` does not divide `dims`.
    pub fn new(groups: i32, dims: i32) -> Result<Self> {
        check_positive("group norm", "groups and channels", &[groups, dims])?;
        if dims % groups != 0 {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("group norm: {groups} groups do not divide {dims} channels"),
            ));
        }
        let (weight, bias) = affine(dims)?;
        Ok(Self {
            weight,
            bias,
            groups,
            dims,
            eps: 1e-5,
            neighbours: false,
        })
    }

    /// Added to the variance; above 0. Default: 1e-5.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> Self {
        self.eps = eps;
        self
    }

    /// The norm without weight and bias.
    #[must_use]
    pub fn without_affine(mut self) -> Self {
        (self.weight, self.bias) = (None, None);
        self
    }

    /// Groups are neighbouring channels, as PyTorch has them. Default: false.
    #[must_use]
    pub fn pytorch_compatible(mut self, neighbours: bool) -> Self {
        self.neighbours = neighbours;
        self
    }

    /// `[B, .., C] -> [B, .., C]`
    ///
    /// # Errors
    /// The shape does not fit, or epsilon is not above 0.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        check_eps("group norm", self.eps)?;
        let (groups, size) = (self.groups, self.dims / self.groups);
        if x.ndim() < 2 || x.dim(-1)? != self.dims {
            let expected = format!("[B, .., {}]", self.dims);
            return Err(misshapen("group norm", &expected, x.shape()));
        }
        let batch = x.dim(0)?;
        let positions = positions(x)?;
        let normed = if self.neighbours {
            let grouped = x
                .reshape(&[batch, positions, groups, size])?
                .transpose(&[0, 2, 1, 3])?
                .reshape(&[batch, groups, positions * size])?;
            fast::layer_norm(&grouped, None, None, self.eps)?
                .reshape(&[batch, groups, positions, size])?
                .transpose(&[0, 2, 1, 3])?
        } else {
            let grouped = x.reshape(&[batch, positions * size, groups])?;
            let mean = grouped.mean(1, true)?;
            let variance = grouped.var(1, true)?;
            grouped
                .subtract(mean)?
                .multiply(variance.add(self.eps)?.rsqrt()?)?
        };
        scaled(normed.reshape(x.shape())?, &self.weight, &self.bias)
    }
}

/// `weight * (x - mean) / sqrt(variance + eps) + bias`, with the mean and variance of each channel
/// of an example (Ulyanov et al., arXiv:1607.08022): `[B, .., C] -> [B, .., C]`, with at least one
/// dimension between `B` and `C`.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::ones};
/// use mlx_nn::InstanceNorm;
///
/// # fn main() -> Result<()> {
/// let norm = InstanceNorm::new(8)?.affine()?;
/// assert_eq!(norm.forward(&ones(&[1, 4, 4, 8], DType::F32)?)?.shape(), [1, 4, 4, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct InstanceNorm {
    weight: Option<Param>,
    bias: Option<Param>,
    dims: i32,
    eps: f32,
}

crate::module!(InstanceNorm { weight, bias } plain { dims, eps });
layer!(InstanceNorm;);

impl InstanceNorm {
    /// A norm of `dims` channels without weight and bias, with an epsilon of 1e-5.
    ///
    /// # Errors
    /// `dims` is below 1.
    pub fn new(dims: i32) -> Result<Self> {
        check_positive("instance norm", "channels", &[dims])?;
        Ok(Self {
            weight: None,
            bias: None,
            dims,
            eps: 1e-5,
        })
    }

    /// Added to the variance; above 0. Default: 1e-5.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> Self {
        self.eps = eps;
        self
    }

    /// The norm with a weight of ones and a bias of zeros.
    ///
    /// # Errors
    /// No memory.
    pub fn affine(mut self) -> Result<Self> {
        (self.weight, self.bias) = affine(self.dims)?;
        Ok(self)
    }

    /// `[B, .., C] -> [B, .., C]`
    ///
    /// # Errors
    /// The shape does not fit, or epsilon is not above 0.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        check_eps("instance norm", self.eps)?;
        if x.ndim() < 3 || x.dim(-1)? != self.dims {
            let expected = format!("[B, .., {}] of at least 3 dimensions", self.dims);
            return Err(misshapen("instance norm", &expected, x.shape()));
        }
        let batch = x.dim(0)?;
        let positions = positions(x)?;
        let channels = x.reshape(&[batch, positions, self.dims])?.swapaxes(1, 2)?;
        let normed = fast::layer_norm(&channels, None, None, self.eps)?.swapaxes(1, 2)?;
        scaled(normed.reshape(x.shape())?, &self.weight, &self.bias)
    }
}

/// The number of positions of an example: the product of the dimensions between the first and the
/// last. Refuses an example of more numbers than an axis can have.
fn positions(x: &Array) -> Result<i32> {
    let product = |sizes: &[i32]| {
        let mut sizes = sizes.iter();
        sizes.try_fold(1i32, |product, &size| product.checked_mul(size))
    };
    let (all, inner) = (&x.shape()[1..], &x.shape()[1..x.ndim() - 1]);
    product(all)
        .and_then(|_| product(inner))
        .ok_or_else(|| misshapen("norm", "with fewer numbers in an example", x.shape()))
}

/// A weight of ones and a bias of zeros.
pub(super) fn affine(dims: i32) -> Result<(Option<Param>, Option<Param>)> {
    let weight = Param::new(ones(&[dims], DType::F32)?);
    let bias = Param::new(zeros(&[dims], DType::F32)?);
    Ok((Some(weight), Some(bias)))
}
