//! Writing the tokens of a step into a layer's buffers.

use std::rc::Rc;

use mlx_core::fast::{self, Buffers};
use mlx_core::{Array, DType, Error, ErrorKind, Result, Scheme, inplace};

use super::{Store, grown};
use crate::attend::{Fresh, Keys};
use crate::cache::state::incompatible;

/// The slots of a step's tokens.
pub(crate) enum Slots {
    /// Row b writes from position `offsets[b]` on; in a ring, modulo the buffer's size. A kernel computes the slots.
    Positions { offsets: Array, ring: bool },
    /// The host has computed the slots.
    Each(Places),
}

/// Slots that the host has computed.
#[derive(Clone)]
pub(crate) enum Places {
    /// Every row writes `start..start + L`.
    Range(usize),
    /// `[B, L]` row numbers and slots.
    Scattered { rows: Array, slots: Array },
}

/// Both buffers, with the step's tokens in the slots that follow from their positions. New buffers are made if there
/// are none.
pub(super) fn write_both(
    store: Option<&Rc<Store>>,
    (fresh, values): (&Fresh<'_>, &Array),
    (offsets, ring): (&Array, bool),
    capacity: usize,
    scheme: Option<Scheme>,
) -> Result<Vec<Array>> {
    let keys = &fresh.keys;
    let buffers = match store {
        None => Buffers::New(capacity as i32),
        Some(store) => {
            let [k, v] = store.arrays.as_slice() else {
                return Err(incompatible());
            };
            check(k, keys.shape()?, keys.dtype(), scheme)?;
            check(v, values.dims()?, values.dtype(), scheme)?;
            if k.shape()[2] as usize >= capacity && !store.is_own() {
                Buffers::Shared(k, v)
            } else {
                // A buffer that has grown is new, so nothing else reads it.
                Buffers::Own(grown(k, capacity)?, grown(v, capacity)?)
            }
        }
    };
    let slots = fast::Slots { ring, scheme };
    if let Some([queries, keys]) = fresh.projections() {
        let (heads, k, v) = fast::heads_and_store(queries, buffers, keys, values, slots)?;
        fresh.set_queries(heads);
        return Ok(vec![k, v]);
    }
    let (k, v) = match keys {
        Keys::Heads(keys) => fast::store(buffers, keys, values, offsets, slots)?,
        Keys::Projection(keys) => fast::store_heads(buffers, keys, values, slots)?,
    };
    Ok(vec![k, v])
}

/// Checks that new keys or values of this shape, packed in the scheme if there is one, have the heads and features of a
/// buffer.
fn check(buffer: &Array, shape: [i32; 4], dtype: DType, scheme: Option<Scheme>) -> Result<()> {
    let ([b, heads, _, d], [rows, new_heads, _, new_d]) = (buffer.dims()?, shape);
    let new_d = match scheme {
        Some(scheme) => fast::packed_words(new_d, dtype, scheme)?,
        None => new_d,
    };
    if (b, heads, d) == (rows, new_heads, new_d) {
        return Ok(());
    }
    let message = format!(
        "cache holds {:?}, given keys or values {shape:?}",
        buffer.shape()
    );
    Err(Error::new(ErrorKind::Shape, message))
}

/// Writes keys or values that are already in the cache's storage format to a buffer of the store.
pub(super) fn write(
    store: &Rc<Store>,
    buffer: &Array,
    new: &Array,
    places: &Places,
    capacity: usize,
) -> Result<Array> {
    check(buffer, new.dims()?, new.dtype(), None)?;
    let [b, heads, l, d] = new.dims()?;
    let in_place = store.is_own() && buffer.shape()[2] as usize >= capacity;
    let buffer = grown(buffer, capacity)?;
    match places {
        Places::Range(start) => {
            let starts = [0, 0, *start as i32, 0];
            let stops = [b, heads, *start as i32 + l, d];
            if in_place {
                inplace::slice_update_in_place(buffer, new, &starts, &stops)
            } else {
                buffer.slice_update(new, &starts, &stops)
            }
        }
        Places::Scattered { rows, slots } => {
            let updates = new.swapaxes(1, 2)?.reshape(&[b, l, 1, heads, 1, d])?;
            if in_place {
                inplace::scatter_in_place(buffer, &[rows, slots], &updates, &[0, 2])
            } else {
                buffer.scatter(&[rows, slots], &updates, &[0, 2])
            }
        }
    }
}
