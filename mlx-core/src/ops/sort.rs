//! Sorting and selecting along an axis. NaN counts as larger than every number.

use crate::array::Array;
use crate::error::Result;
use crate::ffi::op;

impl Array {
    /// The elements in ascending order along `axis`; the shape stays.
    ///
    /// # Errors
    /// There is no such axis.
    pub fn sort(&self, axis: i32) -> Result<Array> {
        op!(mlx_sort_axis(self, axis))
    }

    /// The positions that would sort along `axis`, as U32; the shape stays. Equal elements keep
    /// their order.
    ///
    /// # Errors
    /// There is no such axis.
    pub fn argsort(&self, axis: i32) -> Result<Array> {
        op!(mlx_argsort_axis(self, axis))
    }

    /// Reorders along `axis` so that slot `kth` holds the element that sorting would put there. Smaller or equal
    /// elements come before it, larger or equal elements after it. The shape stays.
    ///
    /// # Errors
    /// There is no such axis, or `kth` is outside it.
    pub fn partition(&self, kth: i32, axis: i32) -> Result<Array> {
        op!(mlx_partition_axis(self, kth, axis))
    }

    /// The positions that would [`partition`](Self::partition), as U32; the shape stays.
    ///
    /// # Errors
    /// There is no such axis, or `kth` is outside it.
    pub fn argpartition(&self, kth: i32, axis: i32) -> Result<Array> {
        op!(mlx_argpartition_axis(self, kth, axis))
    }

    /// The `k` largest elements along `axis`, in no particular order: `[…, n, …]` → `[…, k, …]`.
    ///
    /// # Errors
    /// There is no such axis, or `k` is not in `0 ..= n`.
    pub fn topk(&self, k: i32, axis: i32) -> Result<Array> {
        op!(mlx_topk_axis(self, k, axis))
    }
}
