//! Scans: as many elements out as in, each combined from the elements before it along an axis. F16 and BF16 are
//! accumulated in F32.
//!
//! ```
//! use mlx_core::array;
//!
//! # fn main() -> mlx_core::Result<()> {
//! assert_eq!(array![1, 2, 3].cumprod(0)?.to_vec::<i32>()?, [1, 2, 6]);
//! # Ok(())
//! # }
//! ```

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ffi::{Opt, op};
use crate::ops::reduce::{narrow, wide};
use crate::ops::{Axis, along};

const SAME: Opt<DType> = Opt(None);

macro_rules! scans {
    ($($(#[$doc:meta])* $name:ident, $all:ident, $with:ident = $c:ident($($dtype:tt)*);)*) => {
        /// # Scans
        ///
        /// ```
        /// use mlx_core::array;
        ///
        /// # fn main() -> mlx_core::Result<()> {
        /// assert_eq!(array![1, 2, 3].cumsum(0)?.to_vec::<i32>()?, [1, 3, 6]);
        /// # Ok(())
        /// # }
        /// ```
        impl Array { $(
        $(#[$doc])*
        /// With `..`, along the flattened array.
        ///
        /// # Errors
        /// There is no such axis.
        pub fn $name(&self, axis: impl Axis) -> Result<Array> {
            self.$with(axis, false, true)
        }

        #[doc = concat!("[`", stringify!($name), "`](Self::", stringify!($name), ") along the flattened array: a vector.")]
        ///
        /// # Errors
        /// None that is known.
        pub fn $all(&self) -> Result<Array> {
            self.$name(..)
        }

        #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), "),")]
        /// from the end if `reverse`; without the element itself unless `inclusive`.
        ///
        /// # Errors
        /// There is no such axis.
        pub fn $with(&self, axis: impl Axis, reverse: bool, inclusive: bool) -> Result<Array> {
            let (this, axis) = along(self, axis)?;
            let this = wide(&this, stringify!($name))?;
            let result = op!($c(*this, axis, reverse, inclusive $($dtype)*))?;
            narrow(result, &this, self)
        }
    )* } };
}

scans! {
    /// Sum of the elements up to each one along `axis`. Bool becomes I32.
    #[doc(alias = "cumulative_sum")]
    cumsum, cumsum_all, cumsum_with = mlx_cumsum_axis(, SAME);
    /// Product of the elements up to each one along `axis`.
    #[doc(alias = "cumulative_prod")]
    cumprod, cumprod_all, cumprod_with = mlx_cumprod_axis(, SAME);
    /// Largest of the elements up to each one along `axis`.
    cummax, cummax_all, cummax_with = mlx_cummax_axis();
    /// Smallest of the elements up to each one along `axis`.
    cummin, cummin_all, cummin_with = mlx_cummin_axis();
    /// `ln(sum(e^x))` of the elements up to each one along `axis`.
    logcumsumexp, logcumsumexp_all, logcumsumexp_with = mlx_logcumsumexp_axis();
}

/// # Differences
///
/// ```
/// use mlx_core::array;
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(array![1, 4, 9].diff()?.to_vec::<i32>()?, [3, 5]);
/// # Ok(())
/// # }
/// ```
impl Array {
    /// The differences of neighbours along the last axis: `[…, m]` → `[…, m - 1]`.
    ///
    /// # Errors
    /// The array has no dimension.
    pub fn diff(&self) -> Result<Array> {
        self.diff_with(1, -1)
    }

    /// The differences of neighbours along `axis`, taken `n` times: `[…, m, …]` → `[…, m - n, …]`.
    ///
    /// # Errors
    /// There is no such axis, or `n` is negative.
    pub fn diff_with(&self, n: i32, axis: i32) -> Result<Array> {
        // An axis becomes empty after as many differences as its length, and stays empty.
        let n = n.min(self.dim(axis)?);
        op!(mlx_diff(self, n, axis))
    }
}
