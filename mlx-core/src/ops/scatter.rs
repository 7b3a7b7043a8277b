//! Scatters: new arrays in which updates replace elements, or are combined with them.
//!
//! Index arrays are checked when they are evaluated (see [`index`](super::index)). Equal indices combine
//! all their updates, except in `scatter`, where one of them wins, unspecified which.
//!
//! ```
//! use mlx_core::array;
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = array![1, 1, 1];
//! assert_eq!(x.scatter_add_axis(&array![0, 0], &array![2, 3], 0)?.to_vec::<i32>()?, [6, 1, 1]);
//! # Ok(())
//! # }
//! ```

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ffi::{op, vector::VectorArray};
use crate::ops::checked::{Indexed, along, corners};
use crate::ops::index::{check_bounds, placed};
use crate::ops::{borrowed, require, zeros};

macro_rules! scatters {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => {
        /// # Scatters: updates in places that arrays name
        ///
        /// ```
        /// use mlx_core::array;
        ///
        /// # fn main() -> mlx_core::Result<()> {
        /// let x = array![0, 0, 0];
        /// let places = array![2, 2];
        /// let sums = x.scatter_add(&[&places], &array![[1], [5]], &[0])?;
        /// assert_eq!(sums.to_vec::<i32>()?, [0, 0, 6]);
        /// # Ok(())
        /// # }
        /// ```
        impl Array { $(
        $(#[$doc])*
        ///
        /// `indices` holds one integer array for each of `axes`, broadcast together to a shape
        /// `I`; `updates` has the shape `I` and then one size for each dimension of this array (1
        /// along `axes`).
        ///
        /// # Errors
        /// The lists or shapes do not fit, or an index array holds no integers.
        pub fn $name(&self, indices: &[&Array], updates: &Array, axes: &[i32]) -> Result<Array> {
            let indices = checked_places(self, indices, updates, axes)?;
            let indices = VectorArray::new(borrowed(&indices))?;
            let result = op!($c(self, indices, updates, [axes]))?;
            // MLX divides by the size of an update.
            Ok(if updates.size() == 0 { self.clone() } else { result })
        }
    )* } };
}

scatters! {
    /// This array with `updates` in the places that `indices` name.
    scatter = mlx_scatter;
    /// This array with `updates` added in the places that `indices` name.
    scatter_add = mlx_scatter_add;
    /// The larger of this array and `updates` in the places that `indices` name.
    scatter_max = mlx_scatter_max;
    /// The smaller of this array and `updates` in the places that `indices` name.
    scatter_min = mlx_scatter_min;
    /// This array with `updates` multiplied in the places that `indices` name.
    scatter_prod = mlx_scatter_prod;
}

/// The indices of a scatter, whose windows are the last dimensions of `updates`.
fn checked_places(
    array: &Array,
    indices: &[&Array],
    updates: &Array,
    axes: &[i32],
) -> Result<Vec<Array>> {
    let shape = updates.shape();
    let leading = shape.len().checked_sub(array.ndim());
    let expected = "the shape of the indices and one size for each dimension";
    require(leading.is_some(), "scatter", "updates", expected, updates)?;
    let windows = &shape[leading.unwrap_or_default()..];
    corners(c"scatter", array, indices, axes, windows)
}

macro_rules! slice_updates {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => {
        /// # Updates of slices
        ///
        /// ```
        /// use mlx_core::array;
        ///
        /// # fn main() -> mlx_core::Result<()> {
        /// let x = array![1, 1, 1, 1];
        /// let y = x.slice_update_add(&array![5, 6], &[0], &[4], &[2])?;
        /// assert_eq!(y.to_vec::<i32>()?, [6, 1, 7, 1]);
        /// # Ok(())
        /// # }
        /// ```
        impl Array { $(
        $(#[$doc])*
        ///
        /// Bounds as in [`slice_strided`](Array::slice_strided); `update` broadcasts.
        ///
        /// # Errors
        /// The bounds do not fit the dimensions, or `update` does not broadcast.
        pub fn $name(&self, update: &Array, starts: &[i32], stops: &[i32], strides: &[i32]) -> Result<Array> {
            check_bounds(stringify!($name), self, starts, stops, strides)?;
            op!($c(self, update, [starts], [stops], [strides]))
        }
    )* } };
}

slice_updates! {
    /// This array with `update` added in a slice.
    slice_update_add = mlx_slice_update_add;
    /// The larger of this array and `update` in a slice.
    slice_update_max = mlx_slice_update_max;
    /// The smaller of this array and `update` in a slice.
    slice_update_min = mlx_slice_update_min;
    /// This array with `update` multiplied in a slice.
    slice_update_prod = mlx_slice_update_prod;
}

/// # Scatters along an axis, and by a mask
///
/// ```
/// use mlx_core::array;
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![0, 0, 0];
/// let y = x.masked_scatter(&array![true, false, true], &array![7, 8])?;
/// assert_eq!(y.to_vec::<i32>()?, [7, 0, 8]);
/// # Ok(())
/// # }
/// ```
impl Array {
    /// This array with `values` (broadcast to `indices`) added at the places along `axis` that
    /// `indices` names.
    ///
    /// # Errors
    /// The dimensions do not fit, or `indices` are no integers.
    pub fn scatter_add_axis(&self, indices: &Array, values: &Array, axis: i32) -> Result<Array> {
        let indices = along(c"scatter_add_axis", self, axis, indices)?;
        let (indices, values) = placed(self, &indices, values, axis)?;
        op!(mlx_scatter_add_axis(self, indices, values, axis))
    }

    /// This array with the elements of `src`, one after another, where `mask` is true. `mask` has
    /// the leading dimensions of this array. Evaluation fails where `src` holds too few elements.
    ///
    /// # Errors
    /// The shapes do not fit, or `mask` is not Bool.
    pub fn masked_scatter(&self, mask: &Array, src: &Array) -> Result<Array> {
        let result = op!(mlx_masked_scatter(self, mask, src))?;
        if src.size() > 0 || result.size() == 0 {
            return Ok(result);
        }
        // MLX divides by the number of elements. No place may need an element of an empty `src`.
        let places = Indexed {
            op: c"masked_scatter with an empty src",
            source: &zeros(&[1], DType::U8)?,
            axes: &[0],
            windows: &[1],
            from_end: false,
        }
        .check(&mask.astype(DType::U8)?)?;
        let mut shape = mask.shape().to_vec();
        shape.resize(self.ndim(), 1);
        places.reshape(&shape)?.select(0, self)
    }
}
