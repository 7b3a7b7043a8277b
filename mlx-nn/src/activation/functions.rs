//! Activations as functions of an array: `[..] -> [..]`. Each function with a setting has a second
//! form, `.._with`.
//!
//! ```
//! use mlx_core::{Array, Result};
//! use mlx_nn::activation::{leaky_relu, leaky_relu_with};
//!
//! # fn main() -> Result<()> {
//! let x = Array::from_slice(&[-1.0f32, 2.0], &[2])?;
//! assert_eq!(leaky_relu(&x)?.to_vec::<f32>()?, [-0.01, 2.0]);
//! assert_eq!(leaky_relu_with(&x, 0.5)?.to_vec::<f32>()?, [-0.5, 2.0]);
//! # Ok(())
//! # }
//! ```

use mlx_core::{Array, Error, ErrorKind, Result};

use super::Activation;

/// Functions that call [`Activation::forward`].
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// MLX refuses the dtype.
        pub fn $name(x: &Array) -> Result<Array> {
            $value.forward(x)
        }
    )*};
}

functions! {
    /// `1 / (1 + exp(-x))`
    sigmoid = Activation::Sigmoid;
    /// The hyperbolic tangent.
    tanh = Activation::Tanh;
    /// `max(x, 0)`
    relu = Activation::Relu;
    /// `max(x, 0)²`
    relu2 = Activation::ReluSquared;
    /// `min(max(x, 0), 6)`
    relu6 = Activation::Relu6;
    /// `max(0.01 * x, x)`
    leaky_relu = Activation::LeakyRelu(0.01);
    /// `x` above 0, and `exp(x) - 1` below.
    elu = Activation::Elu(1.0);
    /// `max(x, 0) + exp(min(x, 0)) - 1`
    celu = Activation::Celu(1.0);
    /// ELU with the factors of a self-normalising network (Klambauer et al., arXiv:1706.02515).
    selu = Activation::Selu;
    /// `ln(1 + exp(x))`
    softplus = Activation::Softplus;
    /// `x / (1 + |x|)`
    softsign = Activation::Softsign;
    /// `x - 0.5` above 0.5, `x + 0.5` below -0.5, and 0 between.
    softshrink = Activation::Softshrink(0.5);
    /// `x` where `|x|` is above 0.5, and 0 elsewhere.
    hard_shrink = Activation::HardShrink(0.5);
    /// `min(max(x, -1), 1)`
    hard_tanh = Activation::HardTanh;
    /// `x * min(max(x + 3, 0), 6) / 6`
    hardswish = Activation::Hardswish;
    /// `-ln(1 + exp(-x))`
    log_sigmoid = Activation::LogSigmoid;
    /// `x * tanh(softplus(x))` (Misra, arXiv:1908.08681)
    mish = Activation::Mish;
    /// `x * sigmoid(x)`
    silu = Activation::Silu;
    /// `x * Phi(x)` with the exact normal distribution function.
    gelu = Activation::Gelu;
    /// `x * Phi(x)` by the tanh approximation.
    gelu_approx = Activation::GeluTanh;
    /// `x * sigmoid(1.702 * x)`
    gelu_fast_approx = Activation::GeluSigmoid;
    /// 1 where `x` is at least 0, and 0 elsewhere, as I32.
    step = Activation::Step(0.0);
    /// `exp(x) / sum(exp(x))` along the last axis.
    softmax = Activation::Softmax;
    /// `ln(softmax(x))` along the last axis.
    log_softmax = Activation::LogSoftmax;
    /// `softmax(-x)` along the last axis.
    softmin = Activation::Softmin;
    /// `a * sigmoid(b)` of the halves `a` and `b` of the last axis (Dauphin et al.,
    /// arXiv:1612.08083): `[.., 2 n] -> [.., n]`.
    glu = Activation::Glu;
}

/// `max(slope * x, x)`
///
/// # Errors
/// MLX refuses the dtype.
pub fn leaky_relu_with(x: &Array, slope: f32) -> Result<Array> {
    x.multiply(slope)?.maximum(x)
}

/// `x` above 0, and `alpha * (exp(x) - 1)` below.
///
/// # Errors
/// MLX refuses the dtype.
pub fn elu_with(x: &Array, alpha: f32) -> Result<Array> {
    // The exponential of a large number would make the derivative NaN.
    let below = x.minimum(0.0)?.exp()?.subtract(1.0)?.multiply(alpha)?;
    x.greater(0.0)?.select(x, &below)
}

/// `max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)`
///
/// # Errors
/// MLX refuses the dtype.
pub fn celu_with(x: &Array, alpha: f32) -> Result<Array> {
    let below = x.minimum(0.0)?.divide(alpha)?.exp()?;
    x.maximum(0.0)?.add(below.subtract(1.0)?.multiply(alpha)?)
}

/// `x - limit` above `limit`, `x + limit` below `-limit`, and 0 between.
///
/// # Errors
/// MLX refuses the dtype.
pub fn softshrink_with(x: &Array, limit: f32) -> Result<Array> {
    let shrunk = x.subtract(x.sign()?.multiply(limit)?)?;
    x.abs()?.greater(limit)?.select(&shrunk, 0.0)
}

/// `x` where `|x|` is above `limit`, and 0 elsewhere.
///
/// # Errors
/// MLX refuses the dtype.
pub fn hard_shrink_with(x: &Array, limit: f32) -> Result<Array> {
    x.abs()?.greater(limit)?.select(x, 0.0)
}

/// `min(max(x, low), high)`
///
/// # Errors
/// MLX refuses the dtype.
pub fn hard_tanh_with(x: &Array, low: f32, high: f32) -> Result<Array> {
    x.maximum(low)?.minimum(high)
}

/// 1 where `x` is at least `threshold`, and 0 elsewhere, as I32.
///
/// # Errors
/// MLX refuses the dtype.
pub fn step_with(x: &Array, threshold: f32) -> Result<Array> {
    x.greater_equal(threshold)?.astype(mlx_core::DType::I32)
}

/// `exp(x) / sum(exp(x))` along `axis`.
///
/// # Errors
/// There is no such axis.
pub fn softmax_with(x: &Array, axis: i32) -> Result<Array> {
    x.softmax(axis)
}

/// `ln(softmax(x))` along `axis`.
///
/// # Errors
/// There is no such axis.
pub fn log_softmax_with(x: &Array, axis: i32) -> Result<Array> {
    let x = x.subtract(x.max(axis, true)?.stop_gradient()?)?;
    x.subtract(x.logsumexp(axis, true)?)
}

/// `softmax(-x)` along `axis`.
///
/// # Errors
/// There is no such axis.
pub fn softmin_with(x: &Array, axis: i32) -> Result<Array> {
    softmax_with(&x.negative()?, axis)
}

/// `a * sigmoid(b)` of the halves `a` and `b` of `axis`.
///
/// # Errors
/// There is no such axis, or its length is odd.
pub fn glu_with(x: &Array, axis: i32) -> Result<Array> {
    let size = x.dim(axis)?;
    if size % 2 != 0 {
        return Err(Error::new(
            ErrorKind::Shape,
            format!("glu: axis {axis} of {:?} cannot be halved", x.shape()),
        ));
    }
    let a = x.slice_axis(axis, 0, size / 2)?;
    let b = x.slice_axis(axis, size / 2, size)?;
    a.multiply(b.sigmoid()?)
}

/// `max(x, 0) + alpha * min(x, 0)` (He et al., arXiv:1502.01852). `alpha` broadcasts to `x`.
///
/// # Errors
/// The shapes do not broadcast.
pub fn prelu(x: &Array, alpha: &Array) -> Result<Array> {
    x.maximum(0.0)?.add(alpha.multiply(x.minimum(0.0)?)?)
}
