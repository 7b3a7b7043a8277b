//! Operations, grouped and named as in MLX.
//!
//! An operation is a method if it has a main array, and a function if it makes an array or takes a list. Methods that Python
//! has as functions are [`functions`] too: `x.softmax(-1)`, `softmax(&x, -1)`. Conventions:
//!
//! - **Operands.** Binary operations take `impl` [`Operand`]: an array, or a number, which takes
//!   the array's dtype (a plain `2.0` never promotes bf16 to f32). An integer that the dtype cannot
//!   hold is an error in arithmetic; comparisons compare it by value, as NumPy does.
//! - **Axes.** Reductions take `impl` [`Axes`]: `1`, `-1`, `[0, 2]`, `(0, 2)`, or `..` for all, which can be written as
//!   Python's `None`. Negative axes count from the end.
//! - **One axis** is `impl` [`Axis`]: a number, or `..` or `None` for the flattened array, which is Python's `axis=None`.
//! - **Arguments with a default** can be left out. The plain name takes what Python's call needs, and the axes of a
//!   reduction, scan, sort or join. `NAME_with` takes all arguments, in Python's order. `NAME_all` has no axis: it runs over
//!   all elements. Functions that make an array always take its dtype.
//! - **Shapes** broadcast as in NumPy.
//! - **Indices** inside arrays are checked when they are evaluated. An index out of range fails the
//!   evaluation.
//!
//! ```
//! use mlx_core::{DType, arange, array};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = arange(0, 6, 1, DType::F32)?.reshape((2, 3))?;
//! let y = (&x * &array![1.0f32, 0.0, 2.0])?; // shapes broadcast
//! assert_eq!(y.sum(1, false)?.to_vec::<f32>()?, [4.0, 13.0]);
//! # Ok(())
//! # }
//! ```

use std::borrow::{Borrow, Cow};
use std::ops::{RangeFull, RangeInclusive};

use crate::array::Array;
use crate::dtype::{Complex64, DType};
use crate::error::{Error, ErrorKind, Result};

/// Methods under further names, those of another library or of Rust's operators.
macro_rules! also_called {
    ($($also:ident = $name:ident($($arg:ident: $ty:ty),*), by $whose:literal;)*) => { $(
        #[doc = concat!("[`", stringify!($name), "`](Self::", stringify!($name), ") by the name of ", $whose, ".")]
        ///
        /// # Errors
        #[doc = concat!("Those of [`", stringify!($name), "`](Self::", stringify!($name), ").")]
        pub fn $also(&self, $($arg: $ty),*) -> Result<Array> {
            self.$name($($arg),*)
        }
    )* };
}

mod arguments;
pub(crate) mod checked;
pub mod compare;
pub mod conv;
pub mod create;
pub mod functions;
pub mod index;
pub mod math;
pub mod matmul;
pub mod quantize;
pub mod reduce;
pub mod scan;
pub mod scatter;
pub mod shape;
pub mod sort;
pub mod unary;

pub use arguments::{Limit, PadWidths, Sections};
pub use conv::{
    Conv, ConvGeneral, ConvTranspose, ConvolveMode, Sizes, conv1d, conv2d, conv3d, convolve,
    convolve_with,
};
pub use create::{
    Indexing, Number, arange, bartlett, blackman, diag, diag_with, empty, empty_like, eye,
    eye_with, full, full_like, hamming, hanning, identity, linspace, meshgrid, meshgrid_with, ones,
    ones_like, tri, tri_with, tril, tril_with, triu, triu_with, zeros, zeros_like,
};
pub use functions::*;
pub use index::Side;
pub use math::where_;
pub use matmul::{BlockMasks, einsum, einsum_path};
pub use quantize::{
    QuantMode, Quantized, Scheme, dequantize, dequantize_with, gather_qmm, gather_qmm_with,
    gather_qqmm, qqmm, quantize, quantize_with, quantized_matmul, quantized_matmul_with,
};
pub use shape::{PadMode, broadcast_arrays, broadcast_shapes, concat, concatenate, depends, stack};

/// The second operand of a binary operation: an array or a number.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither an array nor a number",
    label = "not an operand",
    note = "an operand is `&Array`, `Array`, a number or a `bool`: `x.add(&y)`, `&x + 1.0`",
    note = "a `Result<Array>` becomes an array by `?`: `x.add(y.exp()?)`; a vector or slice by `Array::from`"
)]
pub trait Operand {
    /// The dtype of an array. `None` for a number.
    fn dtype(&self) -> Option<DType> {
        None
    }

    /// The value of a number.
    fn number(&self) -> Option<f64> {
        None
    }

    /// The value of a number that is an integer.
    fn integer(&self) -> Option<i64> {
        None
    }

    /// This operand as an array: itself, or a scalar of `like`.
    ///
    /// An integer becomes any dtype but Bool (I32 then); a floating-point number becomes F32 beside
    /// integers and Bool.
    ///
    /// # Errors
    /// `like` cannot hold the integer, or the scalar array cannot be made.
    fn to_array(&self, like: DType) -> Result<Cow<'_, Array>>;

    /// This operand as an array. A number takes the dtype `like`.
    ///
    /// # Errors
    /// The scalar array cannot be made.
    fn operand(&self, like: &Array) -> Result<Cow<'_, Array>> {
        self.to_array(like.dtype())
    }
}

impl Operand for Array {
    fn dtype(&self) -> Option<DType> {
        Some(Array::dtype(self))
    }

    fn to_array(&self, _like: DType) -> Result<Cow<'_, Array>> {
        Ok(Cow::Borrowed(self))
    }
}

impl<T: Operand> Operand for &T {
    fn dtype(&self) -> Option<DType> {
        (**self).dtype()
    }

    fn number(&self) -> Option<f64> {
        (**self).number()
    }

    fn integer(&self) -> Option<i64> {
        (**self).integer()
    }

    fn to_array(&self, like: DType) -> Result<Cow<'_, Array>> {
        (**self).to_array(like)
    }
}

macro_rules! float_operand {
    ($($ty:ty),*) => { $( impl Operand for $ty {
        fn number(&self) -> Option<f64> {
            Some(*self as f64)
        }

        fn to_array(&self, like: DType) -> Result<Cow<'_, Array>> {
            let value = *self;
            let array = match like {
                DType::F16 => Array::scalar(half::f16::from_f64(value.into())),
                DType::BF16 => Array::scalar(half::bf16::from_f64(value.into())),
                DType::F64 => Array::scalar(f64::from(value)),
                DType::C64 => Array::scalar(Complex64 { re: value as f32, im: 0.0 }),
                _ => Array::scalar(value as f32),
            };
            array.map(Cow::Owned)
        }
    } )* };
}
float_operand!(f32, f64);

macro_rules! half_operand {
    ($($ty:ty),*) => { $( impl Operand for $ty {
        fn number(&self) -> Option<f64> {
            Some(self.to_f64())
        }

        fn to_array(&self, like: DType) -> Result<Cow<'_, Array>> {
            let value = self.to_f32();
            Ok(Cow::Owned(value.to_array(like)?.into_owned()))
        }
    } )* };
}
half_operand!(half::f16, half::bf16);

macro_rules! integer_operand {
    ($($ty:ty),*) => { $( impl Operand for $ty {
        fn number(&self) -> Option<f64> {
            Some(*self as f64)
        }

        fn integer(&self) -> Option<i64> {
            Some((*self).into())
        }

        fn to_array(&self, like: DType) -> Result<Cow<'_, Array>> {
            let value = *self;
            require_fit("a number", i128::from(value), like)?;
            let array = match like {
                DType::U8 => Array::scalar(value as u8),
                DType::U16 => Array::scalar(value as u16),
                DType::U32 => Array::scalar(value as u32),
                DType::U64 => Array::scalar(value as u64),
                DType::I8 => Array::scalar(value as i8),
                DType::I16 => Array::scalar(value as i16),
                DType::I64 => Array::scalar(value as i64),
                DType::Bool | DType::I32 => Array::scalar(value as i32),
                float => return (value as f64).to_array(float).map(|array| Cow::Owned(array.into_owned())),
            };
            array.map(Cow::Owned)
        }
    } )* };
}
integer_operand!(i8, i16, i32, i64, u8, u16, u32);

impl Operand for usize {
    fn number(&self) -> Option<f64> {
        Some(*self as f64)
    }

    fn integer(&self) -> Option<i64> {
        i64::try_from(*self).ok()
    }

    fn to_array(&self, like: DType) -> Result<Cow<'_, Array>> {
        let value = i64::try_from(*self).map_err(|_| {
            let message = format!("a number, {self}, exceeds {}", i64::MAX);
            Error::new(ErrorKind::Invalid, message)
        })?;
        Ok(Cow::Owned(value.to_array(like)?.into_owned()))
    }
}

impl Operand for bool {
    fn number(&self) -> Option<f64> {
        Some((*self).into())
    }

    fn to_array(&self, _like: DType) -> Result<Cow<'_, Array>> {
        Array::scalar(*self).map(Cow::Owned)
    }
}

/// The integers that a number beside an array of `dtype` may have: the range of the dtype, or of I32 beside Bool.
/// `None` for floating point.
pub(crate) fn integers(dtype: DType) -> Option<RangeInclusive<i128>> {
    macro_rules! of {
        ($ty:ty) => {
            Some(<$ty>::MIN.into()..=<$ty>::MAX.into())
        };
    }
    match dtype {
        DType::U8 => of!(u8),
        DType::U16 => of!(u16),
        DType::U32 => of!(u32),
        DType::U64 => of!(u64),
        DType::I8 => of!(i8),
        DType::I16 => of!(i16),
        DType::Bool | DType::I32 => of!(i32),
        DType::I64 => of!(i64),
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::C64 => None,
    }
}

/// Refuses an integer that `dtype` cannot hold.
pub(crate) fn require_fit(what: &str, value: i128, dtype: DType) -> Result<()> {
    match integers(dtype) {
        Some(range) if !range.contains(&value) => {
            let (least, most) = range.into_inner();
            let message =
                format!("{what}, {value}, is outside {dtype}, which holds {least} to {most}");
            Err(Error::new(ErrorKind::Invalid, message))
        }
        _ => Ok(()),
    }
}

/// Two operands, either of which may be a number. A number adopts the dtype of the other operand.
pub(crate) fn pair<'a>(
    a: &'a impl Operand,
    b: &'a impl Operand,
    otherwise: DType,
) -> Result<(Cow<'a, Array>, Cow<'a, Array>)> {
    let like = a.dtype().or(b.dtype()).unwrap_or(otherwise);
    Ok((a.to_array(like)?, b.to_array(like)?))
}

/// The axes an operation runs over.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name axes",
    label = "not axes",
    note = "axes are a number, `..` or `None` for all, or a tuple, array, slice or vector of `i32`: `x.sum(-1, false)`, `x.sum(.., false)`, `x.sum([0, 2], false)`"
)]
pub trait Axes {
    /// The axes as numbers, given how many dimensions there are.
    fn axes(&self, ndim: usize) -> Cow<'_, [i32]>;

    /// Whether this is `..`.
    fn is_all(&self) -> bool {
        false
    }
}

/// The one axis an operation runs along, or `..` or `None`: the array is flattened first.
///
/// ```
/// use mlx_core::array;
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![[1, 2], [3, 4]];
/// for axis in 0..x.ndim() {
///     assert_eq!(x.cumsum(axis)?.shape(), [2, 2]);
/// }
/// assert_eq!(x.cumsum(..)?.to_vec::<i32>()?, [1, 3, 6, 10]);
/// assert_eq!(x.cumsum(None)?.to_vec::<i32>()?, [1, 3, 6, 10]);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name an axis",
    label = "not an axis",
    note = "an axis is a number, or `..` or `None` for the flattened array: `x.cumsum(-1)`, `x.cumsum(..)`"
)]
pub trait Axis {
    /// The number of the axis, from the end if negative. `None` for `..`.
    fn axis(&self) -> Option<i32>;
}

macro_rules! numbers_of_axes {
    ($($ty:ty),*) => { $(
        impl Axis for $ty {
            fn axis(&self) -> Option<i32> {
                // No array has an axis of such a number.
                Some(i32::try_from(*self).unwrap_or(i32::MAX))
            }
        }

        impl Axes for $ty {
            fn axes(&self, _ndim: usize) -> Cow<'_, [i32]> {
                Cow::Owned(self.axis().into_iter().collect())
            }
        }
    )* };
}
numbers_of_axes!(i32, u32, i64, usize);

impl Axis for Option<i32> {
    fn axis(&self) -> Option<i32> {
        *self
    }
}

/// Python's `axis=None`: all axes.
impl Axes for Option<i32> {
    fn axes(&self, ndim: usize) -> Cow<'_, [i32]> {
        match self {
            Some(axis) => Cow::Owned(vec![*axis]),
            None => Cow::Owned((0..ndim as i32).collect()),
        }
    }

    fn is_all(&self) -> bool {
        self.is_none()
    }
}

impl Axis for RangeFull {
    fn axis(&self) -> Option<i32> {
        None
    }
}

/// The array and the axis that an operation along `axis` runs over: the flattened array and 0 for `..`.
pub(crate) fn along(array: &Array, axis: impl Axis) -> Result<(Cow<'_, Array>, i32)> {
    match axis.axis() {
        Some(axis) => Ok((Cow::Borrowed(array), axis)),
        None if array.ndim() == 1 => Ok((Cow::Borrowed(array), 0)),
        None => Ok((Cow::Owned(array.flatten()?), 0)),
    }
}

impl Axes for RangeFull {
    fn axes(&self, ndim: usize) -> Cow<'_, [i32]> {
        Cow::Owned((0..ndim as i32).collect())
    }

    fn is_all(&self) -> bool {
        true
    }
}

impl<const N: usize> Axes for [i32; N] {
    fn axes(&self, _ndim: usize) -> Cow<'_, [i32]> {
        Cow::Borrowed(self)
    }
}

impl<const N: usize> Axes for &[i32; N] {
    fn axes(&self, _ndim: usize) -> Cow<'_, [i32]> {
        Cow::Borrowed(*self)
    }
}

impl Axes for &[i32] {
    fn axes(&self, _ndim: usize) -> Cow<'_, [i32]> {
        Cow::Borrowed(self)
    }
}

impl Axes for Vec<i32> {
    fn axes(&self, _ndim: usize) -> Cow<'_, [i32]> {
        Cow::Borrowed(self)
    }
}

macro_rules! tuples_of_axes {
    (@ $index:tt) => { i32 };
    ($(($($index:tt)+))*) => { $(
        impl Axes for ($(tuples_of_axes!(@ $index),)+) {
            fn axes(&self, _ndim: usize) -> Cow<'_, [i32]> {
                Cow::Owned(vec![$(self.$index),+])
            }
        }
    )* };
}
tuples_of_axes! {
    (0)
    (0 1)
    (0 1 2)
    (0 1 2 3)
    (0 1 2 3 4)
    (0 1 2 3 4 5)
}

impl Axes for &Vec<i32> {
    fn axes(&self, _ndim: usize) -> Cow<'_, [i32]> {
        Cow::Borrowed(self)
    }
}

/// Borrows every array of a list.
pub(crate) fn borrowed<A: Borrow<Array>>(arrays: &[A]) -> impl Iterator<Item = &Array> {
    arrays.iter().map(Borrow::borrow)
}

/// Refuses an argument outside its domain, by name.
pub(crate) fn require(
    ok: bool,
    op: &str,
    argument: &str,
    expected: &str,
    found: impl std::fmt::Debug,
) -> Result<()> {
    if ok {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!("{op}: {argument} must be {expected}, given {found:?}"),
    ))
}

/// Refuses a size that does not fit an `i32` dimension, because MLX would let it overflow.
pub(crate) fn dimension(op: &str, size: Option<i64>) -> Result<i32> {
    size.and_then(|size| i32::try_from(size).ok())
        .ok_or_else(|| {
            Error::new(
                ErrorKind::Shape,
                format!("{op}: a dimension of the result exceeds {}", i32::MAX),
            )
        })
}
