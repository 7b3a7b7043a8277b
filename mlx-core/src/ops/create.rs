//! Functions that make arrays. Sizes are compared with [`memory::array_limit`](crate::memory::array_limit) before MLX
//! is called.
//!
//! ```
//! use mlx_core::array;
//!
//! # fn main() -> mlx_core::Result<()> {
//! assert_eq!(mlx_core::tri(2, mlx_core::DType::I32)?.add(&array![1, 1])?.to_vec::<i32>()?, [2, 1, 2, 2]);
//! # Ok(())
//! # }
//! ```

use std::borrow::Borrow;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ffi::{op, vector::VectorArray};
use crate::into_shape::IntoShape;
use crate::memory::check_shape;
use crate::ops::{Operand, borrowed, integers, require, require_fit};

/// A number from which [`arange`] and [`linspace`] count: `f64`, `f32`, or an integer of up to 2^53.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number to count with",
    note = "numbers are `f64`, `f32`, `i32`, `u32`, `i64` or `usize`"
)]
pub trait Number: Copy {
    /// The number as an `f64`.
    ///
    /// # Errors
    /// The number is an integer beyond 2^53, which an `f64` cannot hold.
    fn exact(self) -> Result<f64>;
}

macro_rules! numbers {
    ($($ty:ty),*) => { $( impl Number for $ty {
        fn exact(self) -> Result<f64> {
            let number = self as f64;
            let holds = self as i128 == number as i128 && number.abs() <= (1u64 << 53) as f64;
            require(holds, "arange", "an integer", "at most 2^53", self)?;
            Ok(number)
        }
    } )* };
}
numbers!(i32, u32, i64, usize);

impl Number for f64 {
    fn exact(self) -> Result<f64> {
        Ok(self)
    }
}

impl Number for f32 {
    fn exact(self) -> Result<f64> {
        Ok(self.into())
    }
}

/// Zeros of `shape`.
///
/// ```
/// use mlx_core::{DType, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(zeros([2, 2], DType::F32)?.to_vec::<f32>()?, [0.0; 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A dimension is negative, or the array exceeds the byte limit.
pub fn zeros(shape: impl IntoShape, dtype: DType) -> Result<Array> {
    let shape = shape.sizes()?;
    check_shape(&shape, dtype)?;
    op!(mlx_zeros([shape], dtype))
}

/// Ones of `shape`.
///
/// ```
/// use mlx_core::{DType, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(ones((2, 1), DType::I32)?.to_vec::<i32>()?, [1, 1]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A dimension is negative, or the array exceeds the byte limit.
pub fn ones(shape: impl IntoShape, dtype: DType) -> Result<Array> {
    let shape = shape.sizes()?;
    check_shape(&shape, dtype)?;
    op!(mlx_ones([shape], dtype))
}

/// `value`, broadcast to `shape` and converted to `dtype`.
///
/// ```
/// use mlx_core::{DType, full};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(full(3, 7, DType::U8)?.to_vec::<u8>()?, [7, 7, 7]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A dimension is negative, the array exceeds the byte limit, or `value` does not broadcast.
pub fn full(shape: impl IntoShape, value: impl Operand, dtype: DType) -> Result<Array> {
    let shape = shape.sizes()?;
    check_shape(&shape, dtype)?;
    let value = value.to_array(dtype)?;
    op!(mlx_full([shape], *value, dtype))
}

/// An array of `shape` whose values its user does not need: zeros, as in MLX.
///
/// # Errors
/// A dimension is negative, or the array exceeds the byte limit.
pub fn empty(shape: impl IntoShape, dtype: DType) -> Result<Array> {
    zeros(shape, dtype)
}

/// As [`empty`], of the shape and dtype of `a`.
///
/// # Errors
/// None that is known.
pub fn empty_like(a: &Array) -> Result<Array> {
    zeros_like(a)
}

/// Zeros of the shape and dtype of `a`.
///
/// ```
/// use mlx_core::{array, zeros_like};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(zeros_like(&array![1, 2])?.to_vec::<i32>()?, [0, 0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// None that is known.
pub fn zeros_like(a: &Array) -> Result<Array> {
    op!(mlx_zeros_like(a))
}

/// Ones of the shape and dtype of `a`.
///
/// ```
/// use mlx_core::{array, ones_like};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(ones_like(&array![5, 6])?.to_vec::<i32>()?, [1, 1]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// None that is known.
pub fn ones_like(a: &Array) -> Result<Array> {
    op!(mlx_ones_like(a))
}

/// `value` in the shape and dtype of `a`.
///
/// ```
/// use mlx_core::{array, full_like};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(full_like(&array![5, 6], 3)?.to_vec::<i32>()?, [3, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `value` does not broadcast to the shape.
pub fn full_like(a: &Array, value: impl Operand) -> Result<Array> {
    let value = value.operand(a)?;
    op!(mlx_full_like(a, *value, a.dtype()))
}

/// `start, start + step, …` up to and without `stop`: `[ceil((stop - start) / step)]`. An infinite
/// step from `start` towards `stop` gives `start` alone.
///
/// # Errors
/// `step` is zero, the length is not finite or exceeds the byte limit, the dtype is Bool, or an integer dtype cannot
/// hold an element.
///
/// ```
/// use mlx_core::{DType::{F32, I32}, arange};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(arange(0, 10, 3, I32)?.to_vec::<i32>()?, [0, 3, 6, 9]);
/// assert_eq!(arange(0.5, 2.0, 0.5, F32)?.to_vec::<f32>()?, [0.5, 1.0, 1.5]);
/// # Ok(())
/// # }
/// ```
pub fn arange(
    start: impl Number,
    stop: impl Number,
    step: impl Number,
    dtype: DType,
) -> Result<Array> {
    let (start, stop, step) = (start.exact()?, stop.exact()?, step.exact()?);
    require(step != 0.0, "arange", "step", "non-zero", step)?;
    let length = ((stop - start) / step).ceil();
    require(
        length.is_finite() && length < f64::from(i32::MAX),
        "arange",
        "length",
        "at most 2^31",
        length,
    )?;
    if step.is_infinite() && (stop - start) * step > 0.0 {
        check_shape(&[1], dtype)?;
        if integers(dtype).is_some() {
            require_fit("arange: an element", start.trunc() as i128, dtype)?;
        }
        return op!(mlx_arange(start, stop, stop - start, dtype));
    }
    let length = length.max(0.0) as i32;
    check_shape(&[length], dtype)?;
    if integers(dtype).is_some() {
        // As in MLX and NumPy: integer steps from the first element.
        let (first, step) = (start.trunc(), (start + step).trunc() - start.trunc());
        let last = first + step * f64::from(length - 1).max(0.0);
        for value in [first, last, start + step] {
            if length > 0 {
                require_fit("arange: an element", value as i128, dtype)?;
            }
        }
    } else if dtype != DType::F64 {
        // MLX adds up steps, and 16-bit types, or F32 beyond 2^24, would round them.
        let numbers = op!(mlx_arange(0.0, f64::from(length), 1.0, DType::I32))?;
        let numbers = numbers.astype(DType::F32)?;
        return numbers.multiply(step)?.add(start)?.astype(dtype);
    }
    op!(mlx_arange(start, stop, step, dtype))
}

/// `num` evenly spaced numbers from `start` to `stop`, both included: `[num]`.
///
/// ```
/// use mlx_core::{DType, linspace};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(linspace(0, 1, 3, DType::F32)?.to_vec::<f32>()?, [0.0, 0.5, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `num` is negative or exceeds the byte limit, an end is not finite, or an integer dtype cannot hold it.
pub fn linspace(start: impl Number, stop: impl Number, num: i32, dtype: DType) -> Result<Array> {
    let (start, stop) = (start.exact()?, stop.exact()?);
    check_shape(&[num], dtype)?;
    let finite = start.is_finite() && stop.is_finite();
    require(finite, "linspace", "ends", "finite", [start, stop])?;
    let step = (stop - start) / f64::from(num - 1).max(1.0);
    let numbers = (0..num).map(|i| match i {
        i if i > 0 && i == num - 1 => stop,
        i => start + step * f64::from(i),
    });
    if integers(dtype).is_some() && dtype != DType::Bool {
        require_fit("linspace: an end", start.floor() as i128, dtype)?;
        require_fit("linspace: an end", stop.floor() as i128, dtype)?;
        if dtype == DType::U64 {
            let numbers: Vec<u64> = numbers.map(|number| number.floor() as u64).collect();
            return Array::from_slice(&numbers, &[num]);
        }
        let numbers: Vec<i64> = numbers.map(|number| number.floor() as i64).collect();
        return Array::from_slice(&numbers, &[num])?.astype(dtype);
    }
    if dtype == DType::F64 {
        return Array::from_slice(&numbers.collect::<Vec<f64>>(), &[num]);
    }
    let numbers: Vec<f32> = numbers.map(|number| number as f32).collect();
    Array::from_slice(&numbers, &[num])?.astype(dtype)
}

/// The identity matrix: `[n, n]`.
///
/// ```
/// use mlx_core::{DType, eye};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(eye(2, DType::I32)?.to_vec::<i32>()?, [1, 0, 0, 1]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The size is not positive or the matrix exceeds the byte limit.
pub fn eye(n: i32, dtype: DType) -> Result<Array> {
    eye_with(n, n, 0, dtype)
}

/// Ones on the diagonal `k` (above the main one if positive) of a zero matrix: `[n, m]`.
///
/// # Errors
/// A size is not positive or the matrix exceeds the byte limit.
pub fn eye_with(n: i32, m: i32, k: i32, dtype: DType) -> Result<Array> {
    check_shape(&[n, m], dtype)?;
    op!(mlx_eye(n, m, k, dtype))
}

/// The identity matrix: `[n, n]`.
///
/// ```
/// use mlx_core::{DType, identity};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(identity(2, DType::I32)?.to_vec::<i32>()?, [1, 0, 0, 1]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The size is not positive or the matrix exceeds the byte limit.
pub fn identity(n: i32, dtype: DType) -> Result<Array> {
    check_shape(&[n, n], dtype)?;
    op!(mlx_identity(n, dtype))
}

/// Ones at and below the main diagonal, zeros above: `[n, n]`.
///
/// ```
/// use mlx_core::{DType, tri};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(tri(2, DType::I32)?.to_vec::<i32>()?, [1, 0, 1, 1]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The size is negative or the matrix exceeds the byte limit.
pub fn tri(n: i32, dtype: DType) -> Result<Array> {
    tri_with(n, n, 0, dtype)
}

/// Ones at and below diagonal `k`, zeros above: `[n, m]`.
///
/// # Errors
/// A size is negative or the matrix exceeds the byte limit.
pub fn tri_with(n: i32, m: i32, k: i32, dtype: DType) -> Result<Array> {
    if check_shape(&[n, m], dtype)? == 0 {
        return zeros(&[n, m], dtype);
    }
    // MLX compares the numbers of rows with those of columns.
    check_shape(&[n.max(m)], DType::I32)?;
    op!(mlx_tri(n, m, k, dtype))
}

/// Zeroes what is above the main diagonal of the last two dimensions: `[…, n, m]` → the same.
///
/// ```
/// use mlx_core::{array, tril};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(tril(&array![[1, 2], [3, 4]])?.to_vec::<i32>()?, [1, 0, 3, 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Fewer than two dimensions.
pub fn tril(x: &Array) -> Result<Array> {
    tril_with(x, 0)
}

/// Zeroes what is above diagonal `k` of the last two dimensions: `[…, n, m]` → the same.
///
/// # Errors
/// Fewer than two dimensions.
pub fn tril_with(x: &Array, k: i32) -> Result<Array> {
    if x.ndim() >= 2 && x.size() == 0 {
        return x.copy();
    }
    op!(mlx_tril(x, k))
}

/// Zeroes what is below the main diagonal of the last two dimensions: `[…, n, m]` → the same.
///
/// ```
/// use mlx_core::{array, triu};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(triu(&array![[1, 2], [3, 4]])?.to_vec::<i32>()?, [1, 2, 0, 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Fewer than two dimensions.
pub fn triu(x: &Array) -> Result<Array> {
    triu_with(x, 0)
}

/// Zeroes what is below diagonal `k` of the last two dimensions: `[…, n, m]` → the same.
///
/// # Errors
/// Fewer than two dimensions.
pub fn triu_with(x: &Array, k: i32) -> Result<Array> {
    if x.ndim() >= 2 && x.size() == 0 {
        return x.copy();
    }
    op!(mlx_triu(x, k))
}

/// A vector as the main diagonal of a zero matrix, `[n]` → `[n, n]`; or that diagonal of a matrix, `[n, m]` →
/// `[min(n, m)]`.
///
/// ```
/// use mlx_core::{array, diag};
///
/// # fn main() -> mlx_core::Result<()> {
/// let matrix = diag(&array![1, 2])?;
/// assert_eq!(matrix.to_vec::<i32>()?, [1, 0, 0, 2]);
/// assert_eq!(diag(&matrix)?.to_vec::<i32>()?, [1, 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Neither one nor two dimensions, or the matrix exceeds the byte limit.
pub fn diag(x: &Array) -> Result<Array> {
    diag_with(x, 0)
}

/// A vector as diagonal `k` of a zero matrix, `[n]` → `[n + |k|, n + |k|]`; or that diagonal of a
/// matrix, `[n, m]` → `[d]`.
///
/// # Errors
/// Neither one nor two dimensions, or the matrix exceeds the byte limit.
pub fn diag_with(x: &Array, k: i32) -> Result<Array> {
    if let &[n] = x.shape() {
        let side = crate::ops::dimension("diag", Some(i64::from(n) + i64::from(k).abs()))?;
        check_shape(&[side, side], x.dtype())?;
    }
    op!(mlx_diag(x, k))
}

/// How [`meshgrid_with`] orders its first two dimensions.
///
/// ```
/// use mlx_core::{array, meshgrid_with, Indexing};
///
/// # fn main() -> mlx_core::Result<()> {
/// let axes = [array![1, 2, 3], array![4, 5]];
/// assert_eq!(meshgrid_with(&axes, false, Indexing::Ij)?[0].shape(), [3, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// Cartesian: the first input varies along the second dimension.
    Xy,
    /// Matrix: input i varies along dimension i.
    Ij,
}

/// The coordinates of a grid from those of its axes: `[n_i]` each → one array a dimension, each of the whole grid's
/// shape. The first input varies along the second dimension.
///
/// ```
/// use mlx_core::{array, meshgrid};
///
/// # fn main() -> mlx_core::Result<()> {
/// let grids = meshgrid(&[array![1, 2, 3], array![4, 5]])?;
/// assert_eq!(grids[0].shape(), [2, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// An input has more than one dimension, or the grid exceeds the byte limit.
pub fn meshgrid<A: Borrow<Array>>(arrays: impl AsRef<[A]>) -> Result<Vec<Array>> {
    meshgrid_with(arrays, false, Indexing::Xy)
}

/// The coordinates of a grid from those of its axes: `[n_i]` each → one array a dimension, each of
/// the whole grid's shape, or of shape `[1, …, n_i, …, 1]` if `sparse`.
///
/// # Errors
/// An input has more than one dimension, or the grid exceeds the byte limit.
pub fn meshgrid_with<A: Borrow<Array>>(
    arrays: impl AsRef<[A]>,
    sparse: bool,
    indexing: Indexing,
) -> Result<Vec<Array>> {
    let vector = VectorArray::new(borrowed(arrays.as_ref()))?;
    let indexing = match indexing {
        Indexing::Xy => c"xy",
        Indexing::Ij => c"ij",
    };
    op!(vector mlx_meshgrid(vector, sparse, indexing))
}

macro_rules! windows {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => { $(
        $(#[$doc])*
        /// window of `m` points, in F32: `[m]`.
        ///
        /// # Errors
        /// `m` is negative or exceeds the byte limit.
        pub fn $name(m: i32) -> Result<Array> {
            check_shape(&[m], DType::F32)?;
            op!($c(m))
        }
    )* };
}

windows! {
    /// The triangular Bartlett
    ///
    /// ```
    /// use mlx_core::bartlett;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// assert_eq!(bartlett(3)?.to_vec::<f32>()?, [0.0, 1.0, 0.0]);
    /// # Ok(())
    /// # }
    /// ```
    bartlett = mlx_bartlett;
    /// The Blackman
    ///
    /// ```
    /// use mlx_core::blackman;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// assert_eq!(blackman(5)?.shape(), [5]);
    /// # Ok(())
    /// # }
    /// ```
    blackman = mlx_blackman;
    /// The Hamming
    ///
    /// ```
    /// use mlx_core::hamming;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// assert_eq!(hamming(5)?.shape(), [5]);
    /// # Ok(())
    /// # }
    /// ```
    hamming = mlx_hamming;
    /// The Hann
    ///
    /// ```
    /// use mlx_core::hanning;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// assert_eq!(hanning(3)?.shape(), [3]);
    /// # Ok(())
    /// # }
    /// ```
    hanning = mlx_hanning;
}
