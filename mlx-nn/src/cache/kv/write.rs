//! Writing the tokens of a step into a layer's buffers.

use std::rc::Rc;

use mlx_core::{Array, Error, ErrorKind, Result, Scheme, fast, inplace};

use super::{Store, grown};

/// Where the tokens of a step go.
pub(crate) enum Slots {
    /// Row b writes from position `offsets[b]` on, in a ring modulo the buffer's size: where one
    /// operation does all of it.
    Positions { offsets: Array, ring: bool },
    /// As the places say.
    Each(Places),
}

/// Slots, told one by one.
pub(crate) enum Places {
    /// Every row writes `start..start + L`.
    Range(usize),
    /// `[B, L]` row numbers and slots.
    Scattered { rows: Array, slots: Array },
}

pub(super) fn write_both(
    store: &Rc<Store>,
    new: (&Array, &Array),
    (offsets, ring): (&Array, bool),
    capacity: usize,
    scheme: Option<Scheme>,
) -> Result<(Array, Array)> {
    let buffers = (&store.k, &store.v);
    for (buffer, new) in [(buffers.0, new.0), (buffers.1, new.1)] {
        check(buffer, new, scheme)?;
    }
    if store.k.shape()[2] as usize >= capacity && !store.is_own() {
        return inplace::store_in_copy(buffers, new, offsets, ring, scheme);
    }
    // What has grown is nobody else's.
    let buffers = (grown(buffers.0, capacity)?, grown(buffers.1, capacity)?);
    inplace::store_in_place(buffers, new, offsets, ring, scheme)
}

/// Whether `new`, packed in the scheme if there is one, has the heads and features of a buffer.
fn check(buffer: &Array, new: &Array, scheme: Option<Scheme>) -> Result<()> {
    let ([b, heads, _, d], [rows, new_heads, _, new_d]) = (buffer.dims()?, new.dims()?);
    let new_d = match scheme {
        Some(scheme) => fast::packed_words(new_d, new.dtype(), scheme)?,
        None => new_d,
    };
    if (b, heads, d) == (rows, new_heads, new_d) {
        return Ok(());
    }
    let message = format!(
        "cache holds {:?}, given keys or values {:?}",
        buffer.shape(),
        new.shape()
    );
    Err(Error::new(ErrorKind::Shape, message))
}

/// Writes what is as it is kept.
pub(super) fn write(
    store: &Rc<Store>,
    pick: fn(&Store) -> Array,
    new: &Array,
    places: &Places,
    capacity: usize,
) -> Result<Array> {
    let buffer = pick(store);
    check(&buffer, new, None)?;
    let [b, heads, l, d] = new.dims()?;
    let in_place = store.is_own() && buffer.shape()[2] as usize >= capacity;
    let buffer = grown(&buffer, capacity)?;
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
            let updates = new.swap_axes(1, 2)?.reshape(&[b, l, 1, heads, 1, d])?;
            if in_place {
                inplace::scatter_in_place(buffer, &[rows, slots], &updates, &[0, 2])
            } else {
                buffer.scatter(&[rows, slots], &updates, &[0, 2])
            }
        }
    }
}
