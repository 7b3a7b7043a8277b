//! [`Array`]: an owned handle to a lazy array.

use std::borrow::{Borrow, Cow};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};

use mlx_c_sys as sys;

use crate::dtype::{DType, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{self, vector};
use crate::files::mapped;
use crate::into_shape::IntoShape;
use crate::ops::{self, Number, Operand};
use crate::rows::Rows;
use crate::{eval, memory, poison, printing};

/// The error for reading an array that a transform traces.
const UNREADABLE: &str = "an array cannot be read while a transform traces it";

/// Makes [`Array`] neither `Send` nor `Sync`. The compiler's error for an array that is moved to
/// another thread contains this name, which says what to do.
trait CallFreezeAndSendWhatItReturns: UnwindSafe + RefUnwindSafe + Unpin {}

/// A lazy, immutable, reference-counted array.
///
/// Operations build a graph; [`eval`](crate::eval()), [`async_eval`](crate::async_eval) or reading
/// runs it. Cloning copies a handle, never data. An array belongs to the thread that made it,
/// because a stream of MLX belongs to the thread that made it:
///
/// ```compile_fail
/// fn send<T: Send>(_: T) {}
/// send(mlx_core::Array::from_slice(&[1.0f32], &[1]).unwrap());
/// ```
/// ```compile_fail
/// fn share<T: Sync>(_: T) {}
/// share(mlx_core::Array::from_slice(&[1.0f32], &[1]).unwrap());
/// ```
/// [`Frozen`](crate::Frozen) moves evaluated arrays to other threads.
pub struct Array {
    // The first field, because the compiler's error names the first field that cannot be sent. The
    // name of its trait says what to do instead.
    _stays: PhantomData<dyn CallFreezeAndSendWhatItReturns>,
    raw: sys::mlx_array,
    made: Cell<u64>,
}

/// # Making and reading
///
/// An array is made of numbers in the program, and read back as a vector, a scalar or a slice. Reading evaluates.
///
/// ```
/// use mlx_core::array;
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[1.0f32, 2.0], [3.0, 4.0]];
/// assert_eq!((a.shape(), a.dtype().name()), (&[2, 2][..], "F32"));
/// assert_eq!(a.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// assert_eq!(a.sum_all()?.item::<f32>()?, 10.0);
/// # Ok(())
/// # }
/// ```
impl Array {
    /// Takes ownership of a handle that mlx-c allocated; a null handle is an error.
    ///
    /// # Safety
    /// `raw` has no other owner.
    pub(crate) unsafe fn from_raw(raw: sys::mlx_array) -> Result<Self> {
        if raw.ctx.is_null() {
            return Err(ffi::take_error(ErrorKind::Mlx));
        }
        Ok(Self {
            _stays: PhantomData,
            raw,
            made: Cell::new(poison::stamp()),
        })
    }

    pub(crate) fn raw(&self) -> sys::mlx_array {
        self.raw
    }

    pub(crate) fn made(&self) -> u64 {
        self.made.get()
    }

    pub(crate) fn set_made(&self, made: u64) {
        self.made.set(made);
    }

    /// Notes that the array holds data and no computation.
    pub(crate) fn data(self) -> Self {
        self.made.set(poison::DATA);
        self
    }

    /// Copies `data` in row-major order into an array of `shape`.
    ///
    /// # Errors
    /// `data.len()` differs from the product of `shape`, a dimension is negative, or the bytes
    /// exceed the limit of [`memory::set_array_limit`].
    pub fn from_slice<T: Element>(data: &[T], shape: impl IntoShape) -> Result<Self> {
        let shape = shape.sizes()?;
        let size = memory::check_shape(&shape, T::DTYPE)?;
        if size != data.len() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "shape {shape:?} holds {size} elements, given {}",
                    data.len()
                ),
            ));
        }
        let (at, dims) = (data.as_ptr().cast(), shape.as_ptr());
        // SAFETY: the pointer is good for `size` elements of the dtype, which are copied, and `res` is a fresh handle.
        let made = ffi::array(|res| unsafe {
            sys::mlxrs_array_copy_of(res, at, dims, shape.len(), T::DTYPE.raw())
        });
        made.map(Self::data)
    }

    /// As [`from_slice`](Self::from_slice), from a vector. `Array::from(vec)` has one dimension.
    ///
    /// # Errors
    /// Those of [`from_slice`](Self::from_slice).
    pub fn from_vec<T: Element>(data: Vec<T>, shape: impl IntoShape) -> Result<Self> {
        Self::from_slice(&data, shape)
    }

    /// A scalar (zero-dimensional) array.
    ///
    /// # Errors
    /// There is no memory for the array.
    pub fn scalar<T: Element>(value: T) -> Result<Self> {
        Self::from_slice(&[value], ())
    }

    /// The size of each dimension.
    pub fn shape(&self) -> &[i32] {
        let ndim = self.ndim();
        if ndim == 0 {
            return &[];
        }
        // SAFETY: a live array's shape is a vector of `ndim` ints that lives as long as the handle
        // and is never changed in place.
        unsafe { std::slice::from_raw_parts(sys::mlx_array_shape(self.raw), ndim) }
    }

    /// The shape as exactly `N` dimensions.
    ///
    /// # Errors
    /// The array has another number of dimensions.
    pub fn dims<const N: usize>(&self) -> Result<[i32; N]> {
        let shape = self.shape();
        shape.try_into().map_err(|_| {
            Error::new(
                ErrorKind::Shape,
                format!("expected {N} dimensions, found shape {shape:?}"),
            )
        })
    }

    /// The size of dimension `axis`, counted from the end if negative.
    ///
    /// # Errors
    /// There is no such dimension.
    pub fn dim(&self, axis: i32) -> Result<i32> {
        let shape = self.shape();
        let index = if axis < 0 {
            axis + shape.len() as i32
        } else {
            axis
        };
        usize::try_from(index)
            .ok()
            .and_then(|index| shape.get(index).copied())
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Shape,
                    format!("axis {axis} is out of range for shape {shape:?}"),
                )
            })
    }

    /// The number of dimensions.
    pub fn ndim(&self) -> usize {
        // SAFETY: the handle is live and non-null.
        unsafe { sys::mlx_array_ndim(self.raw) }
    }

    /// The number of dimensions, by the name of candle.
    pub fn rank(&self) -> usize {
        self.ndim()
    }

    /// Bytes of one element.
    pub fn itemsize(&self) -> usize {
        self.dtype().size()
    }

    /// The number of elements, by the name of candle: [`size`](Self::size).
    pub fn elem_count(&self) -> usize {
        self.size()
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        // SAFETY: the handle is live and non-null.
        unsafe { sys::mlx_array_size(self.raw) }
    }

    /// Bytes of all elements, laid out densely.
    pub fn nbytes(&self) -> usize {
        self.size() * self.dtype().size()
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        // SAFETY: the handle is live and non-null.
        let raw = unsafe { sys::mlx_array_dtype(self.raw) };
        DType::from_raw(raw).expect("mlx-c and this crate know the same dtypes")
    }

    /// The elements in row-major order. Evaluates the array. For a view or a broadcast array, these
    /// are the elements that it shows.
    ///
    /// # Errors
    /// `T` is not the array's dtype (nothing is converted: see [`astype`](Self::astype)), or the
    /// evaluation fails.
    #[doc(alias = "tolist")]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.with_slice(|slice| {
            let mut vec = Vec::new();
            memory::reserve(&mut vec, slice.len())?;
            vec.extend_from_slice(slice);
            Ok(vec)
        })?
    }

    /// Calls `f` with the elements in row-major order. They are copied only if they are not dense.
    ///
    /// # Errors
    /// As [`to_vec`](Self::to_vec).
    pub fn with_slice<T: Element, R>(&self, f: impl FnOnce(&[T]) -> R) -> Result<R> {
        self.check_dtype::<T>()?;
        if self.size() == 0 {
            eval([self])?;
            return Ok(f(&[]));
        }
        self.with_dense(|dense| {
            // SAFETY: evaluated, dense and row-major, and of dtype `T`, and not written to meanwhile.
            unsafe { dense.elements::<T>(dense.size()) }.map(|elements| f(&elements))
        })?
    }

    /// Calls `f` with the bytes of the elements in row-major order.
    pub(crate) fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        if self.size() == 0 {
            eval([self])?;
            return Ok(f(&[]));
        }
        self.with_dense(|dense| {
            // SAFETY: as in `with_slice`; any memory is bytes.
            unsafe { dense.elements::<u8>(dense.nbytes()) }.map(|bytes| f(&bytes))
        })?
    }

    /// Calls `f` with this array, evaluated, dense and row-major. No update in place writes into its memory while `f`
    /// runs.
    fn with_dense<R>(&self, f: impl FnOnce(&Array) -> R) -> Result<R> {
        struct Reading;
        impl Drop for Reading {
            fn drop(&mut self) {
                // SAFETY: undoes the call below, on the same thread.
                unsafe { sys::mlxrs_count_reader(false) };
            }
        }

        eval([self])?;
        let copy;
        let dense = if self.is_row_contiguous()? {
            self
        } else {
            copy = self.contiguous()?;
            eval([&copy])?;
            &copy
        };
        // SAFETY: counts readers of this thread.
        unsafe { sys::mlxrs_count_reader(true) };
        let _reading = Reading;
        let result = f(dense);
        // The evaluation may have read a file that was truncated.
        mapped::check()?;
        Ok(result)
    }

    /// The single element of an array of size 1. Evaluates the array.
    ///
    /// # Errors
    /// More or fewer elements, another dtype, or a failed evaluation.
    pub fn item<T: Element>(&self) -> Result<T> {
        if let Some(value) = self.ready_scalar() {
            mapped::check()?;
            return Ok(value);
        }
        if self.size() != 1 {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "item needs exactly one element, found shape {:?}",
                    self.shape()
                ),
            ));
        }
        self.check_dtype::<T>()?;
        eval([self])?;
        match self.ready_scalar() {
            Some(value) => mapped::check().map(|()| value),
            None => self.with_slice(|slice| slice[0]),
        }
    }

    /// The single element of an array that is known to be good, if its dtype is that of `T` and its
    /// memory does not change.
    fn ready_scalar<T: Element>(&self) -> Option<T> {
        if self.made() != poison::DATA || self.dtype() != T::DTYPE {
            return None;
        }
        let mut value = T::default();
        let place = std::ptr::from_mut(&mut value).cast();
        // SAFETY: the handle is live, and there is room for one element of the array's dtype.
        unsafe { sys::mlxrs_array_read_scalar(place, size_of::<T>(), self.raw) }.then_some(value)
    }

    fn check_dtype<T: Element>(&self) -> Result<()> {
        let found = self.dtype();
        if found != T::DTYPE {
            let message = format!("array holds {found}, asked for {}", T::DTYPE);
            return Err(Error::new(ErrorKind::DType, message));
        }
        Ok(())
    }

    /// # Safety
    /// The array must be evaluated and row-contiguous, and hold at least `len` elements of type `T`,
    /// where `len` is not zero. No update in place may start while the result lives.
    unsafe fn elements<T: Element>(&self, len: usize) -> Result<Cow<'_, [T]>> {
        let (mut data, mut updated) = (std::ptr::null(), false);
        // SAFETY: the handle is live; the out-pointer is a local variable.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlxrs_array_data_ptr(&mut data, self.raw)
        })?;
        // SAFETY: as above.
        ffi::call(ErrorKind::Eval, || unsafe {
            sys::mlxrs_wait_for_updates(&mut updated, self.raw)
        })
        .map_err(|error| poison::failed([self], error))?;
        let data = data.cast::<T>();
        // A buffer that is updated in place may change after `f` returns. A `view` of a slice of smaller elements may
        // begin at an address that is not aligned to `T`.
        if !updated && data.is_aligned() {
            // SAFETY: the caller's promise, and aligned.
            let elements = unsafe { std::slice::from_raw_parts(data, len) };
            return Ok(Cow::Borrowed(elements));
        }
        let mut copy = Vec::new();
        memory::reserve(&mut copy, len)?;
        copy.resize(len, T::default());
        // SAFETY: the caller's promise; `copy` is as large, and another allocation.
        unsafe {
            let bytes = len * size_of::<T>();
            std::ptr::copy_nonoverlapping(data.cast::<u8>(), copy.as_mut_ptr().cast(), bytes);
        }
        Ok(Cow::Owned(copy))
    }

    /// Whether the elements of an evaluated array are dense and in row-major order.
    pub(crate) fn is_row_contiguous(&self) -> Result<bool> {
        let mut result = false;
        if !poison::is_available(self) {
            return Err(Error::new(ErrorKind::Unsupported, UNREADABLE));
        }
        // SAFETY: the handle is live and the array evaluated, so that its flags are set.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::_mlx_array_is_row_contiguous(&mut result, self.raw)
        })?;
        Ok(result)
    }

    /// The address of this array's first element. Evaluates the array.
    ///
    /// For tests and diagnostics: two steps of an in-place update have the same address.
    ///
    /// # Errors
    /// The evaluation fails.
    pub fn address(&self) -> Result<usize> {
        eval([self])?;
        let mut data = std::ptr::null();
        // SAFETY: the handle is live; the out-pointer is a local variable.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlxrs_array_data_ptr(&mut data, self.raw)
        })?;
        Ok(data as usize)
    }
}

/// # The functions that make arrays, as methods of the type
///
/// ```
/// use mlx_core::{Array, DType};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(Array::zeros([2, 3], DType::F32)?.shape(), [2, 3]);
/// assert_eq!(Array::arange(0, 3, 1, DType::I32)?.to_vec::<i32>()?, [0, 1, 2]);
/// # Ok(())
/// # }
/// ```
impl Array {
    /// As [`zeros`](crate::zeros()).
    ///
    /// # Errors
    /// Those of [`zeros`](crate::zeros()).
    pub fn zeros(shape: impl IntoShape, dtype: DType) -> Result<Self> {
        ops::zeros(shape, dtype)
    }

    /// As [`ones`](crate::ones()).
    ///
    /// # Errors
    /// Those of [`ones`](crate::ones()).
    pub fn ones(shape: impl IntoShape, dtype: DType) -> Result<Self> {
        ops::ones(shape, dtype)
    }

    /// As [`full`](crate::full()).
    ///
    /// # Errors
    /// Those of [`full`](crate::full()).
    pub fn full(shape: impl IntoShape, value: impl Operand, dtype: DType) -> Result<Self> {
        ops::full(shape, value, dtype)
    }

    /// Zeros of this shape and dtype.
    ///
    /// # Errors
    /// None that is known.
    pub fn zeros_like(&self) -> Result<Self> {
        ops::zeros_like(self)
    }

    /// Ones of this shape and dtype.
    ///
    /// # Errors
    /// None that is known.
    pub fn ones_like(&self) -> Result<Self> {
        ops::ones_like(self)
    }

    /// `value` in this shape and dtype.
    ///
    /// # Errors
    /// `value` does not broadcast to the shape.
    pub fn full_like(&self, value: impl Operand) -> Result<Self> {
        ops::full_like(self, value)
    }

    /// As [`arange`](crate::arange()).
    ///
    /// # Errors
    /// Those of [`arange`](crate::arange()).
    pub fn arange(
        start: impl Number,
        stop: impl Number,
        step: impl Number,
        dtype: DType,
    ) -> Result<Self> {
        ops::arange(start, stop, step, dtype)
    }

    /// As [`linspace`](crate::linspace()).
    ///
    /// # Errors
    /// Those of [`linspace`](crate::linspace()).
    pub fn linspace(start: impl Number, stop: impl Number, num: i32, dtype: DType) -> Result<Self> {
        ops::linspace(start, stop, num, dtype)
    }

    /// The identity matrix, as [`identity`](crate::identity()): `[n, n]`. [`eye_with`](crate::eye_with()) makes others.
    ///
    /// # Errors
    /// Those of [`identity`](crate::identity()).
    pub fn eye(n: i32, dtype: DType) -> Result<Self> {
        ops::identity(n, dtype)
    }

    /// The arrays one after another along dimension `axis`, as [`concat`](crate::concat()).
    ///
    /// # Errors
    /// Those of [`concat`](crate::concat()).
    #[doc(alias = "concatenate")]
    pub fn cat<A: Borrow<Array>>(arrays: impl AsRef<[A]>, axis: i32) -> Result<Self> {
        ops::concat(arrays, axis)
    }

    /// The arrays along a new dimension `axis`, as [`stack`](crate::stack()).
    ///
    /// # Errors
    /// Those of [`stack`](crate::stack()).
    pub fn stack<A: Borrow<Array>>(arrays: impl AsRef<[A]>, axis: i32) -> Result<Self> {
        ops::stack(arrays, axis)
    }

    /// Computes this array and waits for it, as [`eval`](crate::eval()) does for several at once.
    ///
    /// # Errors
    /// Those of [`eval`](crate::eval()).
    pub fn eval(&self) -> Result<()> {
        eval([self])
    }

    /// Whether a transform traces the array now: it is an argument of a function that is
    /// differentiated, mapped or compiled, or depends on one.
    pub fn is_traced(&self) -> bool {
        let mut traced = false;
        // SAFETY: a live handle, and a local out-parameter. The function only reads a flag.
        unsafe { sys::mlxrs_array_is_tracer(&mut traced, self.raw()) };
        traced
    }

    /// Whether the array depends on an operation whose evaluation has failed. Using or reading it
    /// is then an error.
    pub fn is_lost(&self) -> bool {
        poison::check(self).is_err()
    }

    /// Whether the array was computed, and not [lost](Self::is_lost). Does not wait.
    pub fn is_computed(&self) -> bool {
        poison::is_available(self) && poison::check(self).is_ok()
    }

    /// Rows and columns.
    ///
    /// # Errors
    /// The array does not have two dimensions.
    pub fn dims2(&self) -> Result<(i32, i32)> {
        self.dims().map(|[a, b]| (a, b))
    }

    /// The sizes of three dimensions.
    ///
    /// # Errors
    /// The array does not have three dimensions.
    pub fn dims3(&self) -> Result<(i32, i32, i32)> {
        self.dims().map(|[a, b, c]| (a, b, c))
    }

    /// The sizes of four dimensions.
    ///
    /// # Errors
    /// The array does not have four dimensions.
    pub fn dims4(&self) -> Result<(i32, i32, i32, i32)> {
        self.dims().map(|[a, b, c, d]| (a, b, c, d))
    }

    /// [`item`](Self::item) by the name of candle.
    ///
    /// # Errors
    /// Those of [`item`](Self::item).
    pub fn to_scalar<T: Element>(&self) -> Result<T> {
        self.item()
    }

    /// The elements of an array of one dimension. Evaluates the array. [`to_vec`](Self::to_vec) takes any shape.
    ///
    /// # Errors
    /// The array does not have one dimension, or as [`to_vec`](Self::to_vec).
    pub fn to_vec1<T: Element>(&self) -> Result<Vec<T>> {
        let [_] = self.dims()?;
        self.to_vec()
    }

    /// The rows of a matrix: a vector of the first dimension's size, of vectors of the second's. Evaluates the array.
    ///
    /// ```
    /// use mlx_core::array;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let x = array![[1, 2], [3, 4]];
    /// assert_eq!(x.to_vec2::<i32>()?, [[1, 2], [3, 4]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The array does not have two dimensions, or as [`to_vec`](Self::to_vec).
    pub fn to_vec2<T: Element>(&self) -> Result<Vec<Vec<T>>> {
        let [rows, columns] = self.dims()?;
        self.with_slice(|slice| rows_of(slice, rows, columns))?
    }

    /// As [`to_vec2`](Self::to_vec2), of three dimensions. Evaluates the array.
    ///
    /// # Errors
    /// The array does not have three dimensions, or as [`to_vec`](Self::to_vec).
    pub fn to_vec3<T: Element>(&self) -> Result<Vec<Vec<Vec<T>>>> {
        let [planes, rows, columns] = self.dims()?;
        let plane = rows as usize * columns as usize;
        self.with_slice(|slice| {
            let mut all = Vec::new();
            memory::reserve(&mut all, planes as usize)?;
            for at in 0..planes as usize {
                all.push(rows_of(&slice[at * plane..][..plane], rows, columns)?);
            }
            Ok(all)
        })?
    }

    /// The subarrays along the first dimension, in order; `for row in &x` gives the same. For a
    /// scalar the first item is an error.
    ///
    /// ```
    /// use mlx_core::array;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let mut sums = Vec::new();
    /// for row in &array![[1, 2], [3, 4]] {
    ///     sums.push(row?.sum(.., false)?.item::<i32>()?);
    /// }
    /// assert_eq!(sums, [3, 7]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn iter(&self) -> Rows<'_> {
        Rows::new(self)
    }
}

fn rows_of<T: Element>(slice: &[T], rows: i32, columns: i32) -> Result<Vec<Vec<T>>> {
    let columns = columns as usize;
    let mut all = Vec::new();
    memory::reserve(&mut all, rows as usize)?;
    for at in 0..rows as usize {
        let mut row = Vec::new();
        memory::reserve(&mut row, columns)?;
        row.extend_from_slice(&slice[at * columns..][..columns]);
        all.push(row);
    }
    Ok(all)
}

impl AsRef<Array> for Array {
    fn as_ref(&self) -> &Array {
        self
    }
}

impl Clone for Array {
    fn clone(&self) -> Self {
        let mut raw = sys::mlx_array {
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: allocates a second handle to the same array; fails only without memory.
        let status = unsafe { sys::mlx_array_set(&mut raw, self.raw) };
        if status != 0 || raw.ctx.is_null() {
            memory::exhausted(size_of::<Self>());
        }
        Self {
            _stays: PhantomData,
            raw,
            made: self.made.clone(),
        }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: owned and non-null, freed once.
        unsafe { sys::mlx_array_free(self.raw) };
    }
}

impl fmt::Debug for Array {
    /// Shape and dtype. Does not evaluate.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({:?}, {})", self.shape(), self.dtype())
    }
}

impl fmt::Display for Array {
    /// The elements, as MLX prints them, or the error if the evaluation fails. Evaluates the array. `{:.3}` prints three
    /// digits after the point; without a precision [`get_printoptions`](crate::get_printoptions) decides.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match f.precision() {
            // MLX prints at most 255 digits here, more than a number of 64 bits has.
            Some(digits) => digits.min(u8::MAX.into()) as i32,
            None => printing::get_printoptions().raw(),
        };
        let text = eval([self]).and_then(|()| {
            if !poison::is_available(self) {
                return Err(Error::new(ErrorKind::Unsupported, UNREADABLE));
            }
            // SAFETY: the handle is live and evaluated.
            vector::string(|res| unsafe { sys::mlxrs_array_text(res, self.raw, digits) })
        });
        match text {
            Ok(text) => f.write_str(&text),
            Err(error) => write!(f, "{self:?}: {error}"),
        }
    }
}
