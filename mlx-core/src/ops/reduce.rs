//! Reductions: fewer elements out than in.
//!
//! The reduced dimensions vanish, or stay with size 1 if `keepdims`. Sums and products of F16 and BF16 are accumulated in
//! F32.

use std::borrow::Cow;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::op;
use crate::ops::{Axes, full};

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident = $c:ident or $empty:expr;)*) => { impl Array { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// There is no such axis, or it is given twice; an empty one where the result needs an element.
        pub fn $name(&self, axes: impl Axes, keepdims: bool) -> Result<Array> {
            let axes = axes.axes(self.ndim());
            let this = wide(self, stringify!($name))?;
            let result = op!($c(*this, [axes], keepdims))?;
            or_if_empty(self, narrow(result, &this, self)?, $empty)
        }
    )* } };
}

reductions! {
    /// Sum. Bool and integers narrower than 32 bits become I32 or U32.
    sum = mlx_sum_axes or 0.0;
    /// Product. Bool and integers narrower than 32 bits become I32 or U32.
    prod = mlx_prod_axes or 1.0;
    /// Arithmetic mean; integers become F32.
    mean = mlx_mean_axes or f32::NAN;
    /// Largest element; NaN if there is one.
    max = mlx_max_axes or f32::NAN;
    /// Smallest element; NaN if there is one.
    min = mlx_min_axes or f32::NAN;
    /// Whether all elements are non-zero, as Bool.
    all = mlx_all_axes or 1.0;
    /// Whether any element is non-zero, as Bool.
    any = mlx_any_axes or 0.0;
    /// `ln(sum(e^x))` without overflow; integers become F32.
    logsumexp = mlx_logsumexp_axes or f32::NEG_INFINITY;
    /// The middle element, or the mean of the two in the middle.
    median = mlx_median_axes or f32::NAN;
    /// How many elements are non-zero, as I32.
    count_nonzero = mlx_count_nonzero_axes or 0.0;
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

impl Array {
    /// Variance: the mean square distance from the mean, over `n - ddof`; integers become F32.
    ///
    /// # Errors
    /// There is no such axis, or it is given twice.
    pub fn var(&self, axes: impl Axes, keepdims: bool, ddof: i32) -> Result<Array> {
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
    pub fn std(&self, axes: impl Axes, keepdims: bool, ddof: i32) -> Result<Array> {
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

    /// Position of the (first) largest element along `axis`, as U32. Flatten first to search
    /// through all.
    ///
    /// # Errors
    /// There is no such axis, or it is empty.
    pub fn argmax(&self, axis: i32, keepdims: bool) -> Result<Array> {
        op!(mlx_argmax_axis(self, axis, keepdims))
    }

    /// Position of the (first) smallest element along `axis`, as U32.
    ///
    /// # Errors
    /// There is no such axis, or it is empty.
    pub fn argmin(&self, axis: i32, keepdims: bool) -> Result<Array> {
        op!(mlx_argmin_axis(self, axis, keepdims))
    }

    /// `e^x / sum(e^x)` over `axes`; the shape stays. Integers become F32. F16 and BF16 are always accumulated in F32,
    /// which `precise` asks MLX for, so `precise` has no other effect.
    ///
    /// # Errors
    /// There is no such axis.
    pub fn softmax(&self, axes: impl Axes, precise: bool) -> Result<Array> {
        let axes = axes.axes(self.ndim());
        let precise = precise || matches!(self.dtype(), DType::F16 | DType::BF16);
        op!(mlx_softmax_axes(self, [axes], precise))
    }

    /// Diagonal `offset` of the dimensions `axis1` and `axis2`, as the last dimension.
    ///
    /// # Errors
    /// There are no such dimensions, or they are the same.
    pub fn diagonal(&self, offset: i32, axis1: i32, axis2: i32) -> Result<Array> {
        op!(mlx_diagonal(self, offset, axis1, axis2))
    }

    /// Sum of diagonal `offset` of the dimensions `axis1` and `axis2`, in `dtype`.
    ///
    /// # Errors
    /// There are no such dimensions, or they are the same.
    pub fn trace(&self, offset: i32, axis1: i32, axis2: i32, dtype: DType) -> Result<Array> {
        let diagonal = self.diagonal(offset, axis1, axis2)?;
        // MLX converts to `dtype` before it sums.
        let short = matches!(dtype, DType::F16 | DType::BF16);
        let within = if short { DType::F32 } else { dtype };
        let sum = op!(mlx_trace_axes(self, offset, axis1, axis2, within))?;
        let sum = if short { sum.astype(dtype)? } else { sum };
        or_if_empty(&diagonal, sum, 0.0)
    }

    /// The number of elements along these axes together, or its reciprocal if `inverted`: a scalar of `dtype` that
    /// follows the shape inside a shapeless compilation.
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
