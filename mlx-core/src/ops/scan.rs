//! Scans: as many elements out as in, each combined from the elements before it along an axis. F16 and BF16 are
//! accumulated in F32.

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ffi::{Opt, op};
use crate::ops::reduce::{narrow, wide};

const SAME: Opt<DType> = Opt(None);

macro_rules! scans {
    ($($(#[$doc:meta])* $name:ident = $c:ident($($dtype:tt)*);)*) => { impl Array { $(
        $(#[$doc])*
        ///
        /// From the end if `reverse`; without the element itself unless `inclusive`.
        ///
        /// # Errors
        /// There is no such axis.
        pub fn $name(&self, axis: i32, reverse: bool, inclusive: bool) -> Result<Array> {
            let this = wide(self, stringify!($name))?;
            let result = op!($c(*this, axis, reverse, inclusive $($dtype)*))?;
            narrow(result, &this, self)
        }
    )* } };
}

scans! {
    /// Sum of the elements up to each one along `axis`. Bool becomes I32.
    cumsum = mlx_cumsum_axis(, SAME);
    /// Product of the elements up to each one along `axis`.
    cumprod = mlx_cumprod_axis(, SAME);
    /// Largest of the elements up to each one along `axis`.
    cummax = mlx_cummax_axis();
    /// Smallest of the elements up to each one along `axis`.
    cummin = mlx_cummin_axis();
    /// `ln(sum(e^x))` of the elements up to each one along `axis`.
    logcumsumexp = mlx_logcumsumexp_axis();
}

impl Array {
    /// The differences of neighbours along `axis`, taken `n` times: `[…, m, …]` → `[…, m - n, …]`.
    ///
    /// # Errors
    /// There is no such axis, or `n` is negative.
    pub fn diff(&self, n: i32, axis: i32) -> Result<Array> {
        // An axis becomes empty after as many differences as its length, and stays empty.
        let n = n.min(self.dim(axis)?);
        op!(mlx_diff(self, n, axis))
    }
}
