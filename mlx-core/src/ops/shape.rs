//! Shapes and layout: views and rearrangements.

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ffi::op;

impl Array {
    /// The elements converted to `dtype`.
    ///
    /// # Errors
    /// MLX refuses the dtype.
    pub fn astype(&self, dtype: DType) -> Result<Array> {
        op!(mlx_astype(self, dtype))
    }

    /// The same elements in a dense row-major buffer; free if they already are.
    ///
    /// # Errors
    /// None that is known.
    pub fn contiguous(&self) -> Result<Array> {
        op!(mlx_contiguous(self, false))
    }

    /// The same elements, in order, with another shape; one size may be -1.
    ///
    /// # Errors
    /// The number of elements differs.
    pub fn reshape(&self, shape: &[i32]) -> Result<Array> {
        op!(mlx_reshape(self, [shape]))
    }
}
