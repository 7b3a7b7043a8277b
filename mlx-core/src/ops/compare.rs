//! Comparison and logic, elementwise. Results are Bool.

use crate::array::Array;
use crate::error::Result;
use crate::ffi::op;
use crate::ops::Operand;
use crate::ops::math::binary;
use crate::ops::reduce::or_if_empty;

binary! {
    /// `self == other`; NaN equals nothing.
    equal = mlx_equal;
    /// `self != other`.
    not_equal = mlx_not_equal;
    /// `self < other`.
    less = mlx_less;
    /// `self <= other`.
    less_equal = mlx_less_equal;
    /// `self > other`.
    greater = mlx_greater;
    /// `self >= other`.
    greater_equal = mlx_greater_equal;
    /// Whether both are non-zero.
    logical_and = mlx_logical_and;
    /// Whether either is non-zero.
    logical_or = mlx_logical_or;
    /// Whether exactly one is non-zero.
    logical_xor = mlx_logical_xor;
}

impl Array {
    /// Whether `|self - other| <= atol + rtol * |other|`, elementwise; shapes broadcast.
    ///
    /// # Errors
    /// The shapes do not broadcast.
    pub fn isclose(
        &self,
        other: impl Operand,
        rtol: f64,
        atol: f64,
        equal_nan: bool,
    ) -> Result<Array> {
        let other = other.operand(self)?;
        op!(mlx_isclose(self, *other, rtol, atol, equal_nan))
    }

    /// Whether all elements are close as in [`isclose`](Self::isclose): a Bool scalar.
    ///
    /// # Errors
    /// The shapes do not broadcast.
    pub fn allclose(
        &self,
        other: impl Operand,
        rtol: f64,
        atol: f64,
        equal_nan: bool,
    ) -> Result<Array> {
        let other = other.operand(self)?;
        self.isclose(&*other, rtol, atol, equal_nan)?.all(.., false)
    }

    /// Whether shape and all elements are equal: a Bool scalar.
    ///
    /// # Errors
    /// None that is known.
    pub fn array_equal(&self, other: &Array, equal_nan: bool) -> Result<Array> {
        let equal = op!(mlx_array_equal(self, other, equal_nan))?;
        let same_shape = self.shape() == other.shape();
        or_if_empty(self, equal, if same_shape { 1.0 } else { 0.0 })
    }
}
