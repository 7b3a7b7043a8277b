//! Operations, grouped as in MLX and named as there; one form each.
//!
//! A method where there is a main array, a function for constructors and lists. Conventions:
//!
//! - **Operands.** Binary operations take `impl` [`Operand`]: an array, or a number, which takes
//!   the array's dtype (a plain `2.0` never promotes bf16 to f32).
//! - **Axes.** Reductions take `impl` [`Axes`]: `1`, `-1`, `[0, 2]`, or `..` for all. Negative axes
//!   count from the end.
//! - Shapes broadcast as in NumPy.

use std::borrow::Cow;
use std::ops::RangeFull;

use crate::array::Array;
use crate::dtype::{Complex64, DType};
use crate::error::Result;

pub mod math;
pub mod shape;

/// What can stand beside an array in a binary operation.
pub trait Operand {
    /// This operand as an array that keeps `like`'s dtype.
    ///
    /// # Errors
    /// The scalar array cannot be made.
    fn operand<'a>(&'a self, like: &Array) -> Result<Cow<'a, Array>>;
}

impl Operand for Array {
    fn operand<'a>(&'a self, _like: &Array) -> Result<Cow<'a, Array>> {
        Ok(Cow::Borrowed(self))
    }
}

impl Operand for &Array {
    fn operand<'a>(&'a self, _like: &Array) -> Result<Cow<'a, Array>> {
        Ok(Cow::Borrowed(self))
    }
}

impl Operand for f32 {
    /// Floating-point arrays keep their dtype; integer arrays are promoted to F32.
    fn operand<'a>(&'a self, like: &Array) -> Result<Cow<'a, Array>> {
        let value = *self;
        Ok(Cow::Owned(match like.dtype() {
            DType::F16 => Array::scalar(half::f16::from_f32(value))?,
            DType::BF16 => Array::scalar(half::bf16::from_f32(value))?,
            DType::F64 => Array::scalar(f64::from(value))?,
            DType::C64 => Array::scalar(Complex64 { re: value, im: 0.0 })?,
            _ => Array::scalar(value)?,
        }))
    }
}

impl Operand for i32 {
    /// Keeps the array's dtype; Bool arrays are promoted to I32.
    fn operand<'a>(&'a self, like: &Array) -> Result<Cow<'a, Array>> {
        let value = *self;
        Ok(Cow::Owned(match like.dtype() {
            DType::Bool | DType::I32 => Array::scalar(value)?,
            dtype if dtype.is_float() || dtype == DType::C64 => {
                return (value as f32).operand(like).map(|array| Cow::Owned(array.into_owned()));
            }
            dtype => Array::scalar(value)?.astype(dtype)?,
        }))
    }
}

impl Operand for bool {
    fn operand<'a>(&'a self, _like: &Array) -> Result<Cow<'a, Array>> {
        Ok(Cow::Owned(Array::scalar(*self)?))
    }
}

/// The axes a reduction runs over.
pub trait Axes {
    /// The axes as numbers, given how many dimensions there are.
    fn axes(&self, ndim: usize) -> Cow<'_, [i32]>;
}

impl Axes for i32 {
    fn axes(&self, _ndim: usize) -> Cow<'_, [i32]> {
        Cow::Owned(vec![*self])
    }
}

impl Axes for RangeFull {
    fn axes(&self, ndim: usize) -> Cow<'_, [i32]> {
        Cow::Owned((0..ndim as i32).collect())
    }
}

impl<const N: usize> Axes for [i32; N] {
    fn axes(&self, _ndim: usize) -> Cow<'_, [i32]> {
        Cow::Borrowed(self)
    }
}

impl Axes for &[i32] {
    fn axes(&self, _ndim: usize) -> Cow<'_, [i32]> {
        Cow::Borrowed(self)
    }
}
