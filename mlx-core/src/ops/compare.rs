//! Comparison and logic, elementwise. Results are Bool.

use std::borrow::Cow;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ffi::op;
use crate::ops::reduce::or_if_empty;
use crate::ops::{Operand, integers};

/// The other operand of a comparison with an array of integers.
enum Other<'a> {
    Array(Cow<'a, Array>),
    /// A number that the dtype cannot hold, or that is not an integer: the comparison has this answer for all elements.
    Answer(bool),
}

/// How a comparison with a number, which may lie between two integers, becomes a comparison with an integer.
struct Order {
    /// Turns the number into an integer; `None`: numbers between integers have the answer `between`.
    round: Option<fn(f64) -> f64>,
    between: bool,
    /// The answers if the number is below or above the dtype's range, and for NaN.
    below: bool,
    above: bool,
    nan: bool,
}

impl Order {
    fn other<'a>(&self, array: &Array, other: &'a impl Operand) -> Result<Other<'a>> {
        let dtype = array.dtype();
        let (Some(range), Some(number)) = (integers(dtype), other.number()) else {
            return other.operand(array).map(Other::Array);
        };
        let value = match (other.integer(), self.round) {
            (Some(value), _) => i128::from(value),
            (None, _) if number.is_nan() => return Ok(Other::Answer(self.nan)),
            (None, Some(round)) => round(number) as i128,
            (None, None) if number.fract() == 0.0 => number as i128,
            (None, None) => return Ok(Other::Answer(self.between)),
        };
        let like = if dtype == DType::Bool {
            DType::I32
        } else {
            dtype
        };
        Ok(if value < *range.start() {
            Other::Answer(self.below)
        } else if value > *range.end() {
            Other::Answer(self.above)
        } else if let Ok(value) = i64::try_from(value) {
            Other::Array(Cow::Owned(value.to_array(like)?.into_owned()))
        } else {
            // Only U64 has numbers above I64's range.
            Other::Array(Cow::Owned(Array::scalar(value as u64)?))
        })
    }
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident = $c:ident as $short:ident, $order:expr;)*) => { impl Array { $(
        $(#[$doc])*
        ///
        /// Elementwise; shapes broadcast, dtypes promote. A number beside integers is compared by
        /// its value, whether the dtype can hold it or not.
        ///
        /// # Errors
        /// The shapes do not broadcast, or MLX refuses the dtypes.
        pub fn $name(&self, other: impl Operand) -> Result<Array> {
            match $order.other(self, &other)? {
                Other::Array(other) => op!($c(self, *other)),
                // Integers equal themselves, so the answer is true everywhere.
                Other::Answer(true) => op!(mlx_equal(self, self)),
                Other::Answer(false) => op!(mlx_not_equal(self, self)),
            }
        }

        #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), "), by the name of Rust's method.")]
        ///
        /// # Errors
        #[doc = concat!("Those of [`", stringify!($name), "`](Self::", stringify!($name), ").")]
        pub fn $short(&self, other: impl Operand) -> Result<Array> {
            self.$name(other)
        }
    )* } };
}

const fn order(round: Option<fn(f64) -> f64>, [between, below, above, nan]: [bool; 4]) -> Order {
    Order {
        round,
        between,
        below,
        above,
        nan,
    }
}

comparisons! {
    /// `self == other`; NaN equals nothing.
    equal = mlx_equal as eq, order(None, [false; 4]);
    /// `self != other`.
    not_equal = mlx_not_equal as ne, order(None, [true; 4]);
    /// `self < other`.
    less = mlx_less as lt, order(Some(f64::ceil), [false, false, true, false]);
    /// `self <= other`.
    less_equal = mlx_less_equal as le, order(Some(f64::floor), [false, false, true, false]);
    /// `self > other`.
    greater = mlx_greater as gt, order(Some(f64::floor), [false, true, false, false]);
    /// `self >= other`.
    greater_equal = mlx_greater_equal as ge, order(Some(f64::ceil), [false, true, false, false]);
}

macro_rules! logic {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => { impl Array { $(
        $(#[$doc])*
        ///
        /// Elementwise; shapes broadcast.
        ///
        /// # Errors
        /// The shapes do not broadcast.
        pub fn $name(&self, other: impl Operand) -> Result<Array> {
            let other = match other.number() {
                Some(number) => Cow::Owned(Array::scalar(number != 0.0)?),
                None => other.operand(self)?,
            };
            op!($c(self, *other))
        }
    )* } };
}

logic! {
    /// Whether both are non-zero.
    logical_and = mlx_logical_and;
    /// Whether either is non-zero.
    logical_or = mlx_logical_or;
    /// Whether exactly one is non-zero.
    logical_xor = mlx_logical_xor;
}

impl Array {
    /// Whether `|self - other| <= 1e-8 + 1e-5 * |other|`, elementwise; shapes broadcast. NaN is close to nothing.
    ///
    /// # Errors
    /// The shapes do not broadcast.
    pub fn isclose(&self, other: impl Operand) -> Result<Array> {
        self.isclose_with(other, 1e-5, 1e-8, false)
    }

    /// Whether `|self - other| <= atol + rtol * |other|`, elementwise; shapes broadcast. Integers are
    /// compared as F32.
    ///
    /// # Errors
    /// The shapes do not broadcast.
    pub fn isclose_with(
        &self,
        other: impl Operand,
        rtol: f64,
        atol: f64,
        equal_nan: bool,
    ) -> Result<Array> {
        // Differences of unsigned integers would wrap.
        let real = |array: &Array| {
            let exact = integers(array.dtype()).is_some();
            if exact {
                array.astype(DType::F32)
            } else {
                Ok(array.clone())
            }
        };
        let this = real(self)?;
        let other = real(&*other.operand(&this)?)?;
        op!(mlx_isclose(this, other, rtol, atol, equal_nan))
    }

    /// Whether all elements are close as in [`isclose`](Self::isclose): a Bool scalar.
    ///
    /// # Errors
    /// The shapes do not broadcast.
    pub fn allclose(&self, other: impl Operand) -> Result<Array> {
        self.allclose_with(other, 1e-5, 1e-8, false)
    }

    /// Whether all elements are close as in [`isclose_with`](Self::isclose_with): a Bool scalar.
    ///
    /// # Errors
    /// The shapes do not broadcast.
    pub fn allclose_with(
        &self,
        other: impl Operand,
        rtol: f64,
        atol: f64,
        equal_nan: bool,
    ) -> Result<Array> {
        let other = other.operand(self)?;
        self.isclose_with(&*other, rtol, atol, equal_nan)?.all_all()
    }

    /// Whether shape and all elements are equal: a Bool scalar. NaN equals nothing.
    ///
    /// # Errors
    /// None that is known.
    pub fn array_equal(&self, other: &Array) -> Result<Array> {
        self.array_equal_with(other, false)
    }

    /// As [`array_equal`](Self::array_equal); NaN equals NaN if `equal_nan`.
    ///
    /// # Errors
    /// None that is known.
    pub fn array_equal_with(&self, other: &Array, equal_nan: bool) -> Result<Array> {
        let equal = op!(mlx_array_equal(self, other, equal_nan))?;
        let same_shape = self.shape() == other.shape();
        or_if_empty(self, equal, if same_shape { 1.0 } else { 0.0 })
    }
}
