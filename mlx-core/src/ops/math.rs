//! Elementwise arithmetic, comparison and logic.

use crate::array::Array;
use crate::error::Result;
use crate::ffi::op;
use crate::ops::Operand;

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => { impl Array { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// MLX refuses the dtype.
        pub fn $name(&self) -> Result<Array> {
            op!($c(self))
        }
    )* } };
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => { impl Array { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// The shapes do not broadcast, or MLX refuses the dtypes.
        pub fn $name(&self, other: impl Operand) -> Result<Array> {
            let other = other.operand(self)?;
            op!($c(self, *other))
        }
    )* } };
}

unary! {
    /// `|x|`
    abs = mlx_abs;
}

binary! {
    /// `self + other`
    add = mlx_add;
}
