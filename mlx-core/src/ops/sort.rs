//! Sorting and selecting along an axis. NaN counts as larger than every number. With `..` in place of the axis the
//! array is flattened first.

use crate::array::Array;
use crate::error::Result;
use crate::ffi::op;
use crate::ops::{Axis, along};

impl Array {
    /// The elements in ascending order along `axis`; the shape stays.
    ///
    /// # Errors
    /// There is no such axis.
    pub fn sort(&self, axis: impl Axis) -> Result<Array> {
        let (this, axis) = along(self, axis)?;
        op!(mlx_sort_axis(*this, axis))
    }

    /// The positions that would sort along `axis`, as U32; the shape stays. Equal elements keep
    /// their order.
    ///
    /// # Errors
    /// There is no such axis.
    pub fn argsort(&self, axis: impl Axis) -> Result<Array> {
        let (this, axis) = along(self, axis)?;
        op!(mlx_argsort_axis(*this, axis))
    }

    /// Reorders along `axis` so that slot `kth` holds the element that sorting would put there. Smaller or equal
    /// elements come before it, larger or equal elements after it. The shape stays.
    ///
    /// # Errors
    /// There is no such axis, or `kth` is outside it.
    pub fn partition(&self, kth: i32, axis: impl Axis) -> Result<Array> {
        let (this, axis) = along(self, axis)?;
        op!(mlx_partition_axis(*this, kth, axis))
    }

    /// The positions that would [`partition`](Self::partition), as U32; the shape stays.
    ///
    /// # Errors
    /// There is no such axis, or `kth` is outside it.
    pub fn argpartition(&self, kth: i32, axis: impl Axis) -> Result<Array> {
        let (this, axis) = along(self, axis)?;
        op!(mlx_argpartition_axis(*this, kth, axis))
    }

    /// The `k` largest elements along `axis`, in no particular order: `[…, n, …]` → `[…, k, …]`.
    ///
    /// # Errors
    /// There is no such axis, or `k` is not in `0 ..= n`.
    pub fn topk(&self, k: i32, axis: impl Axis) -> Result<Array> {
        let (this, axis) = along(self, axis)?;
        op!(mlx_topk_axis(*this, k, axis))
    }
}
