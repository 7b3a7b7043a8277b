//! Reductions: fewer elements out than in.
//!
//! The reduced dimensions vanish, or stay with size 1 if `keepdims`. Sums and products of F16 and BF16 are accumulated in
//! F32.
//!
//! ```
//! use mlx_core::array;
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = array![[1, 2], [3, 4]];
//! assert_eq!(x.prod(.., false)?.item::<i32>()?, 24);
//! # Ok(())
//! # }
//! ```

use std::borrow::Cow;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::op;
use crate::ops::{Axes, Axis, full};

/// candle's name of a reduction whose dimensions stay.
macro_rules! also_called_keeping {
    ($keep:ident = $name:ident over $axes:ident: $ty:ty) => {
        #[doc = concat!("[`", stringify!($name), "`](Self::", stringify!($name), ") with `keepdims`, by the name of candle.")]
        ///
        /// # Errors
        #[doc = concat!("Those of [`", stringify!($name), "`](Self::", stringify!($name), ").")]
        pub fn $keep(&self, $axes: $ty) -> Result<Array> {
            self.$name($axes, true)
        }
    };
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident, $all:ident $(, $keep:ident)? = $c:ident or $empty:expr;)*) => {
        /// # Reductions
        ///
        /// Over one axis, several (`[0, 2]`) or all (`..`, or the forms `NAME_all`).
        ///
        /// ```
        /// use mlx_core::array;
        ///
        /// # fn main() -> mlx_core::Result<()> {
        /// let x = array![[1.0f32, 2.0], [3.0, 4.0]];
        /// assert_eq!(x.sum(0, false)?.to_vec::<f32>()?, [4.0, 6.0]);
        /// assert_eq!(x.mean(-1, true)?.shape(), [2, 1]);
        /// assert_eq!(x.max_all()?.item::<f32>()?, 4.0);
        /// # Ok(())
        /// # }
        /// ```
        impl Array { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// There is no such axis, it is given twice, or it is empty and the result needs an
        /// element.
        pub fn $name(&self, axes: impl Axes, keepdims: bool) -> Result<Array> {
            let axes = axes.axes(self.ndim());
            let this = wide(self, stringify!($name))?;
            let result = op!($c(*this, [axes], keepdims))?;
            or_if_empty(self, narrow(result, &this, self)?, $empty)
        }

        #[doc = concat!("[`", stringify!($name), "`](Self::", stringify!($name), ") over all elements: a scalar.")]
        ///
        /// # Errors
        /// There is no element where the result needs one.
        pub fn $all(&self) -> Result<Array> {
            self.$name(.., false)
        }

        $(also_called_keeping! { $keep = $name over axes: impl Axes })?
    )* } };
}

reductions! {
    /// Sum. Bool and integers narrower than 32 bits become I32 or U32.
    sum, sum_all, sum_keepdim = mlx_sum_axes or 0.0;
    /// Product. Bool and integers narrower than 32 bits become I32 or U32.
    prod, prod_all = mlx_prod_axes or 1.0;
    /// Arithmetic mean; integers become F32.
    mean, mean_all, mean_keepdim = mlx_mean_axes or f32::NAN;
    /// Largest element; NaN if there is one.
    max, max_all, max_keepdim = mlx_max_axes or f32::NAN;
    /// Smallest element; NaN if there is one.
    min, min_all, min_keepdim = mlx_min_axes or f32::NAN;
    /// Whether all elements are non-zero, as Bool.
    all, all_all = mlx_all_axes or 1.0;
    /// Whether any element is non-zero, as Bool.
    any, any_all = mlx_any_axes or 0.0;
    /// `ln(sum(e^x))` without overflow; integers become F32.
    logsumexp, logsumexp_all = mlx_logsumexp_axes or f32::NEG_INFINITY;
    /// The middle element, or the mean of the two in the middle.
    median, median_all = mlx_median_axes or f32::NAN;
    /// How many elements are non-zero, as I32.
    count_nonzero, count_nonzero_all = mlx_count_nonzero_axes or 0.0;
}

/// Operations that sum or multiply: in 16 bits they lose elements, or overflow on the way.
const ACCUMULATE: [&str; 11] = [
    "sum",
    "prod",
    "mean",
    "var",
    "std",
    "logsumexp",
    "vecdot",
    "norm",
    "cumsum",
    "cumprod",
    "logcumsumexp",
];

/// The array that `op` runs over: F32 in place of F16 and BF16 if `op` accumulates.
pub(crate) fn wide<'a>(array: &'a Array, op: &str) -> Result<Cow<'a, Array>> {
    let short = matches!(array.dtype(), DType::F16 | DType::BF16);
    if short && ACCUMULATE.contains(&op) {
        return array.astype(DType::F32).map(Cow::Owned);
    }
    Ok(Cow::Borrowed(array))
}

/// The result over `wide`, in the dtype of `array`.
pub(crate) fn narrow(result: Array, wide: &Array, array: &Array) -> Result<Array> {
    if wide.dtype() == array.dtype() {
        return Ok(result);
    }
    result.astype(array.dtype())
}

/// The result of a reduction of no elements is `empty`. MLX's CPU kernels leave it unwritten for some layouts.
pub(crate) fn or_if_empty(reduced: &Array, result: Array, empty: f32) -> Result<Array> {
    if reduced.size() > 0 || result.size() == 0 {
        return Ok(result);
    }
    full(result.shape(), empty, result.dtype())
}

/// # Statistics, positions of extremes, softmax, diagonals
///
/// ```
/// use mlx_core::array;
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![[1.0f32, 3.0], [8.0, 4.0]];
/// assert_eq!(x.argmax(1, false)?.to_vec::<u32>()?, [1, 0]);
/// assert_eq!(x.var_all()?.item::<f32>()?, 6.5);
/// assert_eq!(x.diagonal()?.to_vec::<f32>()?, [1.0, 4.0]);
/// # Ok(())
/// # }
/// ```
impl Array {
    also_called_keeping! { argmax_keepdim = argmax over axis: impl Axis }
    also_called_keeping! { argmin_keepdim = argmin over axis: impl Axis }
    also_called_keeping! { var_keepdim = var over axes: impl Axes }

    /// [`logsumexp`](Self::logsumexp) without `keepdims`, by the name of candle.
    ///
    /// # Errors
    /// Those of [`logsumexp`](Self::logsumexp).
    pub fn log_sum_exp(&self, axes: impl Axes) -> Result<Array> {
        self.logsumexp(axes, false)
    }

    /// The smallest and the largest element, as [`min`](Self::min) and [`max`](Self::max).
    ///
    /// # Errors
    /// There is no such axis, or it is given twice, or it is empty.
    pub fn minmax(&self, axes: impl Axes, keepdims: bool) -> Result<(Array, Array)> {
        let axes = axes.axes(self.ndim());
        Ok((
            self.min(&axes[..], keepdims)?,
            self.max(&axes[..], keepdims)?,
        ))
    }

    /// [`minmax`](Self::minmax) of all elements: two scalars.
    ///
    /// # Errors
    /// There is no element.
    pub fn minmax_all(&self) -> Result<(Array, Array)> {
        self.minmax(.., false)
    }

    /// Variance: the mean square distance from the mean; integers become F32.
    ///
    /// # Errors
    /// There is no such axis, or it is given twice.
    pub fn var(&self, axes: impl Axes, keepdims: bool) -> Result<Array> {
        self.var_with(axes, keepdims, 0)
    }

    /// [`var`](Self::var) of all elements: a scalar.
    ///
    /// # Errors
    /// None that is known.
    pub fn var_all(&self) -> Result<Array> {
        self.var(.., false)
    }

    /// As [`var`](Self::var): the sum of the square distances is divided by `n - ddof`.
    ///
    /// # Errors
    /// There is no such axis, or it is given twice.
    pub fn var_with(&self, axes: impl Axes, keepdims: bool, ddof: i32) -> Result<Array> {
        let axes = axes.axes(self.ndim());
        or_if_empty(
            self,
            {
                let this = wide(self, "var")?;
                narrow(
                    op!(mlx_var_axes(*this, [axes], keepdims, ddof))?,
                    &this,
                    self,
                )?
            },
            f32::NAN,
        )
    }

    /// Standard deviation: the square root of [`var`](Self::var).
    ///
    /// # Errors
    /// There is no such axis, or it is given twice.
    pub fn std(&self, axes: impl Axes, keepdims: bool) -> Result<Array> {
        self.std_with(axes, keepdims, 0)
    }

    /// [`std`](Self::std) of all elements: a scalar.
    ///
    /// # Errors
    /// None that is known.
    pub fn std_all(&self) -> Result<Array> {
        self.std(.., false)
    }

    /// As [`std`](Self::std), of [`var_with`](Self::var_with).
    ///
    /// # Errors
    /// There is no such axis, or it is given twice.
    pub fn std_with(&self, axes: impl Axes, keepdims: bool, ddof: i32) -> Result<Array> {
        let axes = axes.axes(self.ndim());
        or_if_empty(
            self,
            {
                let this = wide(self, "std")?;
                narrow(
                    op!(mlx_std_axes(*this, [axes], keepdims, ddof))?,
                    &this,
                    self,
                )?
            },
            f32::NAN,
        )
    }

    /// Position of the (first) largest element along `axis`, as U32. With `..` it is the position in the flattened
    /// array, and `keepdims` leaves as many dimensions of size 1 as the array has.
    ///
    /// # Errors
    /// There is no such axis, or it is empty.
    pub fn argmax(&self, axis: impl Axis, keepdims: bool) -> Result<Array> {
        match axis.axis() {
            Some(axis) => op!(mlx_argmax_axis(self, axis, keepdims)),
            None => op!(mlx_argmax(self, keepdims)),
        }
    }

    /// Position of the (first) largest of all elements in the flattened array: a U32 scalar.
    ///
    /// # Errors
    /// There is no element.
    pub fn argmax_all(&self) -> Result<Array> {
        self.argmax(.., false)
    }

    /// Position of the (first) smallest element along `axis`, as [`argmax`](Self::argmax).
    ///
    /// # Errors
    /// There is no such axis, or it is empty.
    pub fn argmin(&self, axis: impl Axis, keepdims: bool) -> Result<Array> {
        match axis.axis() {
            Some(axis) => op!(mlx_argmin_axis(self, axis, keepdims)),
            None => op!(mlx_argmin(self, keepdims)),
        }
    }

    /// Position of the (first) smallest of all elements in the flattened array: a U32 scalar.
    ///
    /// # Errors
    /// There is no element.
    pub fn argmin_all(&self) -> Result<Array> {
        self.argmin(.., false)
    }

    /// `e^x / sum(e^x)` over `axes`; the shape stays. Integers become F32. F16 and BF16 are accumulated in F32.
    ///
    /// # Errors
    /// There is no such axis.
    pub fn softmax(&self, axes: impl Axes) -> Result<Array> {
        self.softmax_with(axes, false)
    }

    /// [`softmax`](Self::softmax) over all elements; the shape stays.
    ///
    /// # Errors
    /// None that is known.
    pub fn softmax_all(&self) -> Result<Array> {
        self.softmax(..)
    }

    /// As [`softmax`](Self::softmax). `precise` asks MLX to accumulate F16 and BF16 in F32, which is always done here, so
    /// it has no other effect.
    ///
    /// # Errors
    /// There is no such axis.
    pub fn softmax_with(&self, axes: impl Axes, precise: bool) -> Result<Array> {
        let axes = axes.axes(self.ndim());
        let precise = precise || matches!(self.dtype(), DType::F16 | DType::BF16);
        op!(mlx_softmax_axes(self, [axes], precise))
    }

    /// The main diagonal of the first two dimensions, as the last dimension: `[n, m, …]` → `[…, min(n, m)]`.
    ///
    /// # Errors
    /// The array has fewer than two dimensions.
    pub fn diagonal(&self) -> Result<Array> {
        self.diagonal_with(0, 0, 1)
    }

    /// Diagonal `offset` of the dimensions `axis1` and `axis2`, as the last dimension.
    ///
    /// # Errors
    /// There are no such dimensions, or they are the same.
    pub fn diagonal_with(&self, offset: i32, axis1: i32, axis2: i32) -> Result<Array> {
        op!(mlx_diagonal(self, offset, axis1, axis2))
    }

    /// Sum of the main diagonal of the first two dimensions, in the array's dtype: `[n, m, …]` → `[…]`.
    ///
    /// # Errors
    /// The array has fewer than two dimensions.
    pub fn trace(&self) -> Result<Array> {
        self.trace_with(0, 0, 1, self.dtype())
    }

    /// Sum of diagonal `offset` of the dimensions `axis1` and `axis2`, in `dtype`.
    ///
    /// # Errors
    /// There are no such dimensions, or they are the same.
    pub fn trace_with(&self, offset: i32, axis1: i32, axis2: i32, dtype: DType) -> Result<Array> {
        let diagonal = self.diagonal_with(offset, axis1, axis2)?;
        // MLX converts to `dtype` before it sums.
        let short = matches!(dtype, DType::F16 | DType::BF16);
        let within = if short { DType::F32 } else { dtype };
        let sum = op!(mlx_trace_axes(self, offset, axis1, axis2, within))?;
        let sum = if short { sum.astype(dtype)? } else { sum };
        or_if_empty(&diagonal, sum, 0.0)
    }

    /// The number of elements along these axes together, or its reciprocal if `inverted`: a scalar
    /// of `dtype`. Inside a shapeless compilation it is computed from the shape of each call.
    ///
    /// # Errors
    /// There is no such axis.
    pub fn number_of_elements(
        &self,
        axes: impl Axes,
        inverted: bool,
        dtype: DType,
    ) -> Result<Array> {
        let axes = axes.axes(self.ndim());
        // MLX divides by the number of dimensions.
        let ndim = self.ndim() as i32;
        if let Some(axis) = axes.iter().find(|&&axis| axis < -ndim || axis >= ndim) {
            let message = format!("number_of_elements: no axis {axis} in {ndim} dimensions");
            return Err(Error::new(ErrorKind::Shape, message));
        }
        op!(mlx_number_of_elements(self, [axes], inverted, dtype))
    }
}
