//! Kinds of dtypes, their promotion, and the limits of their numbers.

use super::DType;
use crate::error::{Error, ErrorKind, Result};

/// A set of dtypes for [`DType::is_subtype`], such as Python's `mx.floating`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "DtypeCategory")]
pub enum DTypeKind {
    /// Every dtype.
    Generic,
    /// Integers, floating point and complex numbers: all but Bool.
    Number,
    /// Signed and unsigned integers.
    Integer,
    /// I8 to I64.
    SignedInteger,
    /// U8 to U64.
    UnsignedInteger,
    /// Real and complex floating point.
    Inexact,
    /// F16, BF16, F32 and F64.
    Floating,
    /// C64.
    ComplexFloating,
}

impl DTypeKind {
    /// Whether the kind holds `dtype`.
    pub const fn contains(self, dtype: DType) -> bool {
        match self {
            DTypeKind::Generic => true,
            DTypeKind::Number => !matches!(dtype, DType::Bool),
            DTypeKind::Integer => dtype.is_integer(),
            DTypeKind::SignedInteger => dtype.is_signed(),
            DTypeKind::UnsignedInteger => dtype.is_integer() && !dtype.is_signed(),
            DTypeKind::Inexact => dtype.is_float() || matches!(dtype, DType::C64),
            DTypeKind::Floating => dtype.is_float(),
            DTypeKind::ComplexFloating => matches!(dtype, DType::C64),
        }
    }
}

/// The limits of floating point numbers, as Python's `mx.finfo`. For C64 they are the limits of the
/// real and the imaginary part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FloatInfo {
    /// The dtype.
    pub dtype: DType,
    /// Bits of a number, or of a part of a complex one.
    pub bits: usize,
    /// The smallest number.
    pub min: f64,
    /// The largest number.
    pub max: f64,
    /// The distance from 1 to the next number.
    pub eps: f64,
    /// The smallest positive number that is not subnormal.
    pub smallest_normal: f64,
}

/// The limits of integers, as Python's `mx.iinfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerInfo {
    /// The dtype.
    pub dtype: DType,
    /// The smallest number.
    pub min: i128,
    /// The largest number.
    pub max: i128,
}

impl DType {
    /// Signed integers: I8 to I64.
    pub const fn is_signed(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// Whether the dtype is of a kind: Python's `issubdtype` and `isdtype`.
    ///
    /// ```
    /// use mlx_core::{DType, DTypeKind};
    ///
    /// assert!(DType::BF16.is_subtype(DTypeKind::Floating));
    /// assert!(!DType::BF16.is_subtype(DTypeKind::Integer));
    /// ```
    #[doc(alias = "issubdtype")]
    #[doc(alias = "isdtype")]
    pub const fn is_subtype(self, kind: DTypeKind) -> bool {
        kind.contains(self)
    }

    /// The dtype of an operation on arrays of two dtypes, as MLX promotes them.
    ///
    /// Of two integers with the same sign, or two floating point dtypes, it is the wider one. F16
    /// and BF16 give F32. A signed and an unsigned integer give the narrowest signed dtype that
    /// holds both; U64 and a signed one give F32. An integer and a floating point dtype give the
    /// floating point dtype, and C64 with any other gives C64.
    ///
    /// ```
    /// use mlx_core::DType;
    ///
    /// assert_eq!(DType::I32.promote(DType::F16), DType::F16);
    /// assert_eq!(DType::F16.promote(DType::BF16), DType::F32);
    /// assert_eq!(DType::U8.promote(DType::I8), DType::I16);
    /// ```
    #[doc(alias = "result_type")]
    pub fn promote(self, other: DType) -> DType {
        if self == other {
            return self;
        }
        let rank = |dtype: DType| match dtype {
            DType::Bool => 0,
            dtype if dtype.is_integer() => 1,
            DType::C64 => 3,
            _ => 2,
        };
        let (low, high) = match rank(self) <= rank(other) {
            true => (self, other),
            false => (other, self),
        };
        if rank(low) != rank(high) {
            return high;
        }
        let wider = if low.size() > high.size() { low } else { high };
        if !low.is_integer() {
            return match low.size() == high.size() {
                true => DType::F32,
                false => wider,
            };
        }
        let (signed, unsigned) = match (low.is_signed(), high.is_signed()) {
            (true, false) => (low, high),
            (false, true) => (high, low),
            _ => return wider,
        };
        if signed.size() > unsigned.size() {
            return signed;
        }
        match unsigned {
            DType::U8 => DType::I16,
            DType::U16 => DType::I32,
            DType::U32 => DType::I64,
            _ => DType::F32,
        }
    }

    /// Whether promotion with `to` gives `to`: Python's `can_cast`.
    /// [`astype`](crate::Array::astype) converts between any two dtypes, whether this is true or
    /// not.
    ///
    /// ```
    /// use mlx_core::DType;
    ///
    /// assert!(DType::I8.can_cast(DType::F16));
    /// assert!(!DType::F32.can_cast(DType::F16));
    /// ```
    pub fn can_cast(self, to: DType) -> bool {
        self.promote(to) == to
    }

    /// The limits of the floating point numbers of this dtype.
    ///
    /// ```
    /// use mlx_core::DType;
    ///
    /// assert_eq!(DType::F16.float_info()?.max, 65504.0);
    /// # Ok::<(), mlx_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The dtype is Bool or an integer.
    #[doc(alias = "finfo")]
    pub fn float_info(self) -> Result<FloatInfo> {
        macro_rules! of {
            ($ty:ty, $bits:literal) => {
                FloatInfo {
                    dtype: self,
                    bits: $bits,
                    min: <$ty>::MIN.into(),
                    max: <$ty>::MAX.into(),
                    eps: <$ty>::EPSILON.into(),
                    smallest_normal: <$ty>::MIN_POSITIVE.into(),
                }
            };
        }
        Ok(match self {
            DType::F16 => of!(half::f16, 16),
            DType::BF16 => of!(half::bf16, 16),
            DType::F32 | DType::C64 => of!(f32, 32),
            DType::F64 => of!(f64, 64),
            _ => {
                let message = format!("float_info: {self} is not floating point");
                return Err(Error::new(ErrorKind::DType, message));
            }
        })
    }

    /// The limits of the integers of this dtype.
    ///
    /// ```
    /// use mlx_core::DType;
    ///
    /// assert_eq!(DType::I8.integer_info()?.min, -128);
    /// # Ok::<(), mlx_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The dtype is not an integer.
    #[doc(alias = "iinfo")]
    pub fn integer_info(self) -> Result<IntegerInfo> {
        match crate::ops::integers(self).filter(|_| self.is_integer()) {
            Some(range) => Ok(IntegerInfo {
                dtype: self,
                min: *range.start(),
                max: *range.end(),
            }),
            None => {
                let message = format!("integer_info: {self} is not an integer");
                Err(Error::new(ErrorKind::DType, message))
            }
        }
    }
}

/// The dtype of an operation on arrays of these dtypes: the [promotion](DType::promote) of all. Bool if there are none.
///
/// ```
/// use mlx_core::{DType, result_type};
///
/// assert_eq!(result_type([DType::U8, DType::I32, DType::F16]), DType::F16);
/// ```
pub fn result_type(dtypes: impl IntoIterator<Item = DType>) -> DType {
    dtypes.into_iter().fold(DType::Bool, DType::promote)
}

/// Python's `issubdtype`: [`DType::is_subtype`].
pub fn issubdtype(dtype: DType, kind: DTypeKind) -> bool {
    dtype.is_subtype(kind)
}

/// Python's `isdtype`: [`DType::is_subtype`] of one of several kinds.
///
/// ```
/// use mlx_core::{DType, DTypeKind, isdtype};
///
/// assert!(isdtype(DType::C64, &[DTypeKind::Integer, DTypeKind::ComplexFloating]));
/// ```
pub fn isdtype(dtype: DType, kinds: &[DTypeKind]) -> bool {
    kinds.iter().any(|kind| kind.contains(dtype))
}

/// Python's `can_cast`: [`DType::can_cast`].
pub fn can_cast(from: DType, to: DType) -> bool {
    from.can_cast(to)
}

/// Python's `finfo`: [`DType::float_info`].
///
/// # Errors
/// The dtype is Bool or an integer.
pub fn finfo(dtype: DType) -> Result<FloatInfo> {
    dtype.float_info()
}

/// Python's `iinfo`: [`DType::integer_info`].
///
/// # Errors
/// The dtype is not an integer.
pub fn iinfo(dtype: DType) -> Result<IntegerInfo> {
    dtype.integer_info()
}
