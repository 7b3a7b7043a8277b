//! Element types of arrays, and the Rust types that hold one.

mod kinds;

pub use kinds::{
    DTypeKind, FloatInfo, IntegerInfo, can_cast, finfo, iinfo, isdtype, issubdtype, result_type,
};

use std::fmt;

use mlx_c_sys as sys;

/// The type of an array's elements. The names are those of safetensors.
///
/// ```
/// use mlx_core::DType;
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(DType::BF16.size(), 2);
/// assert!(DType::F16.is_float() && DType::U8.is_integer());
/// assert_eq!(DType::F32.to_string(), "F32");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum DType {
    #[doc(alias = "bool_")]
    Bool = 0,
    #[doc(alias = "uint8")]
    U8 = 1,
    #[doc(alias = "uint16")]
    U16 = 2,
    #[doc(alias = "uint32")]
    U32 = 3,
    #[doc(alias = "uint64")]
    U64 = 4,
    #[doc(alias = "int8")]
    I8 = 5,
    #[doc(alias = "int16")]
    I16 = 6,
    #[doc(alias = "int32")]
    I32 = 7,
    #[doc(alias = "int64")]
    I64 = 8,
    #[doc(alias = "float16")]
    F16 = 9,
    #[doc(alias = "float32")]
    F32 = 10,
    #[doc(alias = "float64")]
    F64 = 11,
    #[doc(alias = "bfloat16")]
    BF16 = 12,
    #[doc(alias = "complex64")]
    C64 = 13,
}

impl DType {
    /// Every dtype, in MLX's order.
    pub const ALL: [DType; 14] = [
        DType::Bool,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::F32,
        DType::F64,
        DType::BF16,
        DType::C64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::U64 | DType::I64 | DType::F64 | DType::C64 => 8,
        }
    }

    /// Whether the elements are real floating point numbers: F16, BF16, F32, F64.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// Whether the elements are signed or unsigned integers. Bool is not an integer.
    pub const fn is_integer(self) -> bool {
        matches!(
            self,
            DType::U8
                | DType::U16
                | DType::U32
                | DType::U64
                | DType::I8
                | DType::I16
                | DType::I32
                | DType::I64
        )
    }

    /// The name in safetensors files.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "BOOL",
            DType::U8 => "U8",
            DType::U16 => "U16",
            DType::U32 => "U32",
            DType::U64 => "U64",
            DType::I8 => "I8",
            DType::I16 => "I16",
            DType::I32 => "I32",
            DType::I64 => "I64",
            DType::F16 => "F16",
            DType::F32 => "F32",
            DType::F64 => "F64",
            DType::BF16 => "BF16",
            DType::C64 => "C64",
        }
    }

    pub(crate) fn raw(self) -> sys::mlx_dtype {
        self as u32 as sys::mlx_dtype
    }

    pub(crate) fn from_raw(raw: sys::mlx_dtype) -> Option<Self> {
        Self::ALL.get(raw as usize).copied()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A complex number of two f32, in the memory layout of MLX and C.
///
/// ```
/// use mlx_core::{Array, Complex64};
///
/// # fn main() -> mlx_core::Result<()> {
/// let z = Array::from_slice(&[Complex64 { re: 3.0, im: 4.0 }], &[1])?;
/// assert_eq!(z.abs()?.to_vec::<f32>()?, [5.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Complex64 {
    /// Real part.
    pub re: f32,
    /// Imaginary part.
    pub im: f32,
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is an array element. Sealed: the set is MLX's.
///
/// ```
/// use mlx_core::{Array, Element};
///
/// # fn main() -> mlx_core::Result<()> {
/// fn largest<T: Element + PartialOrd>(array: &Array) -> mlx_core::Result<Option<T>> {
///     let elements = array.to_vec::<T>()?;
///     Ok(elements.into_iter().reduce(|a, b| if a > b { a } else { b }))
/// }
/// assert_eq!(largest::<i32>(&Array::from_slice(&[3, 7, 5], &[3])?)?, Some(7));
/// # Ok(())
/// # }
/// ```
pub trait Element: sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + 'static {
    /// The dtype of arrays with such elements.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),* $(,)?) => { $(
        impl sealed::Sealed for $ty {}
        impl Element for $ty { const DTYPE: DType = DType::$dtype; }
    )* };
}

elements! {
    bool => Bool,
    u8 => U8,
    u16 => U16,
    u32 => U32,
    u64 => U64,
    i8 => I8,
    i16 => I16,
    i32 => I32,
    i64 => I64,
    half::f16 => F16,
    f32 => F32,
    f64 => F64,
    half::bf16 => BF16,
    Complex64 => C64,
}
