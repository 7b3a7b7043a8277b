//! The operators of Rust on arrays: `+ - * / % & | ^ << >>`, unary `-` and `!`.
//!
//! Each gives a [`Result<Array>`](crate::Result), because shapes may not broadcast:
//! `((&x * &w)? + &b)?`. There is no `+=`, which could not report an error. These operands may be
//! combined:
//!
//! | left | right |
//! |---|---|
//! | `&Array`, `Array` | `&Array`, `Array`, any number ([`Operand`]), `Result<Array>` |
//! | `f64`, `i32` (`1.0`, `2`) and, for `& \| ^`, `bool` | `&Array`, `Array` |
//! | `Result<Array>` | `&Array`, `Array` |
//!
//! A number on the left is `f64` or `i32` only: with a second type Rust could not infer the type of
//! a literal. Write `&x * s` for `s: f32`. A number takes the array's dtype, as in Python's MLX:
//! `1.0 - &x` is BF16 for an `x` of BF16, and F32 for an `x` of integers. Rust has no operators
//! between two `Result`s, or a `Result` and a number: write `a? + b`.
//!
//! ```
//! use mlx_core::Array;
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = Array::from_slice(&[1.0f32, 2.0, 3.0], 3)?;
//! let y = (2.0 * &x)? + 1;
//! assert_eq!(y?.to_vec::<f32>()?, [3.0, 5.0, 7.0]);
//! let distance = (&x - 2.0)?.square()? + &x; // a `Result` beside an array
//! assert_eq!(distance?.to_vec::<f32>()?, [2.0, 2.0, 4.0]);
//! let inside = (x.gt(1.0)? & x.lt(3.0)?)?;
//! assert_eq!(inside.to_vec::<bool>()?, [false, true, false]);
//! assert_eq!((!inside)?.to_vec::<bool>()?, [true, false, true]);
//! # Ok(())
//! # }
//! ```
//!
//! Comparisons are methods, because Rust's give a `bool`: [`eq`](Array::eq), [`ne`](Array::ne), [`lt`](Array::lt),
//! [`le`](Array::le), [`gt`](Array::gt), [`ge`](Array::ge).

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

use crate::array::Array;
use crate::error::Result;
use crate::ops::Operand;

macro_rules! binary {
    ($($trait:ident $operator:ident = $method:ident beside $($number:ty),*;)*) => { $(
        impl<T: Operand> $trait<T> for &Array {
            type Output = Result<Array>;

            fn $operator(self, other: T) -> Result<Array> {
                Array::$method(self, other)
            }
        }

        impl<T: Operand> $trait<T> for Array {
            type Output = Result<Array>;

            fn $operator(self, other: T) -> Result<Array> {
                Array::$method(&self, other)
            }
        }

        impl $trait<Result<Array>> for &Array {
            type Output = Result<Array>;

            fn $operator(self, other: Result<Array>) -> Result<Array> {
                Array::$method(self, other?)
            }
        }

        impl $trait<Result<Array>> for Array {
            type Output = Result<Array>;

            fn $operator(self, other: Result<Array>) -> Result<Array> {
                Array::$method(&self, other?)
            }
        }

        impl $trait<&Array> for Result<Array> {
            type Output = Result<Array>;

            fn $operator(self, other: &Array) -> Result<Array> {
                Array::$method(&self?, other)
            }
        }

        impl $trait<Array> for Result<Array> {
            type Output = Result<Array>;

            fn $operator(self, other: Array) -> Result<Array> {
                Array::$method(&self?, other)
            }
        }

        $(
            impl $trait<&Array> for $number {
                type Output = Result<Array>;

                fn $operator(self, other: &Array) -> Result<Array> {
                    Array::$method(&*self.operand(other)?, other)
                }
            }

            impl $trait<Array> for $number {
                type Output = Result<Array>;

                fn $operator(self, other: Array) -> Result<Array> {
                    let left = self.operand(&other)?;
                    Array::$method(&left, other)
                }
            }
        )*
    )* };
}

binary! {
    Add add = add beside f64, i32;
    Sub sub = subtract beside f64, i32;
    Mul mul = multiply beside f64, i32;
    Div div = divide beside f64, i32;
    Rem rem = remainder beside f64, i32;
    BitAnd bitand = bitwise_and beside bool, i32;
    BitOr bitor = bitwise_or beside bool, i32;
    BitXor bitxor = bitwise_xor beside bool, i32;
    Shl shl = left_shift beside i32;
    Shr shr = right_shift beside i32;
}

macro_rules! unary {
    ($($trait:ident $operator:ident = $method:ident;)*) => { $(
        impl $trait for &Array {
            type Output = Result<Array>;

            fn $operator(self) -> Result<Array> {
                self.$method()
            }
        }

        impl $trait for Array {
            type Output = Result<Array>;

            fn $operator(self) -> Result<Array> {
                self.$method()
            }
        }
    )* };
}

unary! {
    Neg neg = negative;
    Not not = bitwise_invert;
}
