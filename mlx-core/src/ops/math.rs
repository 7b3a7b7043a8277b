//! Elementwise arithmetic of two arrays, or of an array and a number.
//!
//! Dtypes promote as in MLX: to the wider of a kind, integers to floating point, Bool to anything;
//! a number adopts the array's dtype (see [`Operand`]).
//!
//! ```
//! use mlx_core::array;
//!
//! # fn main() -> mlx_core::Result<()> {
//! assert_eq!(array![1, 2].add(&array![[10], [20]])?.to_vec::<i32>()?, [11, 12, 21, 22]);
//! # Ok(())
//! # }
//! ```

use std::borrow::Cow;
use std::ops::RangeInclusive;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ffi::op;
use crate::ops::{Limit, Operand, integers, ones, pair, require};

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => {
        /// # Arithmetic of two arrays, or of an array and a number
        ///
        /// Also as operators: `(&a + &b)?`, `(1.0 - &a)?`.
        ///
        /// ```
        /// use mlx_core::array;
        ///
        /// # fn main() -> mlx_core::Result<()> {
        /// let x = array![7, 8];
        /// assert_eq!(x.add(1)?.to_vec::<i32>()?, [8, 9]);
        /// assert_eq!((&x * &array![2, 3])?.to_vec::<i32>()?, [14, 24]);
        /// assert_eq!(x.maximum(8)?.to_vec::<i32>()?, [8, 8]);
        /// # Ok(())
        /// # }
        /// ```
        impl Array { $(
        $(#[$doc])*
        ///
        /// Elementwise; shapes broadcast, dtypes promote.
        ///
        /// # Errors
        /// The shapes do not broadcast, or MLX refuses the dtypes.
        pub fn $name(&self, other: impl Operand) -> Result<Array> {
            let other = other.operand(self)?;
            op!($c(self, *other))
        }
    )* } };
}

binary! {
    /// `self + other`.
    add = mlx_add;
    /// `self - other`.
    subtract = mlx_subtract;
    /// `self * other`.
    multiply = mlx_multiply;
    /// `self / other`; integers become F32.
    divide = mlx_divide;
    /// `self` to the power `other`. A negative integer exponent gives no meaningful integer.
    power = mlx_power;
    /// `ln(e^self + e^other)` without overflow.
    logaddexp = mlx_logaddexp;
    /// The angle of the point (`other`, `self`), in radians.
    #[doc(alias = "atan2")]
    arctan2 = mlx_arctan2;
    /// The bits that are set in both. Integers and Bool only.
    bitwise_and = mlx_bitwise_and;
    /// The bits that are set in either. Integers and Bool only.
    bitwise_or = mlx_bitwise_or;
    /// The bits that are set in exactly one. Integers and Bool only.
    bitwise_xor = mlx_bitwise_xor;
    /// `self << other`. Integers only; a shift by the width or more gives an unspecified value.
    #[doc(alias = "bitwise_left_shift")]
    left_shift = mlx_left_shift;
    /// `self >> other`. Integers only; a shift by the width or more gives an unspecified value.
    #[doc(alias = "bitwise_right_shift")]
    right_shift = mlx_right_shift;
}

/// # Floor division, remainders, bounds, and choices
///
/// ```
/// use mlx_core::array;
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![7, -7];
/// assert_eq!(x.floor_divide(2)?.to_vec::<i32>()?, [3, -4]);
/// assert_eq!(x.clip(0, 5)?.to_vec::<i32>()?, [5, 0]);
/// assert_eq!(x.gt(0)?.select(1, 2)?.to_vec::<i32>()?, [1, 2]);
/// # Ok(())
/// # }
/// ```
impl Array {
    also_called! {
        sub = subtract(other: impl Operand), by "Rust's operator";
        mul = multiply(other: impl Operand), by "Rust's operator";
        div = divide(other: impl Operand), by "Rust's operator";
        pow = power(exponent: impl Operand), by "Rust's method of integers";
        powi = power(exponent: i32), by "Rust's method of floating-point numbers";
        powf = power(exponent: impl Operand), by "Rust's method of floating-point numbers";
        clamp = clip(low: impl Limit, high: impl Limit), by "Rust's method";
        atan2 = arctan2(other: impl Operand), by "Rust's method";
        broadcast_add = add(other: impl Operand), by "candle";
        broadcast_sub = subtract(other: impl Operand), by "candle";
        broadcast_mul = multiply(other: impl Operand), by "candle";
        broadcast_div = divide(other: impl Operand), by "candle";
        where_cond = select(a: impl Operand, b: impl Operand), by "candle";
    }

    /// `self * factor + summand`: the method of candle.
    ///
    /// # Errors
    /// The dtype cannot hold an integer that is given, or the shapes do not broadcast.
    pub fn affine(&self, factor: impl Operand, summand: impl Operand) -> Result<Array> {
        self.multiply(factor)?.add(summand)
    }

    /// `self / other`, rounded down. An integer divided by zero gives 0.
    ///
    /// # Errors
    /// The shapes do not broadcast, or MLX refuses the dtypes.
    pub fn floor_divide(&self, other: impl Operand) -> Result<Array> {
        let divisor = other.operand(self)?;
        let divisor = safe_divisor(self, divisor, other.number(), false)?;
        op!(mlx_floor_divide(self, *divisor))
    }

    /// The remainder of a division, with the sign of `other`. For integers, a division by zero gives `self`.
    ///
    /// # Errors
    /// The shapes do not broadcast, or MLX refuses the dtypes.
    pub fn remainder(&self, other: impl Operand) -> Result<Array> {
        let divisor = other.operand(self)?;
        let divisor = safe_divisor(self, divisor, other.number(), false)?;
        op!(mlx_remainder(self, *divisor))
    }

    /// Quotient, rounded down, and remainder, which has the sign of `other`. For integers, a division by zero gives 0
    /// and `self`.
    ///
    /// # Errors
    /// The shapes do not broadcast, or MLX refuses the dtypes.
    pub fn divmod(&self, other: impl Operand) -> Result<(Array, Array)> {
        let divisor = other.operand(self)?;
        let divisor = safe_divisor(self, divisor, other.number(), true)?;
        let both = op!(vector mlx_divmod(self, *divisor))?;
        let [quotient, rest]: [Array; 2] = both.try_into().expect("divmod gives two arrays");
        Ok((quotient, rest))
    }

    /// The larger of the two; NaN if either is. An integer below the dtype's range changes nothing.
    ///
    /// Elementwise; shapes broadcast, dtypes promote.
    ///
    /// # Errors
    /// The shapes do not broadcast, MLX refuses the dtypes, or the dtype cannot hold a number above it.
    pub fn maximum(&self, other: impl Operand) -> Result<Array> {
        let other = bound(self, &other, Bound::Least)?;
        op!(mlx_maximum(self, *other))
    }

    /// The smaller of the two; NaN if either is. An integer above the dtype's range changes nothing.
    ///
    /// Elementwise; shapes broadcast, dtypes promote.
    ///
    /// # Errors
    /// The shapes do not broadcast, MLX refuses the dtypes, or the dtype cannot hold a number below it.
    pub fn minimum(&self, other: impl Operand) -> Result<Array> {
        let other = bound(self, &other, Bound::Most)?;
        op!(mlx_minimum(self, *other))
    }

    /// Clamps the elements to `lo ..= hi`; where `lo > hi` the result is `hi`. Integers beyond the dtype's range have
    /// no effect. `None` stands for no bound, as in Python: `x.clip(0.0, None)`.
    ///
    /// # Errors
    /// Both bounds are `None`, the shapes do not broadcast, or `lo` is above or `hi` below all of the dtype.
    pub fn clip(&self, lo: impl Limit, hi: impl Limit) -> Result<Array> {
        let (lo, hi) = (lo.limit(), hi.limit());
        let bounds = "at least one number or array";
        require(lo.or(hi).is_some(), "clip", "lo and hi", bounds, "None")?;
        let lo = lo.map(|lo| bound(self, lo, Bound::Least)).transpose()?;
        let hi = hi.map(|hi| bound(self, hi, Bound::Most)).transpose()?;
        op!(mlx_clip(self, lo.as_deref(), hi.as_deref()))
    }

    /// Where this array (as Bool) is true, the element of `a`, else that of `b`: as [`where_`].
    ///
    /// A number adopts the dtype of the other choice; two numbers are F32 or I32.
    ///
    /// # Errors
    /// The three shapes do not broadcast.
    #[doc(alias = "where")]
    pub fn select(&self, a: impl Operand, b: impl Operand) -> Result<Array> {
        let (a, b) = pair(&a, &b, DType::Bool)?;
        op!(mlx_where(self, *a, *b))
    }

    /// Where this array (as Bool) is true, the element of `a`, else that of `b`: Python's `where`, and another name of
    /// [`select`](Self::select).
    ///
    /// # Errors
    /// The three shapes do not broadcast.
    pub fn where_(&self, a: impl Operand, b: impl Operand) -> Result<Array> {
        self.select(a, b)
    }
}

/// Where `condition` (as Bool) is true, the element of `a`, else that of `b`: Python's `where`, whose name is a keyword of
/// Rust. The method is [`Array::select`].
///
/// ```
/// # use mlx_core::{Array, Result, where_};
/// # fn main() -> Result<()> {
/// let v = Array::from_slice(&[1.0f32, -2.0], &[2])?;
/// assert_eq!(where_(&v.greater(0)?, &v, 0.0)?.to_vec::<f32>()?, [1.0, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The three shapes do not broadcast.
#[doc(alias = "where")]
pub fn where_(condition: &Array, a: impl Operand, b: impl Operand) -> Result<Array> {
    condition.select(a, b)
}

/// Which end of a range an operand is.
#[derive(PartialEq)]
enum Bound {
    Least,
    Most,
}

/// `other` as a bound of `array`. A number beyond all elements becomes the last number of the dtype.
fn bound<'a>(array: &Array, other: &'a dyn Operand, end: Bound) -> Result<Cow<'a, Array>> {
    let range = integers(array.dtype()).map(RangeInclusive::into_inner);
    if let (Some(value), Some((least, most))) = (other.integer().map(i128::from), range) {
        let last = if end == Bound::Least { least } else { most };
        let idle = if end == Bound::Least {
            value < least
        } else {
            value > most
        };
        // Numbers are I64, and no I64 is above U64's range.
        if let (true, Ok(last)) = (idle, i64::try_from(last)) {
            return Ok(Cow::Owned(last.operand(array)?.into_owned()));
        }
    }
    other.operand(array)
}

/// The divisor, with a 1 where the CPU would trap and end the process: at `MIN / -1` (to which 1 gives the wrapped
/// result) and, where MLX does not test for it, at `x / 0`.
fn safe_divisor<'a>(
    dividend: &Array,
    divisor: Cow<'a, Array>,
    number: Option<f64>,
    zero_traps: bool,
) -> Result<Cow<'a, Array>> {
    let inexact = |dtype: DType| dtype.is_float() || dtype == DType::C64;
    if inexact(dividend.dtype()) || inexact(divisor.dtype()) {
        return Ok(divisor);
    }
    // Such a number cannot wrap in any dtype.
    if number.is_some_and(|number| number != 0.0 && number != -1.0 && number.abs() < 128.0) {
        return Ok(divisor);
    }
    let signed = |array: &Array| {
        matches!(
            array.dtype(),
            DType::I8 | DType::I16 | DType::I32 | DType::I64
        )
    };
    let mut traps = None;
    if signed(dividend) && signed(&divisor) {
        let least = match dividend.dtype() {
            DType::I64 => i64::MIN,
            DType::I32 => i64::from(i32::MIN),
            DType::I16 => i64::from(i16::MIN),
            _ => i64::from(i8::MIN),
        };
        traps = Some(divisor.equal(-1)?.logical_and(dividend.equal(least)?)?);
    }
    if zero_traps {
        let zero = divisor.equal(0)?;
        traps = Some(match traps {
            Some(traps) => traps.logical_or(zero)?,
            None => zero,
        });
    }
    match traps {
        // An array, because the number 1 would promote Bool.
        Some(traps) => Ok(Cow::Owned(
            traps.select(ones((), divisor.dtype())?, &*divisor)?,
        )),
        None => Ok(divisor),
    }
}
