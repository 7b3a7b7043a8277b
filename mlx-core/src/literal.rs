//! Arrays of numbers in the source of a program, or in Rust's vectors.

use std::borrow::Cow;
use std::convert::Infallible;

use crate::array::Array;
use crate::dtype::{Complex64, Element};
use crate::error::{Error, ErrorKind, Result};

/// An array of numbers: `array![1, 2]` is `[2]`, `array![[1, 2], [3, 4]]` is `[2, 2]`, up to any depth.
///
/// The elements may be any expressions of one type. As in Python's MLX, whole numbers are I32, and numbers with a point
/// F32: those of Rust's type `f64` too (see [`Literal`]). Rows of different lengths do not compile.
///
/// ```
/// use mlx_core::{DType, array};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![[1, 2], [3, 4]];
/// assert_eq!((x.shape(), x.dtype()), (&[2, 2][..], DType::I32));
/// assert_eq!(array![0.5, 1.5].to_vec::<f32>()?, [0.5, 1.5]);
/// assert_eq!(array![true, false].dtype(), DType::Bool);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// As [`Array::from`]: there is no memory, or the library of MLX is missing.
#[macro_export]
macro_rules! array {
    () => { $crate::Array::from([0f32; 0]) };
    ($($element:expr),+ $(,)?) => { $crate::Array::from([$($element),+]) };
}

/// A number of which arrays are made by [`array!`](crate::array!) and [`Array::from`].
///
/// | type | dtype |
/// |---|---|
/// | `f64` | F32, as in Python's MLX; [`Array::from_slice`] keeps F64 |
/// | any other [`Element`] | its own: `i32` is I32, `half::bf16` is BF16 |
#[diagnostic::on_unimplemented(
    message = "arrays cannot be made of `{Self}`",
    label = "not a number, or nested arrays of numbers",
    note = "an array is made of numbers, arrays of one length, a vector or a slice: `Array::from(vec)`, `array![[1, 2], [3, 4]]`",
    note = "vectors of vectors may be ragged: `Array::try_from(vec![vec![1, 2], vec![3, 4]])?`"
)]
pub trait Literal: Copy + 'static {
    /// The type of the elements.
    type Element: Element;

    /// The elements.
    fn elements(numbers: &[Self]) -> Cow<'_, [Self::Element]>;
}

impl Literal for f64 {
    type Element = f32;

    fn elements(numbers: &[Self]) -> Cow<'_, [f32]> {
        numbers.iter().map(|&number| number as f32).collect()
    }
}

macro_rules! literals {
    ($($ty:ty),*) => { $( impl Literal for $ty {
        type Element = $ty;

        fn elements(numbers: &[Self]) -> Cow<'_, [$ty]> {
            Cow::Borrowed(numbers)
        }
    } )* };
}
literals!(
    bool,
    u8,
    u16,
    u32,
    u64,
    i8,
    i16,
    i32,
    i64,
    half::f16,
    half::bf16,
    f32,
    Complex64
);

/// A number, or arrays of numbers within arrays. All of one depth have one length.
#[diagnostic::on_unimplemented(
    message = "arrays cannot be made of `{Self}`",
    label = "not a number, or nested arrays of numbers",
    note = "an array is made of numbers, arrays of one length, a vector or a slice: `Array::from(vec)`, `array![[1, 2], [3, 4]]`",
    note = "vectors of vectors may be ragged: `Array::try_from(vec![vec![1, 2], vec![3, 4]])?`"
)]
pub trait Nested {
    /// The numbers.
    type Number: Literal;

    /// Appends the lengths of the levels, outermost first.
    fn lengths(shape: &mut Vec<usize>);

    /// The numbers of a list, in order.
    fn numbers(list: &[Self]) -> &[Self::Number]
    where
        Self: Sized;
}

impl<T: Literal> Nested for T {
    type Number = T;

    fn lengths(_shape: &mut Vec<usize>) {}

    fn numbers(list: &[T]) -> &[T] {
        list
    }
}

impl<T: Nested, const N: usize> Nested for [T; N] {
    type Number = T::Number;

    fn lengths(shape: &mut Vec<usize>) {
        shape.push(N);
        T::lengths(shape);
    }

    fn numbers(list: &[Self]) -> &[T::Number] {
        T::numbers(list.as_flattened())
    }
}

/// The array of a list of numbers or nested arrays, with `outer` in front of the shape of each.
fn listed<T: Nested>(list: &[T], outer: &[usize]) -> Array {
    let mut shape = outer.to_vec();
    T::lengths(&mut shape);
    made(Array::from_slice(
        &T::Number::elements(T::numbers(list)),
        shape,
    ))
}

fn made(array: Result<Array>) -> Array {
    array.unwrap_or_else(|error| panic!("Array::from: {error}"))
}

/// A number becomes an array without dimensions, nested arrays of numbers become one of as many dimensions.
///
/// ```
/// use mlx_core::Array;
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(Array::from(3.0).ndim(), 0);
/// assert_eq!(Array::from([[1, 2, 3], [4, 5, 6]]).shape(), [2, 3]);
/// assert_eq!(Array::from(vec![1.0f32, 2.0]).shape(), [2]);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// There is no memory, the array exceeds the limit of [`memory::set_array_limit`](crate::memory::set_array_limit), or
/// the library of MLX is missing. [`Array::from_slice`] returns these as errors.
impl<T: Nested> From<T> for Array {
    fn from(value: T) -> Self {
        listed(std::slice::from_ref(&value), &[])
    }
}

/// `[len]`. Panics as `From` of a number does.
impl<T: Nested> From<Vec<T>> for Array {
    fn from(list: Vec<T>) -> Self {
        listed(&list, &[list.len()])
    }
}

/// `[number of items]`. Panics as `From` of a number does.
///
/// ```
/// use mlx_core::Array;
///
/// # fn main() -> mlx_core::Result<()> {
/// let squares: Array = (0..4).map(|n| n * n).collect();
/// assert_eq!(squares.to_vec::<i32>()?, [0, 1, 4, 9]);
/// # Ok(())
/// # }
/// ```
impl<T: Nested> FromIterator<T> for Array {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self::from(items.into_iter().collect::<Vec<T>>())
    }
}

/// `[len]`. Panics as `From` of a number does.
impl<T: Nested> From<&Vec<T>> for Array {
    fn from(list: &Vec<T>) -> Self {
        listed(list, &[list.len()])
    }
}

/// `[len]`. Panics as `From` of a number does.
impl<T: Nested> From<&[T]> for Array {
    fn from(list: &[T]) -> Self {
        listed(list, &[list.len()])
    }
}

/// `[N]`. Panics as `From` of a number does.
impl<T: Nested, const N: usize> From<&[T; N]> for Array {
    fn from(list: &[T; N]) -> Self {
        listed(list, &[list.len()])
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Appends the numbers of rows, which must be `length` each.
fn joined<T: Literal>(rows: &[Vec<T>], length: usize, out: &mut Vec<T::Element>) -> Result<()> {
    for (row, numbers) in rows.iter().enumerate() {
        if numbers.len() != length {
            let message = format!(
                "nested vectors must have one length: row {row} has {}, those before have {length}",
                numbers.len()
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        out.extend_from_slice(&T::elements(numbers));
    }
    Ok(())
}

/// The matrix of rows of one length: `[rows, columns]`.
impl<T: Literal> TryFrom<Vec<Vec<T>>> for Array {
    type Error = Error;

    fn try_from(rows: Vec<Vec<T>>) -> Result<Self> {
        let columns = rows.first().map_or(0, Vec::len);
        let mut numbers = Vec::new();
        joined(&rows, columns, &mut numbers)?;
        Array::from_slice(&numbers, (rows.len(), columns))
    }
}

/// The array of planes of one shape: `[planes, rows, columns]`.
impl<T: Literal> TryFrom<Vec<Vec<Vec<T>>>> for Array {
    type Error = Error;

    fn try_from(planes: Vec<Vec<Vec<T>>>) -> Result<Self> {
        let rows = planes.first().map_or(0, Vec::len);
        let columns = planes
            .first()
            .and_then(|rows| rows.first())
            .map_or(0, Vec::len);
        let mut numbers = Vec::new();
        for (at, plane) in planes.iter().enumerate() {
            if plane.len() != rows {
                let message = format!(
                    "nested vectors must have one length: plane {at} has {} rows, those before have {rows}",
                    plane.len()
                );
                return Err(Error::new(ErrorKind::Shape, message));
            }
            joined(plane, columns, &mut numbers)
                .map_err(|error| error.context(format_args!("plane {at}")))?;
        }
        Array::from_slice(&numbers, (planes.len(), rows, columns))
    }
}
