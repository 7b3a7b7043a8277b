//! Writes new keys and values into the buffers of a KV cache.

use mlx_c_sys as sys;

use super::{
    Projection,
    packed::{packed_words, packing},
};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{Arg, op};
use crate::into_shape::IntoShape;
use crate::memory::check_shape;
use crate::ops::quantize::Scheme;

/// The two buffers of a layer's cache, `[B, K, S, D]` each. With a scheme they hold [packed](super::pack) rows.
///
/// ```
/// use mlx_core::{Array, DType, fast::{self, Buffers, Slots}, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let new = ones(&[1, 1, 2, 4], DType::F32)?;
/// let offsets = Array::from_slice(&[3i32], &[1])?;
/// let slots = Slots { ring: false, scheme: None };
/// let (keys, values) = fast::store(Buffers::New(8), &new, &new, &offsets, slots)?;
/// // The next token, written in place.
/// let new = ones(&[1, 1, 1, 4], DType::F32)?;
/// let offsets = Array::from_slice(&[5i32], &[1])?;
/// let (keys, _) = fast::store(Buffers::Own(keys, values), &new, &new, &offsets, slots)?;
/// assert_eq!(keys.sum(.., false)?.item::<f32>()?, 12.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum Buffers<'a> {
    /// New buffers with this many slots, which are zero where no token is written. On the CPU one operation makes and
    /// fills them.
    New(i32),
    /// Buffers that are written in place, on the conditions of [`inplace`](crate::inplace). The plain form copies them.
    Own(Array, Array),
    /// Buffers that are copied, because something else still reads them.
    Shared(&'a Array, &'a Array),
}

/// How tokens are written into slots.
///
/// ```
/// use mlx_core::fast::Slots;
///
/// # fn main() -> mlx_core::Result<()> {
/// // A window of positions: each is written over the oldest.
/// let slots = Slots { ring: true, scheme: None };
/// assert!(slots.ring);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    /// Position p goes to slot `p mod S`. Otherwise, a position without a slot is not written.
    pub ring: bool,
    /// How rows are packed, if they are.
    pub scheme: Option<Scheme>,
}

/// Both buffers with the new tokens: token `l` of row `b` of `keys` and `values`, `[B, K, L, D]` each, goes into slot
/// `offsets[b] + l`. `offsets` is I32 `[B]`, or `[1]` for all rows.
///
/// ```
/// use mlx_core::{Array, DType, fast::{self, Buffers, Slots}, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let new = ones(&[1, 1, 2, 4], DType::F32)?;
/// let offsets = Array::from_slice(&[3i32], &[1])?;
/// let slots = Slots { ring: false, scheme: None };
/// let (keys, values) = fast::store(Buffers::New(8), &new, &new, &offsets, slots)?;
/// assert_eq!((keys.shape(), values.shape()), (&[1, 1, 8, 4][..], &[1, 1, 8, 4][..]));
/// assert_eq!(keys.sum(.., false)?.item::<f32>()?, 8.0); // in slots 3 and 4
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Shapes or dtypes do not fit, or rows cannot be packed in the scheme.
pub fn store(
    buffers: Buffers<'_>,
    keys: &Array,
    values: &Array,
    offsets: &Array,
    slots: Slots,
) -> Result<(Array, Array)> {
    let [b, heads, _, d] = keys.dims()?;
    slots.check(&buffers, [b, heads, d], keys.dtype(), values)?;
    let options = slots.options(&buffers)?;
    let (k, v) = buffers.arrays();
    op!(pair mlxrs_fast_store(k, v, keys, values, offsets, options))
}

/// [`store`] of keys that are [`heads`](super::heads) of a projection; the projection's offsets are
/// the slots. On the CPU each key is normed, rotated and written into its slot, and exists nowhere
/// else in memory.
///
/// # Errors
/// As [`store`] and [`heads`](super::heads).
pub fn store_heads(
    buffers: Buffers<'_>,
    keys: &Projection<'_>,
    values: &Array,
    slots: Slots,
) -> Result<(Array, Array)> {
    let [b, _, width] = keys.x.dims()?;
    let d = keys.head_dim;
    let heads = if d < 1 { 0 } else { width / d };
    slots.check(&buffers, [b, heads, d], keys.x.dtype(), values)?;
    let options = slots.options(&buffers)?;
    let (k, v) = buffers.arrays();
    op!(pair mlxrs_fast_store_heads(k, v, keys, values, options))
}

/// [`heads`](super::heads) of `queries` and [`store_heads`], in one operation: the heads of the queries `[B, H, L, D]`, and both
/// buffers. It is one node (and on NVIDIA GPUs one kernel) if both projections have the same dtype and rows are not packed.
///
/// # Errors
/// As [`store_heads`] and [`heads`](super::heads).
pub fn heads_and_store(
    queries: &Projection<'_>,
    buffers: Buffers<'_>,
    keys: &Projection<'_>,
    values: &Array,
    slots: Slots,
) -> Result<(Array, Array, Array)> {
    let [b, _, width] = keys.x.dims()?;
    let d = keys.head_dim;
    let heads = if d < 1 { 0 } else { width / d };
    slots.check(&buffers, [b, heads, d], keys.x.dtype(), values)?;
    let options = slots.options(&buffers)?;
    let (k, v) = buffers.arrays();
    let all = op!(vector mlxrs_fast_heads_and_store(queries, k, v, keys, values, options))?;
    let [queries, k, v] = <[Array; 3]>::try_from(all)
        .map_err(|_| Error::new(ErrorKind::Mlx, "heads_and_store has three results"))?;
    Ok((queries, k, v))
}

impl Buffers<'_> {
    fn arrays(&self) -> (Option<&Array>, Option<&Array>) {
        match self {
            Self::New(_) => (None, None),
            Self::Own(k, v) => (Some(k), Some(v)),
            Self::Shared(k, v) => (Some(k), Some(v)),
        }
    }
}

impl Slots {
    /// Buffers must have the rows, heads and row length of the new keys and values, because kernels do not check this.
    fn check(
        self,
        buffers: &Buffers<'_>,
        [b, heads, d]: [i32; 3],
        dtype: DType,
        values: &Array,
    ) -> Result<()> {
        let (Some(k), Some(v)) = buffers.arrays() else {
            return Ok(());
        };
        let [_, _, _, of_values] = values.dims()?;
        for (buffer, d, dtype) in [(k, d, dtype), (v, of_values, values.dtype())] {
            let row = match self.scheme {
                Some(scheme) => packed_words(d, dtype, scheme)?,
                None => d,
            };
            let [rows, of, slots, length] = buffer.dims()?;
            if [rows, of, length] != [b, heads, row] || slots < 1 {
                let message = format!(
                    "store: a buffer {:?} and {b} rows of {heads} heads with {row} elements do not fit each other",
                    buffer.shape()
                );
                return Err(Error::new(ErrorKind::Shape, message));
            }
        }
        Ok(())
    }

    fn options(self, buffers: &Buffers<'_>) -> Result<sys::mlxrs_store_options> {
        let (bits, group_size) = self.scheme.map_or(Ok((0, 0)), packing)?;
        let slots = match *buffers {
            Buffers::New(slots) if slots < 1 => {
                let message = format!("new buffers need at least one slot, given {slots}");
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            Buffers::New(slots) => slots,
            _ => 0,
        };
        Ok(sys::mlxrs_store_options {
            slots,
            bits,
            group_size,
            ring: self.ring,
            in_place: matches!(buffers, Buffers::Own(..)),
        })
    }
}

impl Arg for sys::mlxrs_store_options {
    type C = Self;
    fn c(&self) -> Self {
        *self
    }
}

/// Zeros of `shape` for a buffer that is filled step by step, such as a cache. On a CPU under Linux, a large one takes
/// memory only for pages that are touched.
///
/// ```
/// use mlx_core::{DType, fast};
///
/// # fn main() -> mlx_core::Result<()> {
/// let buffer = fast::blank(&[1, 2, 128, 64], DType::F16)?;
/// assert_eq!(buffer.shape(), [1, 2, 128, 64]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A dimension is negative, or the array exceeds the byte limit.
pub fn blank(shape: impl IntoShape, dtype: DType) -> Result<Array> {
    let shape = shape.sizes()?;
    check_shape(&shape, dtype)?;
    op!(mlxrs_fast_blank([shape], dtype))
}
