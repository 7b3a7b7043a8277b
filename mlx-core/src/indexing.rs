//! Indices of arrays: [`i`](Array::i) reads, [`set`](Array::set) and [`at`](Array::at) give a changed array.
//!
//! ```
//! use mlx_core::{Array, DType::F32, Ellipsis, NewAxis, array, step};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = Array::arange(0, 24, 1, F32)?.reshape((2, 3, 4))?;
//! let ids = array![2, 0];
//! assert_eq!(x.i(0)?.shape(), [3, 4]);
//! assert_eq!(x.i((.., -1, 1..3))?.shape(), [2, 2]);
//! assert_eq!(x.i((Ellipsis, NewAxis, ..2))?.shape(), [2, 3, 1, 2]);
//! assert_eq!(x.i((.., &ids, step(.., -2)))?.shape(), [2, 2, 2]);
//! assert_eq!(x.i(&x.gt(20)?)?.to_vec::<f32>()?, [21.0, 22.0, 23.0]);
//!
//! let y = x.set((.., 0), -1.0)?;
//! assert_eq!(y.i((1, 0))?.to_vec::<f32>()?, [-1.0; 4]);
//! let counts = Array::zeros(3, F32)?.at(&array![2, 0, 2]).add(1)?;
//! assert_eq!(counts.to_vec::<f32>()?, [1.0, 0.0, 2.0]);
//! # Ok(())
//! # }
//! ```
//!
//! An index is one of these, or a tuple of up to eight of them, one after another for the dimensions from the first on:
//!
//! | index | dimensions it takes | dimensions of the result |
//! |---|---|---|
//! | an integer | one | none |
//! | a range (`..`, `1..3`, `..=-2`, `-2..`), [`step`]`(range, by)` | one | one |
//! | [`Ellipsis`] | all that are left | the same |
//! | [`NewAxis`] | none | one of size 1 |
//! | an array of integers, or a list (`[0, 2]`, a slice, a vector) | one | those of the array |
//! | an array of Bool | those of the array | one: where it is true |
//!
//! Negative positions count from the end. Ends of ranges outside the array are clamped, as in Python. Several index
//! arrays broadcast together, and integers beside them count as index arrays, as in NumPy: their dimensions stand where the
//! first index array stands, or come first if a range or a new axis stands between them.
//!
//! An integer or a list out of range is an error at once. Numbers inside arrays are checked when the result is
//! evaluated. An array of Bool is evaluated at once, because the result's shape depends on it; so `vmap` and `compile`
//! refuse it. [`set`](Array::set) and [`at`](Array::at) do not evaluate a mask that is the only index beside `..`, with
//! one value for all its places.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};

mod plan;
mod read;
mod search;
mod write;

pub(crate) use read::read;
pub(crate) use search::{masked_select, nonzero, unique_all, unique_of_size};
pub(crate) use write::set;

pub use search::Unique;
pub use write::At;

/// A new dimension of size 1 in an index. Python calls it `None` or `newaxis`.
#[doc(alias = "newaxis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewAxis;

/// All dimensions that the other parts of an index leave. Python writes it `...`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ellipsis;

/// Every `by`-th position of a range, backwards if `by` is negative: Python's `start:stop:by`.
///
/// A range runs from the position before the dots to the one behind them: `step(5..1, -2)` names 5 and 3.
/// `step(.., -1)` reverses a dimension.
///
/// ```
/// use mlx_core::{array, step};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![0, 1, 2, 3, 4, 5];
/// assert_eq!(x.i(step(1.., 2))?.to_vec::<i32>()?, [1, 3, 5]);
/// assert_eq!(x.i(step(.., -2))?.to_vec::<i32>()?, [5, 3, 1]);
/// # Ok(())
/// # }
/// ```
pub fn step<R: IndexRange>(range: R, by: i64) -> Step<R> {
    Step { range, by }
}

/// The result of [`step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<R> {
    range: R,
    by: i64,
}

/// Where a slice ends.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Never,
    Before(i64),
    Including(i64),
}

/// The bounds of a range.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    start: Option<i64>,
    stop: Stop,
}

/// One part of an index, as the code of this module reads it.
#[derive(Debug)]
pub struct Part<'a>(Kind<'a>);

#[derive(Debug)]
enum Kind<'a> {
    At(i64),
    Slice(Bounds, i64),
    NewAxis,
    Ellipsis,
    Array(&'a Array),
    List(Vec<i64>),
}

/// An index of an array: one [`IndexItem`] or a tuple of up to eight. The [module](crate::indexing) lists them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an index of an array",
    label = "not an index",
    note = "an index is an integer, a range, `step(range, by)`, `NewAxis`, `Ellipsis`, `&Array`, a list of integers, or a tuple of these: `x.i((.., -1, 1..3))`"
)]
pub trait IntoIndex {
    /// The parts, one after another.
    ///
    /// # Errors
    /// A number does not fit an `i64`.
    fn parts(&self) -> Result<Vec<Part<'_>>>;
}

/// One part of an index. The [module](crate::indexing) lists them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an index of an array",
    label = "not an index",
    note = "an index is an integer (`i32`, `i64`, `u32`, `usize`), a range of integers, `step(range, by)`, `NewAxis`, `Ellipsis`, `&Array` of integers or Bool, a list of integers, or a tuple of these: `x.i((.., -1, 1..3))`"
)]
pub trait IndexItem {
    /// The part.
    ///
    /// # Errors
    /// A number does not fit an `i64`.
    fn part(&self) -> Result<Part<'_>>;
}

/// An integer that can be a position: `i32`, `i64`, `u32` or `usize`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a position in an array",
    note = "positions are `i32`, `i64`, `u32` or `usize`"
)]
pub trait Position: Copy {
    /// The position. A negative one counts from the end.
    ///
    /// # Errors
    /// The position does not fit an `i64`.
    fn position(self) -> Result<i64>;
}

/// A range of positions.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a range of positions",
    note = "a range is `..`, `1..3`, `1..`, `..-1`, `..=2` or `0..=2`"
)]
pub trait IndexRange {
    /// Where it starts and stops.
    ///
    /// # Errors
    /// A position does not fit.
    fn bounds(&self) -> Result<Bounds>;
}

macro_rules! positions {
    ($($ty:ty),*) => { $(
        impl Position for $ty {
            fn position(self) -> Result<i64> {
                i64::try_from(self).map_err(|_| {
                    let message = format!("the position {self} exceeds {}", i64::MAX);
                    Error::new(ErrorKind::Invalid, message)
                })
            }
        }

        impl IndexItem for $ty {
            fn part(&self) -> Result<Part<'_>> {
                self.position().map(|at| Part(Kind::At(at)))
            }
        }
    )* };
}
positions!(i32, i64, u32, usize);

macro_rules! ranges {
    ($($ty:ty, $range:ident => $start:expr, $stop:expr;)*) => { $(
        impl<P: Position> IndexRange for $ty {
            fn bounds(&self) -> Result<Bounds> {
                let $range = self;
                Ok(Bounds { start: $start, stop: $stop })
            }
        }

        impl<P: Position> IndexItem for $ty {
            fn part(&self) -> Result<Part<'_>> {
                Ok(Part(Kind::Slice(self.bounds()?, 1)))
            }
        }
    )* };
}
ranges! {
    Range<P>, range => Some(range.start.position()?), Stop::Before(range.end.position()?);
    RangeFrom<P>, range => Some(range.start.position()?), Stop::Never;
    RangeTo<P>, range => None, Stop::Before(range.end.position()?);
    RangeInclusive<P>, range => Some(range.start().position()?), Stop::Including(range.end().position()?);
    RangeToInclusive<P>, range => None, Stop::Including(range.end.position()?);
}

impl IndexRange for RangeFull {
    fn bounds(&self) -> Result<Bounds> {
        Ok(Bounds {
            start: None,
            stop: Stop::Never,
        })
    }
}

impl IndexItem for RangeFull {
    fn part(&self) -> Result<Part<'_>> {
        Ok(Part(Kind::Slice(self.bounds()?, 1)))
    }
}

impl<R: IndexRange> IndexItem for Step<R> {
    fn part(&self) -> Result<Part<'_>> {
        Ok(Part(Kind::Slice(self.range.bounds()?, self.by)))
    }
}

impl IndexItem for NewAxis {
    fn part(&self) -> Result<Part<'_>> {
        Ok(Part(Kind::NewAxis))
    }
}

impl IndexItem for Ellipsis {
    fn part(&self) -> Result<Part<'_>> {
        Ok(Part(Kind::Ellipsis))
    }
}

impl IndexItem for Array {
    fn part(&self) -> Result<Part<'_>> {
        Ok(Part(Kind::Array(self)))
    }
}

impl<P: Position> IndexItem for [P] {
    fn part(&self) -> Result<Part<'_>> {
        let positions: Result<Vec<i64>> = self.iter().map(|at| at.position()).collect();
        Ok(Part(Kind::List(positions?)))
    }
}

impl<P: Position, const N: usize> IndexItem for [P; N] {
    fn part(&self) -> Result<Part<'_>> {
        self[..].part()
    }
}

impl<P: Position> IndexItem for Vec<P> {
    fn part(&self) -> Result<Part<'_>> {
        self[..].part()
    }
}

impl<T: IndexItem + ?Sized> IndexItem for &T {
    fn part(&self) -> Result<Part<'_>> {
        (**self).part()
    }
}

impl<T: IndexItem> IntoIndex for T {
    fn parts(&self) -> Result<Vec<Part<'_>>> {
        Ok(vec![self.part()?])
    }
}

impl IntoIndex for () {
    fn parts(&self) -> Result<Vec<Part<'_>>> {
        Ok(Vec::new())
    }
}

macro_rules! tuples {
    ($($name:ident)*) => { tuples!(@upto () $($name)*); };
    (@upto ($($done:ident)*)) => {};
    (@upto ($($done:ident)*) $name:ident $($rest:ident)*) => {
        impl<$($done: IndexItem,)* $name: IndexItem> IntoIndex for ($($done,)* $name,) {
            fn parts(&self) -> Result<Vec<Part<'_>>> {
                #[allow(non_snake_case)]
                let ($($done,)* $name,) = self;
                Ok(vec![$($done.part()?,)* $name.part()?])
            }
        }
        tuples!(@upto ($($done)* $name) $($rest)*);
    };
}
tuples!(A B C D E F G H);
