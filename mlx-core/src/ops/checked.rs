//! Checks of values when they are evaluated.
//!
//! MLX's gathers and scatters do not check indices, and its LAPACK calls may end the process or never return if a
//! matrix holds NaN. The nodes here come before those operations: they pass their input on, or fail the evaluation.

use std::ffi::CStr;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::export;
use crate::ffi::op;
use crate::ops::{dimension, require};

/// The array that indices choose from, and its axes.
pub(crate) struct Indexed<'a> {
    /// The operation, for errors.
    pub op: &'static CStr,
    /// The array that is indexed.
    pub source: &'a Array,
    /// Its axes: one for all indices; several for one index each; none for the flattened leading axes of matrices.
    pub axes: &'a [i32],
    /// The window along each axis: so many places, from the index on, must exist.
    pub windows: &'a [i32],
    /// Whether negative indices count from the end. Otherwise they are out of range.
    pub from_end: bool,
}

impl Indexed<'_> {
    /// `indices`, whose evaluation fails if one of them is out of range.
    ///
    /// GPUs without this crate's kernels take another index that is in range.
    pub(crate) fn check(&self, indices: &Array) -> Result<Array> {
        if export::is_tracing() {
            return self.bounded(indices);
        }
        let Self {
            op,
            source,
            axes,
            windows,
            from_end,
        } = self;
        op!(mlxrs_check_indices(
            indices,
            op,
            source,
            [axes],
            [windows],
            *from_end
        ))
    }
}

impl Indexed<'_> {
    /// `indices`, those out of range moved into the range by MLX's own operations, because the file
    /// of an exported function cannot hold other operations.
    fn bounded(&self, indices: &Array) -> Result<Array> {
        let shape = self.source.shape();
        let sizes: Vec<i32> = match self.axes {
            [] => {
                let leading = &shape[..shape.len().saturating_sub(2)];
                let count = leading
                    .iter()
                    .try_fold(1, |n: i32, &size| n.checked_mul(size));
                vec![dimension("an exported index", count.map(i64::from))?]
            }
            axes => axes
                .iter()
                .map(|&axis| self.source.dim(axis))
                .collect::<Result<_>>()?,
        };
        let windows = self.windows.iter().chain(std::iter::repeat(&1));
        let last: Vec<i32> = sizes.iter().zip(windows).map(|(n, w)| n - w).collect();
        let name = self.op.to_str().unwrap_or_default();
        let some = last.iter().all(|&last| last >= 0);
        require(some, name, "the array", "as large as a window", self.source)?;
        let row = |numbers: &[i32]| match numbers {
            [one] => Array::scalar(*one),
            several => Array::from_slice(several, &[several.len() as i32]),
        };
        // Sizes fit I32. Larger indices become others, which are put into the range too.
        let mut places = indices.astype(DType::I32)?;
        if self.from_end {
            let negative = places.less(0)?;
            places = negative.select(&places.add(&row(&sizes)?)?, &places)?;
        }
        places.maximum(0)?.minimum(&row(&last)?)
    }
}

/// `indices` of single places along `axis`. Negative indices count from the end.
pub(crate) fn along(
    op: &'static CStr,
    source: &Array,
    axis: i32,
    indices: &Array,
) -> Result<Array> {
    Indexed {
        op,
        source,
        axes: &[axis],
        windows: &[1],
        from_end: true,
    }
    .check(indices)
}

/// One index array for each of `axes`: the corners of windows of `sizes`.
pub(crate) fn corners(
    op: &'static CStr,
    source: &Array,
    indices: &[&Array],
    axes: &[i32],
    sizes: &[i32],
) -> Result<Vec<Array>> {
    let name = op.to_str().unwrap_or_default();
    let ndim = source.ndim();
    require(
        indices.len() == axes.len(),
        name,
        "axes",
        "one for each index array",
        axes,
    )?;
    let fits = sizes.len() == ndim && sizes.iter().all(|&size| size >= 0);
    let expected = "one for each dimension, none negative";
    require(fits, name, "window sizes", expected, sizes)?;
    let pairs = indices.iter().zip(axes);
    pairs
        .map(|(indices, &axis)| {
            let at = usize::try_from(axis).ok().filter(|&axis| axis < ndim);
            require(at.is_some(), name, "axes", "those of the array", axes)?;
            Indexed {
                op,
                source,
                axes: &[axis],
                windows: &[sizes[at.unwrap_or_default()]],
                from_end: true,
            }
            .check(indices)
        })
        .collect()
}

/// `matrix`, whose evaluation fails if it holds NaN or an infinity. Must be on a CPU stream.
pub(crate) fn finite(op: &'static CStr, matrix: &Array) -> Result<Array> {
    if matrix.dtype().is_integer() || matrix.dtype() == DType::Bool {
        return Ok(matrix.clone());
    }
    op!(mlxrs_check_finite(matrix, op))
}
