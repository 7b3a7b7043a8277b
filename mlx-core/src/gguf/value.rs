//! Values of the metadata.

use std::fmt;

macro_rules! values {
    ($($(#[$doc:meta])* $name:ident($ty:ty) = $number:literal;)*) => {
        /// A value of the metadata.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Value {
            $($(#[$doc])* $name($ty),)*
            /// Several values of one type.
            List(List),
        }

        /// Several values of one type.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum List {
            $($(#[$doc])* $name(Vec<$ty>),)*
            /// Lists in a list.
            Lists(Vec<List>),
        }

        impl Value {
            /// The number of the type in files.
            pub(super) fn number(&self) -> u32 {
                match self { $(Self::$name(_) => $number,)* Self::List(_) => LIST }
            }

            /// The type of the value, for messages.
            pub fn kind(&self) -> String {
                match self {
                    $(Self::$name(_) => stringify!($name).to_owned(),)*
                    Self::List(list) => list.kind(),
                }
            }
        }

        impl List {
            /// The number of the elements' type in files.
            pub(super) fn number(&self) -> u32 {
                match self { $(Self::$name(_) => $number,)* Self::Lists(_) => LIST }
            }

            /// How many elements there are.
            pub fn len(&self) -> usize {
                match self { $(Self::$name(list) => list.len(),)* Self::Lists(lists) => lists.len() }
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// The type and length of the list, for messages.
            fn kind(&self) -> String {
                match self {
                    $(Self::$name(_) => concat!("a list of ", stringify!($name)).to_owned(),)*
                    Self::Lists(_) => "a list of lists".to_owned(),
                }
            }
        }

        $(
            impl From<$ty> for Value {
                fn from(value: $ty) -> Self {
                    Self::$name(value)
                }
            }

            impl From<Vec<$ty>> for Value {
                fn from(list: Vec<$ty>) -> Self {
                    Self::List(List::$name(list))
                }
            }

            impl<'a> FromValue<'a> for &'a [$ty] {
                const EXPECTED: &'static str = concat!("a list of ", stringify!($name));

                fn from_value(value: &'a Value) -> Option<Self> {
                    match value {
                        Value::List(List::$name(list)) => Some(list),
                        _ => None,
                    }
                }
            }
        )*
    };
}

/// The number that stands for a list in files.
pub(super) const LIST: u32 = 9;

values! {
    /// Unsigned, 8 bits.
    U8(u8) = 0;
    /// Signed, 8 bits.
    I8(i8) = 1;
    /// Unsigned, 16 bits.
    U16(u16) = 2;
    /// Signed, 16 bits.
    I16(i16) = 3;
    /// Unsigned, 32 bits.
    U32(u32) = 4;
    /// Signed, 32 bits.
    I32(i32) = 5;
    /// Floating point, 32 bits.
    F32(f32) = 6;
    /// True or false.
    Bool(bool) = 7;
    /// UTF-8.
    Text(String) = 8;
    /// Unsigned, 64 bits.
    U64(u64) = 10;
    /// Signed, 64 bits.
    I64(i64) = 11;
    /// Floating point, 64 bits.
    F64(f64) = 12;
}

/// A Rust type that a value of the metadata can be read as: see [`Gguf::value`](super::Gguf::value).
///
/// ```
/// use mlx_core::{gguf::{FromValue, Value}};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(u32::from_value(&Value::from(7u64)), Some(7));
/// assert_eq!(u8::from_value(&Value::from(700i32)), None); // does not fit
/// assert_eq!(<&str>::from_value(&Value::from("llama")), Some("llama"));
/// # Ok(())
/// # }
/// ```
pub trait FromValue<'a>: Sized {
    /// What is expected, for messages.
    const EXPECTED: &'static str;

    /// The value, or `None` if it has another type or does not fit.
    fn from_value(value: &'a Value) -> Option<Self>;
}

impl Value {
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(value) => value.into(),
            Self::I8(value) => value.into(),
            Self::U16(value) => value.into(),
            Self::I16(value) => value.into(),
            Self::U32(value) => value.into(),
            Self::I32(value) => value.into(),
            Self::U64(value) => value.into(),
            Self::I64(value) => value.into(),
            _ => return None,
        })
    }
}

macro_rules! from_integer {
    ($($ty:ty),*) => { $(
        impl FromValue<'_> for $ty {
            const EXPECTED: &'static str = concat!("an integer that fits ", stringify!($ty));

            fn from_value(value: &Value) -> Option<Self> {
                value.integer()?.try_into().ok()
            }
        }
    )* };
}
from_integer!(u8, i8, u16, i16, u32, i32, u64, i64, usize);

impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "F32";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::F32(value) => Some(value),
            _ => None,
        }
    }
}

impl FromValue<'_> for f64 {
    const EXPECTED: &'static str = "F32 or F64";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::F32(value) => Some(value.into()),
            Value::F64(value) => Some(value),
            _ => None,
        }
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "Bool";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "Text";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<List> for Value {
    fn from(list: List) -> Self {
        Self::List(list)
    }
}

impl fmt::Display for Value {
    /// A number or text as it is, and a list by its type and length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32(value) => write!(f, "{value}"),
            Self::F64(value) => write!(f, "{value}"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Text(text) => f.write_str(text),
            Self::List(list) => write!(f, "{} of {} elements", list.kind(), list.len()),
            other => match other.integer() {
                Some(value) => write!(f, "{value}"),
                None => f.write_str(&other.kind()),
            },
        }
    }
}
