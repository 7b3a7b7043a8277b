//! Reading and writing parts of arrays: slices and index arrays.
//!
//! Positions that are Rust numbers are checked or clamped. Positions inside arrays are checked when they are evaluated: one out of range
//! fails the evaluation. Only GPUs without this crate's kernels (Apple's, and NVIDIA's before compute capability 8.0) use another place of
//! the array instead.
//!
//! ```
//! use mlx_core::array;
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = array![[1, 2], [3, 4]];
//! assert_eq!(x.i((.., 1))?.to_vec::<i32>()?, [2, 4]);
//! # Ok(())
//! # }
//! ```

use std::ffi::CStr;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ffi::{op, vector::VectorArray};
use crate::indexing::{self, At, IntoIndex, Unique};
use crate::ops::checked::{Indexed, along, corners};
use crate::ops::{Axis, Operand, borrowed, require};

/// Where among equal elements [`Array::searchsorted_with`] puts a value.
///
/// ```
/// use mlx_core::{array, Side};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![1, 2, 2, 3];
/// assert_eq!(x.searchsorted_with(&array![2], Side::Right)?.to_vec::<u32>()?, [3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Before the first of them.
    Left,
    /// After the last of them.
    Right,
}

fn unit(ndim: usize) -> Vec<i32> {
    vec![1; ndim]
}

/// # Indices and slices
///
/// [`i`](Self::i), [`set`](Self::set) and [`at`](Self::at) take an index, as Python's brackets do.
///
/// ```
/// use mlx_core::{array, step};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![[1, 2, 3], [4, 5, 6]];
/// assert_eq!(x.i((1, ..))?.to_vec::<i32>()?, [4, 5, 6]);
/// assert_eq!(x.i((.., step(.., -2)))?.to_vec::<i32>()?, [3, 1, 6, 4]);
/// assert_eq!(x.set((.., 0), 0)?.to_vec::<i32>()?, [0, 2, 3, 0, 5, 6]);
/// assert_eq!(x.take(&array![2, 0], 1)?.to_vec::<i32>()?, [3, 1, 6, 4]);
/// # Ok(())
/// # }
/// ```
impl Array {
    /// The elements `starts[i] .. stops[i]` of every dimension i.
    ///
    /// Negative positions count from the end; those outside are clamped, as in Python.
    ///
    /// # Errors
    /// There is not one start and one stop for each dimension.
    pub fn slice(&self, starts: &[i32], stops: &[i32]) -> Result<Array> {
        self.slice_strided(starts, stops, &unit(starts.len()))
    }

    /// As [`slice`](Self::slice), of every `strides[i]`-th element. A negative stride runs backwards from `starts[i]`
    /// to `stops[i]`, which is not included.
    ///
    /// # Errors
    /// There is not one start, stop and stride for each dimension, or a stride is zero.
    pub fn slice_strided(&self, starts: &[i32], stops: &[i32], strides: &[i32]) -> Result<Array> {
        check_bounds("slice", self, starts, stops, strides)?;
        op!(mlx_slice(self, [starts], [stops], [strides]))
    }

    /// The `len` elements from `start` on of dimension `axis`, and all of the others: candle's function.
    ///
    /// ```
    /// use mlx_core::array;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let x = array![[1, 2, 3], [4, 5, 6]];
    /// assert_eq!(x.narrow(1, 1, 2)?.to_vec2::<i32>()?, [[2, 3], [5, 6]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There is no such dimension, or it does not have these elements. [`slice_axis`](Self::slice_axis) takes those that
    /// exist.
    pub fn narrow(&self, axis: i32, start: i32, len: i32) -> Result<Array> {
        let size = self.dim(axis)?;
        let there = start >= 0 && len >= 0 && i64::from(start) + i64::from(len) <= i64::from(size);
        let expected = format!("within the {size} elements of axis {axis}");
        require(there, "narrow", "(start, len)", &expected, (start, len))?;
        self.slice_axis(axis, start, start + len)
    }

    /// At most `parts` pieces along `axis`, as candle's `chunk` and NumPy's `array_split` make them: the first of them are
    /// longer by one if the dimension does not divide. [`split`](Self::split) makes equal pieces only.
    ///
    /// ```
    /// use mlx_core::array;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let pieces = array![1, 2, 3, 4, 5].chunk(3, 0)?;
    /// let sizes: Vec<usize> = pieces.iter().map(|piece| piece.size()).collect();
    /// assert_eq!(sizes, [2, 2, 1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There is no such dimension, or `parts` is not positive or makes more than 2^20 pieces. An empty dimension gives one
    /// piece.
    pub fn chunk(&self, parts: i32, axis: i32) -> Result<Vec<Array>> {
        require(parts > 0, "chunk", "parts", "positive", parts)?;
        let size = self.dim(axis)?;
        let parts = parts.min(size).max(1);
        super::shape::require_few("chunk", parts)?;
        let (len, longer) = (size / parts, size % parts);
        let ends: Vec<i32> = (1..parts).map(|i| i * len + i.min(longer)).collect();
        match ends.is_empty() {
            true => Ok(vec![self.clone()]),
            false => self.split_at(&ends, axis),
        }
    }

    also_called! {
        index_select = take(indices: impl Operand, axis: impl Axis), by "candle";
        get = i(index: impl IntoIndex), by "candle";
        index = i(index: impl IntoIndex), by "mlx-rs";
    }

    /// The elements `start .. stop` of dimension `axis`, and all of the others.
    ///
    /// Negative positions count from the end; those outside are clamped, as in Python:
    /// `i32::MAX` is the end.
    ///
    /// # Errors
    /// There is no such dimension.
    pub fn slice_axis(&self, axis: i32, start: i32, stop: i32) -> Result<Array> {
        self.dim(axis)?;
        let ndim = self.ndim();
        let index = place(axis, ndim);
        let mut starts = vec![0; ndim];
        let mut stops = self.shape().to_vec();
        (starts[index], stops[index]) = (start, stop);
        self.slice(&starts, &stops)
    }

    /// `sizes[i]` elements of every dimension i. The dimensions in `axes` begin at the positions in `start` (integers,
    /// one for each of `axes`, not negative), and the others at 0.
    ///
    /// # Errors
    /// A size exceeds its dimension, or `axes` and `start` do not fit.
    pub fn slice_dynamic(&self, start: &Array, axes: &[i32], sizes: &[i32]) -> Result<Array> {
        require(
            sizes.iter().all(|&size| size >= 0),
            "slice_dynamic",
            "sizes",
            "at least 0",
            sizes,
        )?;
        let windows = at_axes("slice_dynamic", self, sizes, axes)?;
        let start = check_start(c"slice_dynamic", self, start, axes, &windows)?;
        op!(mlx_slice_dynamic(self, start, [axes], [sizes]))
    }

    /// This array with `update` (broadcast to its place) at `starts .. stops`; see
    /// [`slice`](Self::slice). Done in place where no other handle of this array exists.
    ///
    /// # Errors
    /// The bounds do not fit the dimensions, or `update` does not broadcast.
    pub fn slice_update(&self, update: &Array, starts: &[i32], stops: &[i32]) -> Result<Array> {
        self.slice_update_strided(update, starts, stops, &unit(starts.len()))
    }

    /// As [`slice_update`](Self::slice_update), at every `strides[i]`-th position.
    ///
    /// # Errors
    /// Those of [`slice_update`](Self::slice_update); a stride is zero.
    pub fn slice_update_strided(
        &self,
        update: &Array,
        starts: &[i32],
        stops: &[i32],
        strides: &[i32],
    ) -> Result<Array> {
        check_bounds("slice_update", self, starts, stops, strides)?;
        op!(mlx_slice_update(self, update, [starts], [stops], [strides]))
    }

    /// This array with `update` at the positions in `start` (integers, one for each of `axes`, none
    /// negative), and at 0 in the other dimensions.
    ///
    /// # Errors
    /// `axes` and `start` do not fit, or `update` is larger than this array.
    pub fn slice_update_dynamic(
        &self,
        update: &Array,
        start: &Array,
        axes: &[i32],
    ) -> Result<Array> {
        let op = "slice_update_dynamic";
        let missing = self.ndim().checked_sub(update.ndim());
        let expected = "of no more dimensions than the array";
        require(missing.is_some(), op, "update", expected, update)?;
        // MLX broadcasts `update` over the dimensions that it lacks, except for those in `axes`.
        let mut sizes = self.shape()[..missing.unwrap_or_default()].to_vec();
        sizes.extend_from_slice(update.shape());
        for &axis in axes {
            self.dim(axis)?;
            let axis = place(axis, self.ndim());
            if axis < self.ndim() - update.ndim() {
                sizes[axis] = 1;
            }
        }
        let fits = sizes
            .iter()
            .zip(self.shape())
            .all(|(&size, &dim)| size <= dim);
        require(fits, op, "update", "no larger than the array", update)?;
        let windows = at_axes(op, self, &sizes, axes)?;
        let start = check_start(c"slice_update_dynamic", self, start, axes, &windows)?;
        op!(mlx_slice_update_dynamic(self, update, start, [axes]))
    }

    /// The slots `indices` (integers; negative ones count from the end) of dimension `axis`:
    /// `[…, n, …]` → `[…, shape of indices, …]`. With `..` they count in the flattened array, and the result has the
    /// shape of `indices`. One slot may be given as a number.
    ///
    /// # Errors
    /// There is no such dimension, it is empty, `indices` are no integers, or a number is not within the dimension.
    pub fn take(&self, indices: impl Operand, axis: impl Axis) -> Result<Array> {
        let (this, axis) = super::along(self, axis)?;
        if let Some(index) = indices.integer() {
            let size = i64::from(this.dim(axis)?);
            let expected = format!("within the {size} elements of axis {axis}");
            let there = (-size..size).contains(&index);
            require(there, "take", "index", &expected, index)?;
        }
        let indices = indices.to_array(DType::I32)?;
        let indices = along(c"take", &this, axis, &indices)?;
        op!(mlx_take_axis(*this, indices, axis))
    }

    /// For every position, the element of its line along `axis` that `indices` names there: the
    /// result has the shape of `indices`, whose other dimensions broadcast. With `..` both arrays are flattened.
    ///
    /// # Errors
    /// The dimensions do not fit, or `indices` are no integers.
    pub fn take_along_axis(&self, indices: &Array, axis: impl Axis) -> Result<Array> {
        if axis.axis().is_none() {
            return self.flatten()?.take_along_axis(&indices.flatten()?, 0);
        }
        let (this, axis) = super::along(self, axis)?;
        let indices = along(c"take_along_axis", &this, axis, indices)?;
        op!(mlx_take_along_axis(*this, indices, axis))
    }

    /// This array with `values` (broadcast to `indices`) at the places along `axis` that
    /// `indices` names. Of equal places one wins, unspecified which.
    ///
    /// # Errors
    /// The dimensions do not fit, or `indices` are no integers.
    pub fn put_along_axis(&self, indices: &Array, values: &Array, axis: i32) -> Result<Array> {
        let indices = along(c"put_along_axis", self, axis, indices)?;
        let (indices, values) = placed(self, &indices, values, axis)?;
        op!(mlx_put_along_axis(self, indices, values, axis))
    }

    /// Windows of `slice_sizes`. `indices` has one array for each of `axes` (broadcast together), which name the
    /// corners. The result has the shape of the indices, then `slice_sizes`.
    ///
    /// # Errors
    /// The lists do not fit, or a window is larger than the array.
    pub fn gather(&self, indices: &[&Array], axes: &[i32], slice_sizes: &[i32]) -> Result<Array> {
        let indices = corners(c"gather", self, indices, axes, slice_sizes)?;
        let indices = VectorArray::new(borrowed(&indices))?;
        op!(mlx_gather(self, indices, [axes], [slice_sizes]))
    }

    /// The elements that an index names, as Python's `x[…]` and NumPy's.
    ///
    /// An index is an integer, a range, [`step`](crate::step), [`Ellipsis`](crate::Ellipsis),
    /// [`NewAxis`](crate::NewAxis), an array of integers or Bool, a list of integers, or a tuple of these;
    /// [`indexing`](crate::indexing) has the rules.
    ///
    /// ```
    /// use mlx_core::array;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let x = array![[1, 2, 3], [4, 5, 6]];
    /// assert_eq!(x.i((1, -1))?.item::<i32>()?, 6);
    /// assert_eq!(x.i((.., 1..))?.to_vec::<i32>()?, [2, 3, 5, 6]);
    /// assert_eq!(x.i((.., [2, 0]))?.to_vec::<i32>()?, [3, 1, 6, 4]);
    /// assert_eq!(x.i(&x.gt(4)?)?.to_vec::<i32>()?, [5, 6]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There are too many indices, an integer or list is out of range, shapes do not fit, or an array of Bool cannot be
    /// evaluated. A number inside an index array that is out of range fails the evaluation.
    #[doc(alias = "getitem")]
    pub fn i(&self, index: impl IntoIndex) -> Result<Array> {
        indexing::read(self, &index)
    }

    /// This array with `values` at the index, as Python's `x[index] = values`.
    ///
    /// The values broadcast to the shape of [`x.i(index)`](Self::i), and take this array's dtype: those for an array
    /// of integers lose their fractions. Of places that an index array names twice one value wins, unspecified which.
    /// Done in place where no other handle of this array exists.
    ///
    /// ```
    /// use mlx_core::array;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let x = array![[1, 2, 3], [4, 5, 6]];
    /// assert_eq!(x.set((.., 1), 0)?.to_vec::<i32>()?, [1, 0, 3, 4, 0, 6]);
    /// assert_eq!(x.set(0, array![7, 8, 9])?.to_vec::<i32>()?, [7, 8, 9, 4, 5, 6]);
    /// assert_eq!(x.set(&x.gt(4)?, 0)?.to_vec::<i32>()?, [1, 2, 3, 4, 0, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`i`](Self::i); the values do not broadcast.
    #[doc(alias = "setitem")]
    pub fn set(&self, index: impl IntoIndex, values: impl Operand) -> Result<Array> {
        indexing::set(self, &index, &values)
    }

    /// The places that an index names, to be combined with values: `x.at(index).add(v)`.
    ///
    /// ```
    /// use mlx_core::array;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let x = array![0, 0, 0];
    /// let twice = x.at([2, 0, 2]).add(array![1, 2, 3])?;
    /// assert_eq!(twice.to_vec::<i32>()?, [2, 0, 4]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn at<I: IntoIndex>(&self, index: I) -> At<'_, I> {
        At::new(self, index)
    }

    /// The elements where `mask`, a Bool array that broadcasts to this shape, is true: `[number of them]`. Evaluates
    /// the mask.
    ///
    /// ```
    /// use mlx_core::array;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let x = array![[1, 2], [3, 4]];
    /// let odd = x.masked_select(&array![true, false])?;
    /// assert_eq!(odd.to_vec::<i32>()?, [1, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The mask is not Bool or does not broadcast, or its evaluation fails.
    pub fn masked_select(&self, mask: &Array) -> Result<Array> {
        indexing::masked_select(self, mask)
    }

    /// The positions of the elements that are not zero, in row-major order: one U32 array for each dimension, `[number
    /// of them]` each. Evaluates this array.
    ///
    /// `x.i((&found[0], &found[1]))` are the elements of a matrix.
    ///
    /// ```
    /// use mlx_core::array;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let found = array![[0, 2], [3, 0]].nonzero()?;
    /// assert_eq!(found[0].to_vec::<u32>()?, [0, 1]);
    /// assert_eq!(found[1].to_vec::<u32>()?, [1, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The evaluation fails, or the array has 2^32 elements or more.
    #[doc(alias = "argwhere")]
    pub fn nonzero(&self) -> Result<Vec<Array>> {
        indexing::nonzero(self)
    }

    /// The values of the flattened array, sorted, each once: `[number of them]`. Every NaN is a value of its own.
    /// Evaluates this array.
    ///
    /// ```
    /// use mlx_core::array;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// assert_eq!(array![3, 1, 3, 2].unique()?.to_vec::<i32>()?, [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The evaluation fails, or MLX cannot sort the dtype.
    pub fn unique(&self) -> Result<Array> {
        self.unique_all().map(|unique| unique.values)
    }

    /// As [`unique`](Self::unique), with positions and counts.
    ///
    /// # Errors
    /// Those of [`unique`](Self::unique).
    pub fn unique_all(&self) -> Result<Unique> {
        indexing::unique_all(self)
    }

    /// The first `size` of the sorted values, as Python's `mx.unique`. Nothing is evaluated.
    ///
    /// Entries beyond the last value hold `fill`, or the first value without one; their count is 0. If there are more
    /// than `size` values, `inverse` names the last entry for all that are left out.
    ///
    /// ```
    /// use mlx_core::array;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let unique = array![2, 1, 2].unique_of_size(3, Some(0))?;
    /// assert_eq!(unique.values.to_vec::<i32>()?, [1, 2, 0]);
    /// assert_eq!(unique.counts.to_vec::<i32>()?, [1, 2, 0]);
    /// assert_eq!(unique.inverse.to_vec::<u32>()?, [1, 0, 1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `size` is negative, the array is empty and there is no `fill`, or MLX cannot sort the dtype.
    pub fn unique_of_size(&self, size: i32, fill: Option<impl Operand>) -> Result<Unique> {
        indexing::unique_of_size(self, size, fill)
    }

    /// For each of `values`, where to put it into this sorted vector, before equal elements: `[n]` → shape of `values`,
    /// U32.
    ///
    /// # Errors
    /// This array does not have exactly one dimension.
    pub fn searchsorted(&self, values: &Array) -> Result<Array> {
        self.searchsorted_with(values, Side::Left)
    }

    /// As [`searchsorted`](Self::searchsorted), before or after equal elements.
    ///
    /// # Errors
    /// This array does not have exactly one dimension.
    pub fn searchsorted_with(&self, values: &Array, side: Side) -> Result<Array> {
        let side = match side {
            Side::Left => c"left",
            Side::Right => c"right",
        };
        op!(mlx_searchsorted(self, values, side))
    }
}

/// The index of an axis that exists. A negative axis counts from the end.
fn place(axis: i32, ndim: usize) -> usize {
    if axis < 0 {
        (axis + ndim as i32) as usize
    } else {
        axis as usize
    }
}

/// `indices` and `values`, broadcast to the shape of `array` except for `axis`. MLX would write past the end if they
/// were larger.
pub(crate) fn placed(
    array: &Array,
    indices: &Array,
    values: &Array,
    axis: i32,
) -> Result<(Array, Array)> {
    array.dim(axis)?;
    let mut shape = array.shape().to_vec();
    shape[place(axis, array.ndim())] = indices.dim(axis)?;
    let fitted = |part: &Array| match part.shape() == shape {
        true => Ok(part.clone()),
        false => part.broadcast_to(&shape),
    };
    Ok((fitted(indices)?, fitted(values)?))
}

/// The sizes of a window along `axes`.
fn at_axes(op: &str, array: &Array, sizes: &[i32], axes: &[i32]) -> Result<Vec<i32>> {
    let ndim = array.ndim();
    require(
        sizes.len() == ndim,
        op,
        "sizes",
        &format!("{ndim} numbers"),
        sizes,
    )?;
    axes.iter()
        .map(|&axis| {
            array.dim(axis)?;
            Ok(sizes[place(axis, ndim)])
        })
        .collect()
}

/// `start`, whose evaluation fails if a window would leave the array.
fn check_start(
    op: &'static CStr,
    source: &Array,
    start: &Array,
    axes: &[i32],
    windows: &[i32],
) -> Result<Array> {
    if axes.is_empty() {
        return Ok(start.clone());
    }
    let name = op.to_str().unwrap_or_default();
    let one_each = start.size() == axes.len() && start.ndim() < 2;
    require(
        one_each,
        name,
        "start",
        "one number for each of the axes",
        start,
    )?;
    Indexed {
        op,
        source,
        axes,
        windows,
        from_end: false,
    }
    .check(start)
}

/// Checks that MLX does not make: MLX reads as many numbers as there are dimensions, and divides by
/// the strides.
pub(super) fn check_bounds(
    op: &str,
    array: &Array,
    starts: &[i32],
    stops: &[i32],
    strides: &[i32],
) -> Result<()> {
    let ndim = array.ndim();
    require(
        starts.len() == ndim,
        op,
        "starts",
        &format!("{ndim} numbers"),
        starts,
    )?;
    require(
        stops.len() == ndim,
        op,
        "stops",
        &format!("{ndim} numbers"),
        stops,
    )?;
    require(
        strides.len() == ndim,
        op,
        "strides",
        &format!("{ndim} numbers"),
        strides,
    )?;
    require(!strides.contains(&0), op, "strides", "non-zero", strides)
}
