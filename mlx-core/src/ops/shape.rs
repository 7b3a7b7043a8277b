//! Shapes and layout: views and rearrangements.
//!
//! ```
//! use mlx_core::array;
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = array![[1, 2, 3]];
//! assert_eq!(x.broadcast_to([2, 3])?.t()?.shape(), [3, 2]);
//! # Ok(())
//! # }
//! ```

use std::borrow::Borrow;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{op, vector::VectorArray};
use crate::into_shape::IntoShape;
use crate::memory::check_shape;
use crate::ops::{
    Axes, Axis, Operand, PadWidths, Sections, along, arange, borrowed, dimension, require,
};

/// The elements that [`Array::pad_with`] adds.
///
/// ```
/// use mlx_core::{array, PadMode};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![1, 2];
/// assert_eq!(x.pad_with(&[(0, 1, 1)], 0, PadMode::Edge)?.to_vec::<i32>()?, [1, 1, 2, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadMode {
    /// The given value.
    Constant,
    /// The nearest element of the edge.
    Edge,
    /// The elements mirrored at the edge element, which is not repeated: `[1, 2, 3]` → `[3, 2, 1, 2, 3, 2, 1]`.
    Reflect,
    /// The elements mirrored at the edge, whose element is repeated: `[1, 2]` → `[2, 1, 1, 2, 2, 1]`.
    Symmetric,
}

/// The most arrays that one call makes from an array. Each takes memory and time, even without elements.
const MOST_PARTS: i32 = 1 << 20;

pub(super) fn require_few(op: &str, parts: i32) -> Result<()> {
    let most = format!("at most {MOST_PARTS}");
    require(parts <= MOST_PARTS, op, "the number of parts", &most, parts)
}

/// # Shapes and dtypes
///
/// ```
/// use mlx_core::{array, DType};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = array![[1, 2, 3], [4, 5, 6]];
/// assert_eq!(x.reshape((3, -1))?.shape(), [3, 2]);
/// assert_eq!(x.t()?.to_vec::<i32>()?, [1, 4, 2, 5, 3, 6]);
/// assert_eq!(x.expand_dims(0)?.shape(), [1, 2, 3]);
/// assert_eq!(x.astype(DType::F32)?.dtype(), DType::F32);
/// # Ok(())
/// # }
/// ```
impl Array {
    /// The elements converted to `dtype`; the shape stays.
    ///
    /// # Errors
    /// MLX refuses the dtype.
    pub fn astype(&self, dtype: DType) -> Result<Array> {
        op!(mlx_astype(self, dtype))
    }

    /// The bytes read as another dtype: `[…, n]` → `[…, n * size / other size]`. As Bool, every byte except 0 is true.
    ///
    /// # Errors
    /// The last dimension does not divide, or there is none and the sizes differ.
    pub fn view(&self, dtype: DType) -> Result<Array> {
        if dtype == DType::Bool {
            // MLX's other operations, and Rust, need a bool to be the byte 0 or 1.
            return op!(mlx_view(self, DType::U8))?.not_equal(0);
        }
        op!(mlx_view(self, dtype))
    }

    /// The same elements in a dense row-major buffer; free if they already are.
    ///
    /// # Errors
    /// None that is known.
    pub fn contiguous(&self) -> Result<Array> {
        op!(mlx_contiguous(self, false))
    }

    /// The same elements as another node of the graph.
    ///
    /// # Errors
    /// None that is known.
    pub fn copy(&self) -> Result<Array> {
        op!(mlx_copy(self))
    }

    /// The same elements, in order, with another shape; one size may be -1.
    ///
    /// # Errors
    /// The number of elements differs.
    pub fn reshape(&self, shape: impl IntoShape) -> Result<Array> {
        let shape = shape.sizes()?;
        op!(mlx_reshape(self, [shape]))
    }

    /// The same elements, in order, as a vector.
    ///
    /// # Errors
    /// None that is known.
    pub fn flatten(&self) -> Result<Array> {
        self.flatten_with(0, -1)
    }

    /// Joins the dimensions `start ..= end` into one. Positions outside are clamped.
    ///
    /// # Errors
    /// `start` comes after `end`.
    pub fn flatten_with(&self, start: i32, end: i32) -> Result<Array> {
        op!(mlx_flatten(self, start, end))
    }

    /// Joins dimension `start` and those after it into one: the method of candle.
    ///
    /// # Errors
    /// None that is known.
    pub fn flatten_from(&self, start: i32) -> Result<Array> {
        self.flatten_with(start, -1)
    }

    /// Joins the first dimension and those up to `end`, which is included, into one: the method of candle.
    ///
    /// # Errors
    /// None that is known.
    pub fn flatten_to(&self, end: i32) -> Result<Array> {
        self.flatten_with(0, end)
    }

    /// Splits dimension `axis` into `shape`; one size may be -1.
    ///
    /// # Errors
    /// There is no such dimension, or its size is not the product of `shape`.
    pub fn unflatten(&self, axis: i32, shape: impl IntoShape) -> Result<Array> {
        let shape = shape.sizes()?;
        // MLX would divide by the product of the other sizes.
        let known = !(shape.contains(&-1) && shape.contains(&0));
        require(known, "unflatten", "shape", "without 0 beside -1", &shape)?;
        op!(mlx_unflatten(self, axis, [shape]))
    }

    /// Dimension i of the result is dimension `axes[i]` of this array. All of them must be named; `..` reverses their
    /// order, as [`t`](Self::t).
    ///
    /// # Errors
    /// `axes` is no permutation of the dimensions.
    #[doc(alias = "permute_dims")]
    pub fn transpose(&self, axes: impl Axes) -> Result<Array> {
        if axes.is_all() {
            return self.t();
        }
        let axes = axes.axes(self.ndim());
        op!(mlx_transpose_axes(self, [axes]))
    }

    /// The dimensions in reverse order.
    ///
    /// # Errors
    /// None that is known.
    pub fn t(&self) -> Result<Array> {
        op!(mlx_transpose(self))
    }

    /// The last two dimensions exchanged.
    ///
    /// # Errors
    /// There are fewer than two dimensions.
    #[doc(alias = "mT")]
    pub fn matrix_transpose(&self) -> Result<Array> {
        require(
            self.ndim() >= 2,
            "matrix_transpose",
            "array",
            "of at least two dimensions",
            self,
        )?;
        self.swapaxes(-1, -2)
    }

    /// Exchanges two dimensions.
    ///
    /// # Errors
    /// There are no such dimensions.
    #[doc(alias = "swap_axes")]
    #[doc(alias = "matrix_transpose")]
    #[doc(alias = "mT")]
    pub fn swapaxes(&self, a: i32, b: i32) -> Result<Array> {
        op!(mlx_swapaxes(self, a, b))
    }

    /// Moves dimension `src` to position `dst`; the others keep their order.
    ///
    /// # Errors
    /// There are no such dimensions.
    #[doc(alias = "move_axis")]
    pub fn moveaxis(&self, src: i32, dst: i32) -> Result<Array> {
        op!(mlx_moveaxis(self, src, dst))
    }

    /// Inserts dimensions of size 1 at these positions of the result.
    ///
    /// # Errors
    /// A position is out of range or given twice.
    pub fn expand_dims(&self, axes: impl Axes) -> Result<Array> {
        let axes = axes.axes(self.ndim());
        op!(mlx_expand_dims_axes(self, [axes]))
    }

    also_called! {
        unsqueeze = expand_dims(axis: i32), by "candle";
        permute = transpose(axes: impl Axes), by "candle";
        broadcast_as = broadcast_to(shape: impl IntoShape), by "candle";
        flatten_all = flatten(), by "candle";
        to_dtype = astype(dtype: DType), by "candle";
        ravel = flatten(), by "NumPy";
        transpose_axes = transpose(axes: impl Axes), by "mlx-rs";
        as_dtype = astype(dtype: DType), by "mlx-rs";
        as_type = astype(dtype: DType), by "mlx-rs";
        cast = astype(dtype: DType), by "Burn";
    }

    /// Removes dimensions of size 1; `..` removes all of them.
    ///
    /// # Errors
    /// A named dimension does not have size 1, or is given twice.
    pub fn squeeze(&self, axes: impl Axes) -> Result<Array> {
        let shape = self.shape();
        let axes = axes.axes(shape.len());
        let whole = axes.len() == shape.len() && axes.iter().zip(0..).all(|(&a, b)| a == b);
        if whole {
            return op!(mlx_squeeze(self));
        }
        op!(mlx_squeeze_axes(self, [axes]))
    }

    /// Repeats along new leading dimensions and those of size 1, without copying.
    ///
    /// # Errors
    /// This shape does not broadcast to `shape`, or the result exceeds the byte limit.
    pub fn broadcast_to(&self, shape: impl IntoShape) -> Result<Array> {
        let shape = shape.sizes()?;
        check_shape(&shape, self.dtype())?;
        op!(mlx_broadcast_to(self, [shape]))
    }

    /// Adds elements of `value` around the array.
    ///
    /// ```
    /// # use mlx_core::{Array, Result};
    /// # fn main() -> Result<()> {
    /// let m = Array::from_slice(&[1, 2], &[1, 2])?;
    /// assert_eq!(m.pad(&[(1, 0), (0, 2)], 7)?.to_vec::<i32>()?, [7, 7, 7, 7, 1, 2, 7, 7]);
    /// assert_eq!(m.pad(1, 0)?.shape(), [3, 4]);
    /// assert_eq!(m.pad(&[(-1, 0, 1)], 0)?.shape(), [1, 3]); // only the last axis
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There is no such dimension, not one pair for each, or a size is negative.
    pub fn pad(&self, widths: impl PadWidths, value: impl Operand) -> Result<Array> {
        self.pad_with(widths, value, PadMode::Constant)
    }

    /// Adds zeros before and after the elements of one dimension: the method of candle.
    ///
    /// # Errors
    /// There is no such dimension, or a size is negative.
    pub fn pad_with_zeros(&self, axis: i32, before: i32, after: i32) -> Result<Array> {
        self.pad([(axis, before, after)], 0)
    }

    /// As [`pad`](Self::pad); the elements are of `value`, or of the array by `mode`.
    ///
    /// # Errors
    /// Those of [`pad`](Self::pad); mirrored or repeated elements of a dimension of size 0.
    pub fn pad_with(
        &self,
        widths: impl PadWidths,
        value: impl Operand,
        mode: PadMode,
    ) -> Result<Array> {
        let widths = widths.widths(self.ndim())?;
        let mode = match mode {
            PadMode::Constant => c"constant",
            PadMode::Edge => c"edge",
            PadMode::Reflect => return self.mirrored(&widths, 1),
            PadMode::Symmetric => return self.mirrored(&widths, 0),
        };
        let axes: Vec<i32> = widths.iter().map(|width| width.0).collect();
        let lo: Vec<i32> = widths.iter().map(|width| width.1).collect();
        let hi: Vec<i32> = widths.iter().map(|width| width.2).collect();
        let value = value.operand(self)?;
        op!(mlx_pad(self, [axes], [lo], [hi], *value, mode))
    }

    /// The array mirrored beyond its edges; `edge` is 1 if the edge elements are not repeated. MLX joins a part for each
    /// time that the array fits into a width, which takes minutes for wide ones.
    fn mirrored(&self, widths: &[(i32, i32, i32)], edge: i32) -> Result<Array> {
        let mut padded = self.clone();
        for &(axis, before, after) in widths {
            let n = padded.dim(axis)?;
            let fits = before >= 0 && after >= 0;
            require(fits, "pad", "widths", "at least 0", (before, after))?;
            require(
                n > 0 || (before, after) == (0, 0),
                "pad",
                "a dimension that is mirrored",
                "of at least one element",
                padded.shape(),
            )?;
            let size = i64::from(before) + i64::from(n) + i64::from(after);
            let size = dimension("pad", Some(size))?;
            let mut shape = padded.shape().to_vec();
            let ndim = shape.len() as i32;
            shape[((axis + ndim) % ndim) as usize] = size;
            check_shape(&shape, self.dtype())?;
            if (before, after) == (0, 0) {
                continue;
            }
            // Positions repeat after the array and its mirror image.
            let period = (2 * i64::from(n) - 2 * i64::from(edge)).max(1);
            let places = arange(0, size, 1, DType::I32)?.astype(DType::I64)?;
            let places = places.subtract(i64::from(before))?.remainder(period)?;
            let image = places.subtract(period - i64::from(1 - edge))?.negative()?;
            let places = places.less(n)?.select(&places, image)?;
            padded = padded.take(&places, axis)?;
        }
        Ok(padded)
    }

    /// The whole array repeated `reps[i]` times along dimension i, as NumPy's `tile`.
    ///
    /// # Errors
    /// A count is negative.
    pub fn tile(&self, reps: impl IntoShape) -> Result<Array> {
        let reps = reps.sizes()?;
        op!(mlx_tile(self, [reps]))
    }

    /// Each element repeated `n` times along `axis`. With `..` the array is flattened first.
    ///
    /// # Errors
    /// There is no such dimension, or `n` is negative.
    pub fn repeat(&self, n: i32, axis: impl Axis) -> Result<Array> {
        let (this, axis) = along(self, axis)?;
        op!(mlx_repeat_axis(*this, n, axis))
    }

    /// Pieces along `axis`: as many equal ones as the number says, or those between the positions of a list
    /// ([`split_at`](Self::split_at)).
    ///
    /// # Errors
    /// There is no such dimension, it does not divide into as many pieces, or these are more than 2^20.
    pub fn split(&self, pieces: impl Sections, axis: i32) -> Result<Vec<Array>> {
        let Some(parts) = pieces.parts() else {
            return self.split_at(pieces.positions(), axis);
        };
        require_few("split", parts)?;
        op!(vector mlx_split(self, parts, axis))
    }

    /// The pieces between `0`, the `indices` and the end along `axis`.
    ///
    /// # Errors
    /// There is no such dimension.
    pub fn split_at(&self, indices: &[i32], axis: i32) -> Result<Vec<Array>> {
        op!(vector mlx_split_sections(self, [indices], axis))
    }

    /// One array for each slot of `axis`, without that dimension.
    ///
    /// # Errors
    /// There is no such dimension, or it has more than 2^20 slots.
    pub fn unstack(&self, axis: i32) -> Result<Vec<Array>> {
        require_few("unstack", self.dim(axis)?)?;
        op!(vector mlx_unstack_axis(self, axis))
    }

    /// Reverses the order along these dimensions.
    ///
    /// # Errors
    /// There are no such dimensions.
    pub fn flip(&self, axes: impl Axes) -> Result<Array> {
        let axes = axes.axes(self.ndim());
        op!(mlx_flip_axes(self, [axes]))
    }

    /// Moves every element by `shift` places along each of `axes`. Elements that leave at the end come back at the
    /// start. `shift` is a number, or one for each axis. With `..` the elements move in the flattened array, by the sum
    /// of the shifts; the shape stays.
    ///
    /// ```
    /// # use mlx_core::{Array, Result};
    /// # fn main() -> Result<()> {
    /// let m = Array::from_slice(&[1, 2, 3, 4], &[2, 2])?;
    /// assert_eq!(m.roll(1, 0)?.to_vec::<i32>()?, [3, 4, 1, 2]);
    /// assert_eq!(m.roll([1, 1], [0, 1])?.to_vec::<i32>()?, [4, 3, 2, 1]);
    /// assert_eq!(m.roll(1, ..)?.to_vec::<i32>()?, [4, 1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There are no such dimensions, or there is not one shift for each axis.
    pub fn roll(&self, shift: impl Axes, axes: impl Axes) -> Result<Array> {
        require(
            !shift.is_all(),
            "roll",
            "shift",
            "one or more numbers",
            "..",
        )?;
        let shift = shift.axes(self.ndim());
        if axes.is_all() {
            return op!(mlx_roll(self, [shift]));
        }
        let axes = axes.axes(self.ndim());
        match axes[..] {
            [axis] => op!(mlx_roll_axis(self, [shift], axis)),
            _ if shift.len() == 1 => {
                let shift = vec![shift[0]; axes.len()];
                op!(mlx_roll_axes(self, [shift], [axes]))
            }
            _ => {
                let one_each = shift.len() == axes.len();
                require(
                    one_each,
                    "roll",
                    "shift",
                    "one number for each axis",
                    &shift,
                )?;
                op!(mlx_roll_axes(self, [shift], [axes]))
            }
        }
    }

    /// [`diag`](crate::diag()) as a method: a matrix of this diagonal, or the diagonal of this matrix.
    ///
    /// # Errors
    /// Those of [`diag`](crate::diag()).
    pub fn diag(&self) -> Result<Array> {
        super::diag(self)
    }

    /// [`tril`](crate::tril()) as a method: zeroes what is above the diagonal of the last two dimensions.
    ///
    /// # Errors
    /// Fewer than two dimensions.
    pub fn tril(&self) -> Result<Array> {
        super::tril(self)
    }

    /// [`triu`](crate::triu()) as a method: zeroes what is below the diagonal of the last two dimensions.
    ///
    /// # Errors
    /// Fewer than two dimensions.
    pub fn triu(&self) -> Result<Array> {
        super::triu(self)
    }

    /// At least one dimension: a scalar becomes `[1]`.
    ///
    /// # Errors
    /// None that is known.
    pub fn atleast_1d(&self) -> Result<Array> {
        op!(mlx_atleast_1d(self))
    }

    /// At least two dimensions: `[n]` becomes `[1, n]`.
    ///
    /// # Errors
    /// None that is known.
    pub fn atleast_2d(&self) -> Result<Array> {
        op!(mlx_atleast_2d(self))
    }

    /// At least three dimensions: `[n, m]` becomes `[n, m, 1]` and `[n]` `[1, n, 1]`.
    ///
    /// # Errors
    /// None that is known.
    pub fn atleast_3d(&self) -> Result<Array> {
        op!(mlx_atleast_3d(self))
    }

    /// Any arrangement of the elements: slot `[i, j, …]` of the result is element `i * strides[0] + j * strides[1] + …`
    /// of the row-major array.
    ///
    /// # Errors
    /// `shape` and `strides` differ in length, or a slot lies outside the array.
    pub fn as_strided(&self, shape: impl IntoShape, strides: &[i64]) -> Result<Array> {
        self.as_strided_with(shape, strides, 0)
    }

    /// Any arrangement of the elements: slot `[i, j, …]` of the result is element
    /// `offset + i * strides[0] + j * strides[1] + …` of the row-major array.
    ///
    /// # Errors
    /// `shape` and `strides` differ in length, or a slot lies outside the array (MLX would not notice).
    pub fn as_strided_with(
        &self,
        shape: impl IntoShape,
        strides: &[i64],
        offset: usize,
    ) -> Result<Array> {
        let shape = shape.sizes()?;
        require(
            shape.len() == strides.len(),
            "as_strided",
            "strides",
            "one for each dimension",
            strides,
        )?;
        let slots = check_shape(&shape, self.dtype())?;
        let outside = || {
            let size = self.size();
            let message = format!(
                "as_strided: shape {shape:?} with strides {strides:?} from {offset} leaves an array of {size} elements"
            );
            Error::new(ErrorKind::Shape, message)
        };
        if slots > 0 {
            let (mut first, mut last) = (offset as i128, offset as i128);
            for (&size, &stride) in shape.iter().zip(strides) {
                let reach = i128::from(size - 1) * i128::from(stride);
                if reach < 0 {
                    first += reach
                } else {
                    last += reach
                }
            }
            if first < 0 || last >= self.size() as i128 {
                return Err(outside());
            }
        } else if offset > self.size() {
            return Err(outside());
        }
        op!(mlx_as_strided(self, [shape], [strides], offset))
    }
}

/// The shape to which arrays of these shapes broadcast together.
///
/// ```
/// use mlx_core::broadcast_shapes;
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(broadcast_shapes([&[6, 7][..], &[5, 6, 1], &[7]])?, [5, 6, 7]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Two sizes of a dimension differ and neither is 1, or a size is negative.
pub fn broadcast_shapes<S: IntoShape>(shapes: impl IntoIterator<Item = S>) -> Result<Vec<i32>> {
    let mut common: Vec<i32> = Vec::new();
    for shape in shapes {
        let shape = shape.sizes()?;
        let positive = shape.iter().all(|&size| size >= 0);
        require(positive, "broadcast_shapes", "sizes", "at least 0", &shape)?;
        let missing = shape.len().saturating_sub(common.len());
        common.splice(0..0, shape[..missing].iter().copied());
        let offset = common.len() - shape.len();
        for (index, &size) in shape.iter().enumerate() {
            let known = common[offset + index];
            if known != size && known != 1 && size != 1 {
                let message =
                    format!("broadcast_shapes: shape {shape:?} does not broadcast with {common:?}");
                return Err(Error::new(ErrorKind::Shape, message));
            }
            if known == 1 {
                common[offset + index] = size;
            }
        }
    }
    Ok(common)
}

/// All arrays broadcast to their common shape.
///
/// ```
/// use mlx_core::{array, broadcast_arrays};
///
/// # fn main() -> mlx_core::Result<()> {
/// let both = broadcast_arrays(&[array![[1], [2]], array![[3, 4]]])?;
/// assert_eq!(both[0].to_vec::<i32>()?, [1, 1, 2, 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not broadcast.
pub fn broadcast_arrays<A: Borrow<Array>>(arrays: impl AsRef<[A]>) -> Result<Vec<Array>> {
    let vector = VectorArray::new(borrowed(arrays.as_ref()))?;
    op!(vector mlx_broadcast_arrays(vector))
}

/// The arrays, all of one shape, along a new dimension `axis`. They are a slice, array or vector of arrays or references.
///
/// ```
/// use mlx_core::{array, stack};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(stack(&[array![1, 2], array![3, 4]], 1)?.to_vec::<i32>()?, [1, 3, 2, 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The list is empty, or the shapes differ.
pub fn stack<A: Borrow<Array>>(arrays: impl AsRef<[A]>, axis: i32) -> Result<Array> {
    let vector = VectorArray::new(borrowed(arrays.as_ref()))?;
    op!(mlx_stack_axis(vector, axis))
}

/// The arrays one after another along dimension `axis`. With `..` they are flattened first. They are a slice, array or
/// vector of arrays or references.
///
/// ```
/// use mlx_core::{array, concat};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(concat(&[array![1, 2], array![3]], 0)?.to_vec::<i32>()?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The list is empty, or the shapes differ elsewhere than along `axis`.
pub fn concat<A: Borrow<Array>>(arrays: impl AsRef<[A]>, axis: impl Axis) -> Result<Array> {
    let arrays = arrays.as_ref();
    let Some(axis) = axis.axis() else {
        let flat: Vec<Array> = borrowed(arrays)
            .map(Array::flatten)
            .collect::<Result<_>>()?;
        return concat(&flat, 0);
    };
    let vector = VectorArray::new(borrowed(arrays))?;
    op!(mlx_concatenate_axis(vector, axis))
}

pub use concat as concatenate;

/// `arrays`, which are computed only after `dependencies`.
///
/// ```
/// use mlx_core::{array, depends};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, y) = (array![1], array![2].add(1)?);
/// let x = depends(&[x], &[y])?; // computed after y
/// assert_eq!(x[0].to_vec::<i32>()?, [1]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// None that is known.
pub fn depends<A: Borrow<Array>, D: Borrow<Array>>(
    arrays: &[A],
    dependencies: &[D],
) -> Result<Vec<Array>> {
    let vector = VectorArray::new(borrowed(arrays))?;
    let dependencies = VectorArray::new(borrowed(dependencies))?;
    op!(bare vector mlx_depends(vector, dependencies))
}
