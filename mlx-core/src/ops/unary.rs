//! Elementwise functions of one array.
//!
//! ```
//! use mlx_core::array;
//!
//! # fn main() -> mlx_core::Result<()> {
//! assert_eq!(array![-1, 2].abs()?.to_vec::<i32>()?, [1, 2]);
//! # Ok(())
//! # }
//! ```

use crate::array::Array;
use crate::error::Result;
use crate::ffi::{Opt, op};

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => {
        /// # Functions of each element
        ///
        /// ```
        /// use mlx_core::array;
        ///
        /// # fn main() -> mlx_core::Result<()> {
        /// let x = array![1.0f32, 4.0];
        /// assert_eq!(x.sqrt()?.to_vec::<f32>()?, [1.0, 2.0]);
        /// assert_eq!((-&x)?.abs()?.to_vec::<f32>()?, [1.0, 4.0]);
        /// # Ok(())
        /// # }
        /// ```
        impl Array { $(
        $(#[$doc])*
        ///
        /// Elementwise; the shape stays.
        ///
        /// # Errors
        /// MLX refuses the dtype.
        pub fn $name(&self) -> Result<Array> {
            op!($c(self))
        }
    )* } };
}

unary! {
    /// `|x|`; the dtype stays, except that a complex number gives F32.
    abs = mlx_abs;
    /// `-x`. Refuses Bool.
    negative = mlx_negative;
    /// `+x`: the array itself.
    positive = mlx_positive;
    /// `e^x`; integers become F32.
    exp = mlx_exp;
    /// `e^x - 1`, exact near zero; integers become F32.
    expm1 = mlx_expm1;
    /// Natural logarithm; integers become F32.
    log = mlx_log;
    /// `ln(1 + x)`, exact near zero; integers become F32.
    log1p = mlx_log1p;
    /// Logarithm to base 2; integers become F32.
    log2 = mlx_log2;
    /// Logarithm to base 10; integers become F32.
    log10 = mlx_log10;
    /// Square root; integers become F32.
    sqrt = mlx_sqrt;
    /// `1 / sqrt(x)`; integers become F32.
    rsqrt = mlx_rsqrt;
    /// `x * x`.
    square = mlx_square;
    /// `1 / x`; integers become F32.
    reciprocal = mlx_reciprocal;
    /// Sine of radians; integers become F32.
    sin = mlx_sin;
    /// Cosine of radians; integers become F32.
    cos = mlx_cos;
    /// Tangent of radians; integers become F32.
    tan = mlx_tan;
    /// Inverse sine, in radians; integers become F32.
    #[doc(alias = "asin")]
    arcsin = mlx_arcsin;
    /// Inverse cosine, in radians; integers become F32.
    #[doc(alias = "acos")]
    arccos = mlx_arccos;
    /// Inverse tangent, in radians; integers become F32.
    #[doc(alias = "atan")]
    arctan = mlx_arctan;
    /// Hyperbolic sine; integers become F32.
    sinh = mlx_sinh;
    /// Hyperbolic cosine; integers become F32.
    cosh = mlx_cosh;
    /// Hyperbolic tangent; integers become F32.
    tanh = mlx_tanh;
    /// Inverse hyperbolic sine; integers become F32.
    #[doc(alias = "asinh")]
    arcsinh = mlx_arcsinh;
    /// Inverse hyperbolic cosine; integers become F32.
    #[doc(alias = "acosh")]
    arccosh = mlx_arccosh;
    /// Inverse hyperbolic tangent; integers become F32.
    #[doc(alias = "atanh")]
    arctanh = mlx_arctanh;
    /// `1 / (1 + e^-x)`; integers become F32.
    sigmoid = mlx_sigmoid;
    /// Error function; integers become F32.
    erf = mlx_erf;
    /// Inverse of [`erf`](Array::erf) on [-1, 1]; integers become F32.
    erfinv = mlx_erfinv;
    /// Rounds down. Refuses complex numbers.
    floor = mlx_floor;
    /// Rounds up. Refuses complex numbers.
    ceil = mlx_ceil;
    /// Rounds toward zero.
    trunc = mlx_trunc;
    /// -1, 0 or 1 by the sign of x.
    sign = mlx_sign;
    /// Whether x is not a number, as Bool.
    isnan = mlx_isnan;
    /// Whether x is an infinity, as Bool.
    isinf = mlx_isinf;
    /// Whether x is neither infinite nor not a number, as Bool.
    isfinite = mlx_isfinite;
    /// Whether x is negative infinity, as Bool.
    isneginf = mlx_isneginf;
    /// Whether x is positive infinity, as Bool.
    isposinf = mlx_isposinf;
    /// Whether x is zero, as Bool.
    logical_not = mlx_logical_not;
    /// Flips every bit. Integers and Bool only.
    bitwise_invert = mlx_bitwise_invert;
    /// From radians to degrees; integers become F32.
    degrees = mlx_degrees;
    /// From degrees to radians; integers become F32.
    radians = mlx_radians;
    /// The complex conjugate; real arrays stay as they are.
    #[doc(alias = "conj")]
    conjugate = mlx_conjugate;
    /// The real part.
    real = mlx_real;
    /// The imaginary part; zero for real arrays.
    imag = mlx_imag;
    /// The same values, through which no gradient flows.
    stop_gradient = mlx_stop_gradient;
}

/// # Rounding, and replacing what is not finite
///
/// ```
/// use mlx_core::array;
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![1.6f32, f32::NAN];
/// assert_eq!(x.nan_to_num()?.round()?.to_vec::<f32>()?, [2.0, 0.0]);
/// # Ok(())
/// # }
/// ```
impl Array {
    also_called! {
        neg = negative(), by "Rust's operator";
        recip = reciprocal(), by "Rust's method";
        ln = log(), by "Rust's method";
        asin = arcsin(), by "Rust's method";
        acos = arccos(), by "Rust's method";
        atan = arctan(), by "Rust's method";
        asinh = arcsinh(), by "Rust's method";
        acosh = arccosh(), by "Rust's method";
        atanh = arctanh(), by "Rust's method";
        absolute = abs(), by "NumPy";
        sqr = square(), by "candle";
        gelu_erf = gelu(), by "candle";
        detach = stop_gradient(), by "candle";
    }

    /// Rounds to integers, ties to even; the dtype stays.
    ///
    /// # Errors
    /// MLX refuses the dtype.
    pub fn round(&self) -> Result<Array> {
        self.round_with(0)
    }

    /// Rounds to `decimals` places, ties to even; negative places round before the point.
    ///
    /// # Errors
    /// MLX refuses the dtype.
    pub fn round_with(&self, decimals: i32) -> Result<Array> {
        op!(mlx_round(self, decimals))
    }

    /// Replaces NaN by 0, and the infinities by the largest and the smallest number of the dtype.
    ///
    /// # Errors
    /// MLX refuses the dtype.
    pub fn nan_to_num(&self) -> Result<Array> {
        self.nan_to_num_with(0.0, None, None)
    }

    /// Replaces NaN by `nan`, and the infinities by `posinf` and `neginf` (the largest and the
    /// smallest number of the dtype if `None`).
    ///
    /// # Errors
    /// MLX refuses the dtype.
    pub fn nan_to_num_with(
        &self,
        nan: f32,
        posinf: Option<f32>,
        neginf: Option<f32>,
    ) -> Result<Array> {
        op!(mlx_nan_to_num(self, nan, Opt(posinf), Opt(neginf)))
    }

    /// `max(x, 0)`; the dtype stays.
    ///
    /// # Errors
    /// MLX refuses the dtype.
    pub fn relu(&self) -> Result<Array> {
        self.maximum(0)
    }

    /// `x * sigmoid(x)`, also called Swish; integers become F32.
    ///
    /// # Errors
    /// MLX refuses the dtype.
    #[doc(alias = "swish")]
    pub fn silu(&self) -> Result<Array> {
        self.multiply(&self.sigmoid()?)
    }

    /// `x * (1 + erf(x / sqrt(2))) / 2`: the Gaussian error linear unit, exact; integers become F32. Source: Hendrycks and
    /// Gimpel 2016, "Gaussian Error Linear Units".
    ///
    /// # Errors
    /// MLX refuses the dtype.
    pub fn gelu(&self) -> Result<Array> {
        let share = self.divide(std::f64::consts::SQRT_2)?.erf()?.add(1)?;
        self.multiply(&share)?.divide(2)
    }
}
