//! Arguments that are given in several ways: the widths of [`pad`](crate::Array::pad), the pieces of
//! [`split`](crate::Array::split), the bounds of [`clip`](crate::Array::clip).

use crate::error::Result;
use crate::ops::{Operand, require};

/// How many elements [`Array::pad`](crate::Array::pad) adds: a number, or `(before, after)`, for every dimension; a list of one
/// `(before, after)` for each dimension; or a list of `(axis, before, after)` for some.
pub trait PadWidths {
    /// `(axis, before, after)` of each dimension that is padded.
    ///
    /// # Errors
    /// There is not one pair for each of the `ndim` dimensions.
    fn widths(&self, ndim: usize) -> Result<Vec<(i32, i32, i32)>>;
}

impl PadWidths for i32 {
    fn widths(&self, ndim: usize) -> Result<Vec<(i32, i32, i32)>> {
        (*self, *self).widths(ndim)
    }
}

impl PadWidths for (i32, i32) {
    fn widths(&self, ndim: usize) -> Result<Vec<(i32, i32, i32)>> {
        Ok((0..ndim as i32)
            .map(|axis| (axis, self.0, self.1))
            .collect())
    }
}

impl PadWidths for [(i32, i32)] {
    fn widths(&self, ndim: usize) -> Result<Vec<(i32, i32, i32)>> {
        let one_each = self.len() == ndim;
        let expected = format!("one (before, after) for each of {ndim} dimensions");
        require(one_each, "pad", "widths", &expected, self)?;
        Ok((0..)
            .zip(self)
            .map(|(axis, &(before, after))| (axis, before, after))
            .collect())
    }
}

impl PadWidths for [(i32, i32, i32)] {
    fn widths(&self, _ndim: usize) -> Result<Vec<(i32, i32, i32)>> {
        Ok(self.to_vec())
    }
}

impl<T, const N: usize> PadWidths for [T; N]
where
    [T]: PadWidths,
{
    fn widths(&self, ndim: usize) -> Result<Vec<(i32, i32, i32)>> {
        self.as_slice().widths(ndim)
    }
}

impl<T> PadWidths for Vec<T>
where
    [T]: PadWidths,
{
    fn widths(&self, ndim: usize) -> Result<Vec<(i32, i32, i32)>> {
        self.as_slice().widths(ndim)
    }
}

impl<T: PadWidths + ?Sized> PadWidths for &T {
    fn widths(&self, ndim: usize) -> Result<Vec<(i32, i32, i32)>> {
        (**self).widths(ndim)
    }
}

/// The pieces that [`Array::split`](crate::Array::split) makes, as in Python: a number of equal pieces, or a list of the positions between
/// pieces.
///
/// ```
/// use mlx_core::array;
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![1, 2, 3, 4];
/// assert_eq!(x.split(2, 0)?[1].to_vec::<i32>()?, [3, 4]);
/// assert_eq!(x.split(&[1], 0)?[1].to_vec::<i32>()?, [2, 3, 4]); // [1] and [2, 3, 4]
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how to split an array",
    label = "neither a number of pieces nor positions",
    note = "give a number of equal pieces, or an array, slice or vector of the positions between them: `x.split(2, 0)`, `x.split(&[1, 3], 0)`"
)]
pub trait Sections {
    /// The number of equal pieces. `None` for a list of positions.
    fn parts(&self) -> Option<i32> {
        None
    }

    /// The positions between pieces. Empty for a number of pieces.
    fn positions(&self) -> &[i32] {
        &[]
    }
}

impl Sections for i32 {
    fn parts(&self) -> Option<i32> {
        Some(*self)
    }
}

impl Sections for [i32] {
    fn positions(&self) -> &[i32] {
        self
    }
}

impl<const N: usize> Sections for [i32; N] {
    fn positions(&self) -> &[i32] {
        self
    }
}

impl Sections for Vec<i32> {
    fn positions(&self) -> &[i32] {
        self
    }
}

impl<T: Sections + ?Sized> Sections for &T {
    fn parts(&self) -> Option<i32> {
        (**self).parts()
    }

    fn positions(&self) -> &[i32] {
        (**self).positions()
    }
}

/// A bound of [`Array::clip`](crate::Array::clip): an array, a number, or `None` where there is no bound.
///
/// ```
/// use mlx_core::array;
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![-1.0, 0.5, 2.0];
/// assert_eq!(x.clip(0.0, None)?.to_vec::<f32>()?, [0.0, 0.5, 2.0]);
/// assert_eq!(x.clip(None, Some(1.0))?.to_vec::<f32>()?, [-1.0, 0.5, 1.0]);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no bound of elements",
    label = "not a bound",
    note = "a bound is an array, a number, or an `Option<f64>`: `x.clip(0.0, 1.0)`, `x.clip(0.0, None)`, `x.clip(&low, &high)`"
)]
pub trait Limit {
    /// The array or number. `None` where there is no bound.
    fn limit(&self) -> Option<&dyn Operand>;
}

impl<T: Operand> Limit for T {
    fn limit(&self) -> Option<&dyn Operand> {
        Some(self)
    }
}

impl Limit for Option<f64> {
    fn limit(&self) -> Option<&dyn Operand> {
        match self {
            Some(number) => Some(number),
            None => None,
        }
    }
}
