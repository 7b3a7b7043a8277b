//! Keys and values of one layer: a buffer that grows, or a ring.

use std::rc::Rc;

use mlx_core::{Array, Result, Scheme, fast};

use super::state::{incompatible, refusal};
use super::{CacheOptions, LayerKind};
use crate::attend::{Fresh, Keys};

mod rows;
mod write;

pub(crate) use write::{Places, Slots};
use write::{write, write_both};

/// Which slot of a layer's buffers holds which position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Slot p holds position p; the buffer grows by `by` slots.
    Grows { by: usize },
    /// Slot `p % (window + slack)` holds position p; the buffer grows up to that size.
    Ring {
        window: usize,
        slack: usize,
        by: usize,
    },
}

/// Buffers `[B, K, capacity, D]` of keys and, unless values are a part of the keys, of values. For packed rows they are
/// U32 `[B, K, capacity, words]`.
#[derive(Debug)]
struct Store {
    arrays: Vec<Array>,
    /// The arrays are views of another cache's buffers, and are copied before they are written.
    borrowed: bool,
}

impl Store {
    fn new(arrays: Vec<Array>) -> Rc<Self> {
        Rc::new(Self {
            arrays,
            borrowed: false,
        })
    }

    fn keys(&self) -> &Array {
        &self.arrays[0]
    }

    /// Applies `change` to each buffer.
    fn each(&self, change: impl Fn(&Array) -> Result<Array>) -> Result<Vec<Array>> {
        self.arrays.iter().map(change).collect()
    }

    /// Whether the store may be written in place.
    fn is_own(self: &Rc<Self>) -> bool {
        Rc::strong_count(self) == 1 && !self.borrowed
    }
}

/// Keys and values of one layer.
#[derive(Clone, Debug)]
pub(crate) struct KvCache {
    pub(crate) extent: Extent,
    /// How keys and values are quantised, if they are.
    pub(crate) scheme: Option<Scheme>,
    /// Written in place while it has one owner, and copied if clones share it.
    store: Option<Rc<Store>>,
    /// The store after the step, which `store` becomes on commit.
    pending: Option<Rc<Store>>,
}

impl KvCache {
    pub(crate) fn new(kind: LayerKind, options: &CacheOptions) -> Self {
        let by = options.growth.max(1);
        let extent = match kind.window(options) {
            None => Extent::Grows { by },
            Some(window) => Extent::Ring {
                window,
                slack: options.slack,
                by,
            },
        };
        Self {
            extent,
            scheme: options.quantized,
            store: None,
            pending: None,
        }
    }

    /// A copy of the layer with another store.
    fn with(&self, store: Option<Rc<Store>>) -> Self {
        Self {
            extent: self.extent,
            scheme: self.scheme,
            store,
            pending: None,
        }
    }

    /// Keys or values `[.., D]` in the cache's storage format.
    pub(crate) fn kept(&self, new: &Array) -> Result<Array> {
        match self.scheme {
            Some(scheme) => fast::pack(new, scheme),
            None => Ok(new.clone()),
        }
    }

    /// Whether the layer's buffers may be written in place; true if there are no buffers.
    pub(crate) fn is_own(&self) -> bool {
        self.store.as_ref().is_none_or(Store::is_own)
    }

    /// Slots of the buffers, 0 before the first write.
    pub(crate) fn capacity(&self) -> usize {
        self.store
            .as_ref()
            .map_or(0, |store| store.keys().shape()[2] as usize)
    }

    /// Writes `k` and, unless values are a part of it, `v`, `[B, K, L, D]`, in place: row b's token j into slot
    /// `slots[b][j]`, quantised if the cache is.
    ///
    /// Returns the buffers, which have at least `capacity` slots.
    pub(crate) fn write(
        &mut self,
        k: &Fresh<'_>,
        v: Option<&Array>,
        slots: &Slots,
        capacity: usize,
    ) -> Result<Vec<Array>> {
        // A write that fails leaves no store, because a step that failed must not be continued with half of its tokens.
        let store = self.store.take();
        let arrays = match (slots, v) {
            (Slots::Positions { offsets, ring }, Some(v)) => write_both(
                store.as_ref(),
                (k, v),
                (offsets, *ring),
                capacity,
                self.scheme,
            )?,
            (Slots::Positions { .. }, None) => {
                return Err(refusal(
                    "slots of keys without values are computed by the host",
                ));
            }
            (Slots::Each(places), v) => {
                let new = self.kept_both(&k.keys, v)?;
                let store = match store {
                    Some(store) if store.arrays.len() == new.len() => store,
                    Some(_) => return Err(incompatible()),
                    None => {
                        let empty = new.iter().map(|new| empty(new, capacity));
                        Store::new(empty.collect::<Result<_>>()?)
                    }
                };
                let buffers = store.arrays.iter().zip(&new);
                let written =
                    buffers.map(|(buffer, new)| write(&store, buffer, new, places, capacity));
                written.collect::<Result<Vec<_>>>()?
            }
        };
        self.store = Some(Store::new(arrays.clone()));
        Ok(arrays)
    }

    /// New keys and, unless values are a part of them, new values in the cache's storage format.
    pub(crate) fn kept_both(&self, k: &Keys<'_>, v: Option<&Array>) -> Result<Vec<Array>> {
        let k = self.kept(&k.heads()?)?;
        match v {
            Some(v) => Ok(vec![k, self.kept(v)?]),
            None => Ok(vec![k]),
        }
    }

    /// The buffers, extended with empty slots to `capacity`.
    pub(crate) fn read(&self, capacity: usize) -> Result<Option<Vec<Array>>> {
        let store = self.store.as_ref();
        store
            .map(|store| store.each(|buffer| grown(buffer, capacity)))
            .transpose()
    }

    /// Stores the buffers that replace the ring's buffers when the step commits.
    pub(crate) fn stage(&mut self, arrays: Vec<Array>) {
        self.pending = Some(Store::new(arrays));
    }
}

/// A buffer for keys or values like `new`, which are in the cache's storage format. It is filled with zeros, because
/// NaN in a masked slot would make the whole sum NaN.
fn empty(new: &Array, capacity: usize) -> Result<Array> {
    let [b, heads, _, d] = new.dims()?;
    fast::blank(&[b, heads, capacity as i32, d], new.dtype())
}

fn grown(buffer: &Array, capacity: usize) -> Result<Array> {
    let [b, heads, held, d] = buffer.dims()?;
    if held as usize >= capacity {
        return Ok(buffer.clone());
    }
    let more = fast::blank(&[b, heads, capacity as i32, d], buffer.dtype())?;
    placed(&more, buffer, 0, held as usize)
}

/// `larger`, with the first `used` slots of `part` copied into its own, from row `first` on.
fn placed(larger: &Array, part: &Array, first: i32, used: usize) -> Result<Array> {
    let [b, heads, held, d] = part.dims()?;
    let used = held.min(used as i32);
    let part = part.slice_axis(2, 0, used)?;
    larger.slice_update(&part, &[first, 0, 0, 0], &[first + b, heads, used, d])
}
