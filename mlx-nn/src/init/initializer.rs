//! [`Initializer`]: how arrays of a shape are drawn.

use mlx_core::ops::create::{eye_with, full};
use mlx_core::{Array, DType, Error, ErrorKind, Result, linalg, random};

use crate::module::Param;

/// The connections of a unit that a He initialiser counts. Its variance is `gain^2` divided by
/// their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fan {
    /// The inputs of a unit: the last axis times the axes between the first and the last.
    #[default]
    In,
    /// The outputs of a unit: the first axis times the axes between the first and the last.
    Out,
}

/// How arrays of a shape are drawn, in F32. The functions of this module, such as [`he_normal`],
/// make one with the defaults of MLX's Python.
///
/// ```
/// use mlx_core::{Result, random};
/// use mlx_nn::init::{self, Fan, Initializer};
///
/// # fn main() -> Result<()> {
/// random::seed(7);
/// let weight = init::glorot_uniform().draw(&[64, 32])?;
/// let most = weight.abs()?.max(.., false)?.item::<f32>()?;
/// assert!(most <= (6.0f32 / 96.0).sqrt());
/// let wide = Initializer::HeNormal { fan: Fan::Out, gain: 2.0 };
/// assert_eq!(wide.draw(&[64, 32])?.shape(), [64, 32]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    /// All elements are equal.
    Constant(f32),
    /// Normal.
    Normal {
        /// The mean.
        mean: f32,
        /// The standard deviation.
        std: f32,
    },
    /// Uniform in `[low, high)`.
    Uniform {
        /// The lower bound, included.
        low: f32,
        /// The upper bound, excluded.
        high: f32,
    },
    /// A square matrix of ones on the diagonal and zeros beside it.
    Identity,
    /// Normal with the standard deviation `gain * sqrt(2 / (fan_in + fan_out))` (Glorot and Bengio,
    /// 2010).
    GlorotNormal {
        /// The factor.
        gain: f64,
    },
    /// Uniform between `±gain * sqrt(6 / (fan_in + fan_out))` (Glorot and Bengio, 2010).
    GlorotUniform {
        /// The factor.
        gain: f64,
    },
    /// Normal with the standard deviation `gain / sqrt(fan)` (He et al., arXiv:1502.01852).
    HeNormal {
        /// The connections that are counted.
        fan: Fan,
        /// The factor.
        gain: f64,
    },
    /// Uniform between `±gain * sqrt(3 / fan)` (He et al., arXiv:1502.01852).
    HeUniform {
        /// The connections that are counted.
        fan: Fan,
        /// The factor.
        gain: f64,
    },
    /// A normal matrix with zeros at random places of each row (Martens, 2010).
    Sparse {
        /// The share of each row that is zero, rounded up; in [0, 1].
        sparsity: f64,
        /// The mean of the other elements.
        mean: f32,
        /// The standard deviation of the other elements.
        std: f32,
    },
    /// A matrix of orthogonal rows or columns, times `gain` (Saxe et al., arXiv:1312.6120).
    Orthogonal {
        /// The factor.
        gain: f64,
    },
}

/// All elements are `value`.
pub fn constant(value: f32) -> Initializer {
    Initializer::Constant(value)
}

/// Normal with this mean and standard deviation.
pub fn normal(mean: f32, std: f32) -> Initializer {
    Initializer::Normal { mean, std }
}

/// Uniform in `[low, high)`.
pub fn uniform(low: f32, high: f32) -> Initializer {
    Initializer::Uniform { low, high }
}

/// The identity matrix.
pub fn identity() -> Initializer {
    Initializer::Identity
}

/// [`Initializer::GlorotNormal`] with a gain of 1.
pub fn glorot_normal() -> Initializer {
    Initializer::GlorotNormal { gain: 1.0 }
}

/// [`Initializer::GlorotUniform`] with a gain of 1.
pub fn glorot_uniform() -> Initializer {
    Initializer::GlorotUniform { gain: 1.0 }
}

/// [`Initializer::HeNormal`] by the inputs, with a gain of 1.
pub fn he_normal() -> Initializer {
    let fan = Fan::In;
    Initializer::HeNormal { fan, gain: 1.0 }
}

/// [`Initializer::HeUniform`] by the inputs, with a gain of 1.
pub fn he_uniform() -> Initializer {
    let fan = Fan::In;
    Initializer::HeUniform { fan, gain: 1.0 }
}

/// [`Initializer::Sparse`] with a mean of 0 and a standard deviation of 1.
pub fn sparse(sparsity: f64) -> Initializer {
    let (mean, std) = (0.0, 1.0);
    Initializer::Sparse {
        sparsity,
        mean,
        std,
    }
}

/// [`Initializer::Orthogonal`] with a gain of 1.
pub fn orthogonal() -> Initializer {
    Initializer::Orthogonal { gain: 1.0 }
}

impl Initializer {
    /// An array of `shape`, with the thread's next key ([`random::seed`]).
    ///
    /// # Errors
    /// The shape has too few dimensions for a Glorot or He initialiser, which need two or more, or
    /// is not a matrix for a sparse or orthogonal one, or not a square matrix for the identity; or
    /// a setting is out of range.
    pub fn draw(&self, shape: &[i32]) -> Result<Array> {
        let drawn =
            |key: &random::Key, low, high| random::uniform(key, low, high, shape, DType::F32);
        match *self {
            Self::Constant(value) => full(shape, value, DType::F32),
            Self::Normal { mean, std } => random::normal_with(None, shape, DType::F32, mean, std),
            Self::Uniform { low, high } => drawn(&random::next_key()?, low, high),
            Self::Identity => {
                let [rows, columns] = matrix("the identity", shape)?;
                if rows != columns {
                    return Err(refused("the identity is square", shape));
                }
                eye_with(rows, columns, 0, DType::F32)
            }
            Self::GlorotNormal { gain } => {
                let [fan_in, fan_out] = fans(shape)?;
                let std = gain * (2.0 / (fan_in + fan_out)).sqrt();
                normal(0.0, std as f32).draw(shape)
            }
            Self::GlorotUniform { gain } => {
                let [fan_in, fan_out] = fans(shape)?;
                let limit = (gain * (6.0 / (fan_in + fan_out)).sqrt()) as f32;
                uniform(-limit, limit).draw(shape)
            }
            Self::HeNormal { fan, gain } => {
                let std = gain / fans(shape)?[fan as usize].sqrt();
                normal(0.0, std as f32).draw(shape)
            }
            Self::HeUniform { fan, gain } => {
                let limit = (gain * (3.0 / fans(shape)?[fan as usize]).sqrt()) as f32;
                uniform(-limit, limit).draw(shape)
            }
            Self::Sparse {
                sparsity,
                mean,
                std,
            } => {
                let [rows, columns] = matrix("a sparse initialiser", shape)?;
                if !(0.0..=1.0).contains(&sparsity) {
                    let message = format!("sparsity must be in [0, 1], given {sparsity}");
                    return Err(Error::new(ErrorKind::Invalid, message));
                }
                let zeros = (sparsity * f64::from(columns)).ceil() as i32;
                let order = drawn(&random::next_key()?, 0.0, 1.0)?.argsort(1)?;
                let numbers = normal(mean, std).draw(shape)?;
                if zeros == 0 {
                    return Ok(numbers);
                }
                let zero = full(&[rows, zeros], 0.0, DType::F32)?;
                numbers.put_along_axis(&order.slice_axis(1, 0, zeros)?, &zero, 1)
            }
            Self::Orthogonal { gain } => {
                let [rows, columns] = matrix("an orthogonal initialiser", shape)?;
                let size = rows.max(columns);
                let square = normal(0.0, 1.0).draw(&[size, size])?;
                let (q, r) = linalg::qr(&square)?;
                let signs = r.diagonal()?.sign()?;
                q.multiply(&signs)?
                    .slice(&[0, 0], &[rows, columns])?
                    .multiply(gain)
            }
        }
    }
}

/// Inputs and outputs of a unit.
fn fans(shape: &[i32]) -> Result<[f64; 2]> {
    let [outputs, ref kernel @ .., inputs] = *shape else {
        return Err(refused(
            "Glorot and He initialisers need two dimensions or more",
            shape,
        ));
    };
    let kernel: f64 = kernel.iter().map(|&size| f64::from(size)).product();
    Ok([f64::from(inputs) * kernel, f64::from(outputs) * kernel])
}

fn matrix(what: &str, shape: &[i32]) -> Result<[i32; 2]> {
    shape
        .try_into()
        .map_err(|_| refused(&format!("{what} needs a matrix"), shape))
}

fn refused(message: &str, shape: &[i32]) -> Error {
    Error::new(
        ErrorKind::Shape,
        format!("{message}, found the shape {shape:?}"),
    )
}

/// A parameter that is uniform between `±limit`.
pub(crate) fn drawn_uniform(shape: &[i32], limit: f64) -> Result<Param> {
    let limit = limit as f32;
    uniform(-limit, limit).draw(shape).map(Param::new)
}
