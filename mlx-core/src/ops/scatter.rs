//! Writing into arrays, combining with what is there.
//!
//! Index arrays are not checked by MLX (see [`index`](super::index)). Equal indices combine all
//! their updates, except in `scatter`, where one of them wins, unspecified which.

use crate::array::Array;
use crate::error::Result;
use crate::ffi::{op, vector::VectorArray};
use crate::ops::borrowed;
use crate::ops::index::check_bounds;

macro_rules! scatters {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => { impl Array { $(
        $(#[$doc])*
        ///
        /// `indices` holds one integer array for each of `axes`, broadcast together to a shape
        /// `I`; `updates` has the shape `I` and then one size for each dimension of this array (1
        /// along `axes`).
        ///
        /// # Errors
        /// The lists or shapes do not fit, or an index array holds no integers.
        pub fn $name(&self, indices: &[&Array], updates: &Array, axes: &[i32]) -> Result<Array> {
            let indices = VectorArray::new(borrowed(indices))?;
            op!($c(self, indices, updates, [axes]))
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

macro_rules! slice_updates {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => { impl Array { $(
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

impl Array {
    /// This array with `values` (broadcast to `indices`) added at the places along `axis` that
    /// `indices` names.
    ///
    /// # Errors
    /// The dimensions do not fit, or `indices` are no integers.
    pub fn scatter_add_axis(&self, indices: &Array, values: &Array, axis: i32) -> Result<Array> {
        op!(mlx_scatter_add_axis(self, indices, values, axis))
    }

    /// This array with the elements of `src`, one after another, where `mask` is true. `mask` has
    /// the leading dimensions of this array; `src` must hold enough elements (not checked).
    ///
    /// # Errors
    /// The shapes do not fit, or `mask` is not Bool.
    pub fn masked_scatter(&self, mask: &Array, src: &Array) -> Result<Array> {
        op!(mlx_masked_scatter(self, mask, src))
    }
}
