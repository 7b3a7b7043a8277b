//! What can be given as a shape.

use std::borrow::Cow;

use crate::error::{Error, ErrorKind, Result};

/// A shape: the sizes of the dimensions, outermost first.
///
/// | given | shape |
/// |---|---|
/// | `()` | that of a scalar, without dimensions |
/// | `5`, `n` | one dimension |
/// | `(2, 3)`, `(n, 3)` | a tuple of up to eight numbers, each of any type below |
/// | `[2, 3]`, `&[2, 3]` | an array of numbers of one type |
/// | `x.shape()`, `&sizes[1..]`, `vec`, `&vec` | a slice or vector |
///
/// Numbers are `i32`, `u32`, `i64` or `usize`. Functions for which the number of elements is fixed,
/// such as [`reshape`](crate::Array::reshape), compute one size that is given as -1.
///
/// ```
/// use mlx_core::{Array, DType::F32};
///
/// # fn main() -> mlx_core::Result<()> {
/// let rows: usize = 2;
/// let x = Array::zeros((rows, 6), F32)?;
/// assert_eq!(x.reshape((-1, 4))?.shape(), [3, 4]);
/// assert_eq!(x.reshape(&[3, 2, 2])?.shape(), [3, 2, 2]);
/// assert_eq!(Array::zeros((), F32)?.ndim(), 0);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a shape",
    label = "not a shape",
    note = "give a number, a tuple, or an array, slice or vector of numbers: `5`, `(2, 3)`, `[2, 3]`, `&[2, 3]`, `x.shape()`",
    note = "the numbers are `i32`, `u32`, `i64` or `usize`; `()` is the shape of a scalar"
)]
pub trait IntoShape {
    /// The sizes as MLX takes them.
    ///
    /// # Errors
    /// A size exceeds `i32::MAX`.
    fn sizes(&self) -> Result<Cow<'_, [i32]>>;
}

/// A number that can be a size: `i32`, `u32`, `i64` or `usize`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the size of a dimension",
    label = "not a size",
    note = "sizes are `i32`, `u32`, `i64` or `usize`; `()` is the shape of a scalar"
)]
pub trait Size: Copy {
    /// The size as MLX takes it.
    ///
    /// # Errors
    /// The size exceeds `i32::MAX`.
    fn size(self) -> Result<i32>;

    /// All of `sizes`.
    ///
    /// # Errors
    /// A size exceeds `i32::MAX`.
    fn all(sizes: &[Self]) -> Result<Cow<'_, [i32]>> {
        let sizes: Result<_> = sizes.iter().map(|&size| size.size()).collect();
        sizes.map(Cow::Owned)
    }
}

impl Size for i32 {
    fn size(self) -> Result<i32> {
        Ok(self)
    }

    fn all(sizes: &[Self]) -> Result<Cow<'_, [i32]>> {
        Ok(Cow::Borrowed(sizes))
    }
}

impl IntoShape for i32 {
    fn sizes(&self) -> Result<Cow<'_, [i32]>> {
        Ok(Cow::Borrowed(std::slice::from_ref(self)))
    }
}

macro_rules! other_sizes {
    ($($ty:ty),*) => { $(
        impl Size for $ty {
            fn size(self) -> Result<i32> {
                i32::try_from(self).map_err(|_| {
                    let message = format!("a dimension of {self} exceeds {}", i32::MAX);
                    Error::new(ErrorKind::Shape, message)
                })
            }
        }

        impl IntoShape for $ty {
            fn sizes(&self) -> Result<Cow<'_, [i32]>> {
                Ok(Cow::Owned(vec![self.size()?]))
            }
        }
    )* };
}
other_sizes!(u32, i64, usize);

impl<S: Size> IntoShape for [S] {
    fn sizes(&self) -> Result<Cow<'_, [i32]>> {
        S::all(self)
    }
}

impl<S: Size, const N: usize> IntoShape for [S; N] {
    fn sizes(&self) -> Result<Cow<'_, [i32]>> {
        S::all(self)
    }
}

impl<S: Size> IntoShape for Vec<S> {
    fn sizes(&self) -> Result<Cow<'_, [i32]>> {
        S::all(self)
    }
}

impl IntoShape for Cow<'_, [i32]> {
    fn sizes(&self) -> Result<Cow<'_, [i32]>> {
        Ok(Cow::Borrowed(self))
    }
}

impl<T: IntoShape + ?Sized> IntoShape for &T {
    fn sizes(&self) -> Result<Cow<'_, [i32]>> {
        (**self).sizes()
    }
}

impl IntoShape for () {
    fn sizes(&self) -> Result<Cow<'_, [i32]>> {
        Ok(Cow::Borrowed(&[]))
    }
}

macro_rules! tuples {
    ($($name:ident)*) => { tuples!(@upto () $($name)*); };
    (@upto ($($done:ident)*)) => {};
    (@upto ($($done:ident)*) $name:ident $($rest:ident)*) => {
        impl<$($done: Size,)* $name: Size> IntoShape for ($($done,)* $name,) {
            fn sizes(&self) -> Result<Cow<'_, [i32]>> {
                #[allow(non_snake_case)]
                let ($($done,)* $name,) = *self;
                Ok(Cow::Owned(vec![$($done.size()?,)* $name.size()?]))
            }
        }
        tuples!(@upto ($($done)* $name) $($rest)*);
    };
}
tuples!(A B C D E F G H);
