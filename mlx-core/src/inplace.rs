//! Updates that write into the buffer they update.
//!
//! MLX updates a buffer in place only when nothing else holds it, and running work holds the buffers that it reads. A
//! decoder that queues a step while the last one runs would therefore copy its whole KV cache in every step. The
//! functions here always reuse the buffer.
//!
//! They take the cache by value, because afterwards it must not be used: **every other handle to the same array, and
//! every view of its buffer, sees the new contents** from the moment the update has run. So keep one handle, and read
//! the cache only from the result of the latest update. Two rules make that right:
//!
//! - Work queued before an update (by [`async_eval`](crate::async_eval()) or
//!   [`eval()`](crate::eval())) reads the old contents: a stream runs in order.
//! - Within *one* graph MLX is free to run an update before an earlier reader that does not depend
//!   on it. Between two updates of which the second overwrites what readers of the first still
//!   need, queue the first. Appending is always right.
//!
//! Memory that Rust code reads never changes. Reading an array waits for pending updates of its buffer and copies it.
//! An update that is evaluated while memory is being read ([`Array::with_slice`]) copies the buffer, and so does an
//! update of a buffer that was ever [frozen](Array::freeze). A buffer that is not MLX's own (a mapped file) or not
//! dense is copied once; later updates change the copy. Use a cache on one [stream](crate::stream).
//!
//! ```
//! use mlx_core::{DType, inplace, ones, zeros};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let cache = zeros([2, 8], DType::F32)?;
//! let address = cache.address()?;
//! let cache = inplace::slice_update_in_place(cache, &ones([2, 1], DType::F32)?, &[0, 3], &[2, 4])?;
//! assert_eq!(cache.address()?, address);
//! # Ok(())
//! # }
//! ```

use mlx_c_sys as sys;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ffi;
use crate::ops::create::zeros;
use crate::poison;

/// Lets the topmost operation of `updated` write into the buffer of `cache`.
fn in_place(cache: &Array, updated: &Array) -> Result<Array> {
    ffi::array(|res| {
        // SAFETY: live handles, a fresh out-handle.
        unsafe { sys::mlxrs_update_in_place(res, updated.raw(), cache.raw()) }
    })
}

/// Notes that a computation was queued that writes these arrays in place under their present
/// handles. If it fails, using the arrays is an error.
pub(crate) fn note_written<'a>(arrays: impl IntoIterator<Item = &'a Array>) {
    let now = poison::stamp();
    arrays.into_iter().for_each(|array| array.set_made(now));
}

/// [`Array::slice_update`] in place: `cache[starts..stops] = update`, which broadcasts.
///
/// ```
/// use mlx_core::{DType, inplace, ones, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// let mut cache = zeros(&[4], DType::F32)?;
/// let address = cache.address()?;
/// for i in 0..3 {
///     cache = inplace::slice_update_in_place(cache, &ones(&[1], DType::F32)?, &[i], &[i + 1])?;
/// }
/// assert_eq!(cache.to_vec::<f32>()?, [1.0, 1.0, 1.0, 0.0]);
/// assert_eq!(cache.address()?, address);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The ranges do not fit, or `update` does not broadcast to them.
pub fn slice_update_in_place(
    cache: Array,
    update: &Array,
    starts: &[i32],
    stops: &[i32],
) -> Result<Array> {
    let covers = cache.ndim() == starts.len()
        && cache.ndim() == stops.len()
        && cache.ndim() > 0
        && starts.iter().all(|&start| start == 0)
        && stops == cache.shape();
    if !covers {
        let updated = cache.slice_update(update, starts, stops)?;
        return in_place(&cache, &updated);
    }
    // MLX would return the update itself in place of the cache, and later updates would then write into an array of the
    // caller. The dynamic form always writes into the cache.
    let axes: Vec<i32> = (0..starts.len() as i32).collect();
    let start = zeros(&[starts.len() as i32], DType::I32)?;
    let update = update.broadcast_to(cache.shape())?;
    slice_update_dynamic_in_place(cache, &update, &start, &axes)
}

/// [`Array::slice_update_dynamic`] in place: the ranges begin at `start`, an I32 array with one
/// number for each of `axes`, and are as large as `update`.
///
/// ```
/// use mlx_core::{Array, DType, inplace, ones, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// let cache = zeros(&[4], DType::F32)?;
/// let start = Array::from_slice(&[2i32], &[1])?;
/// let cache = inplace::slice_update_dynamic_in_place(cache, &ones(&[2], DType::F32)?, &start, &[0])?;
/// assert_eq!(cache.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes or axes do not fit.
pub fn slice_update_dynamic_in_place(
    cache: Array,
    update: &Array,
    start: &Array,
    axes: &[i32],
) -> Result<Array> {
    let updated = cache.slice_update_dynamic(update, start, axes)?;
    in_place(&cache, &updated)
}

/// [`Array::put_along_axis`] in place.
///
/// ```
/// use mlx_core::{Array, DType, inplace, ones, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// let cache = zeros(&[4], DType::F32)?;
/// let places = Array::from_slice(&[3i32, 0], &[2])?;
/// let cache = inplace::put_along_axis_in_place(cache, &places, &ones(&[2], DType::F32)?, 0)?;
/// assert_eq!(cache.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not fit.
pub fn put_along_axis_in_place(
    cache: Array,
    indices: &Array,
    values: &Array,
    axis: i32,
) -> Result<Array> {
    let updated = cache.put_along_axis(indices, values, axis)?;
    in_place(&cache, &updated)
}

/// [`Array::scatter`] in place.
///
/// ```
/// use mlx_core::{Array, DType, inplace, ones, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// let cache = zeros(&[4], DType::F32)?;
/// let places = Array::from_slice(&[1i32, 2], &[2])?;
/// let cache = inplace::scatter_in_place(cache, &[&places], &ones(&[2, 1], DType::F32)?, &[0])?;
/// assert_eq!(cache.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes or axes do not fit.
pub fn scatter_in_place(
    cache: Array,
    indices: &[&Array],
    updates: &Array,
    axes: &[i32],
) -> Result<Array> {
    let updated = cache.scatter(indices, updates, axes)?;
    in_place(&cache, &updated)
}
