//! Keys and values of one layer: a buffer that grows, or a ring.

use std::rc::Rc;

use mlx_core::{Array, Result, Scheme, fast, inplace};

use super::{CacheOptions, LayerKind};
use crate::attend::Keys;

mod write;

pub(crate) use write::{Places, Slots};
use write::{write, write_both};

/// How the buffer of a layer is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Position p is at slot p.
    Grows { by: usize },
    /// Position p is at slot `p % (window + slack)`; the buffer grows up to that size.
    Ring {
        window: usize,
        slack: usize,
        by: usize,
    },
}

/// Two buffers `[B, K, capacity, D]`; U32 `[B, K, capacity, words]` of packed rows.
#[derive(Debug)]
struct Store {
    k: Array,
    v: Array,
    /// Views of buffers that another cache holds: they are copied before they are written.
    borrowed: bool,
}

impl Store {
    fn new(k: Array, v: Array) -> Rc<Self> {
        Rc::new(Self {
            k,
            v,
            borrowed: false,
        })
    }

    /// Whether it may be written in place.
    fn is_own(self: &Rc<Self>) -> bool {
        Rc::strong_count(self) == 1 && !self.borrowed
    }
}

/// Keys and values of one layer.
#[derive(Clone, Debug)]
pub(crate) struct KvCache {
    pub(crate) extent: Extent,
    /// How rows are packed, if they are.
    pub(crate) scheme: Option<Scheme>,
    /// Written in place by its only owner, copied when clones share it.
    store: Option<Rc<Store>>,
    /// What the store becomes when the step commits.
    pending: Option<Rc<Store>>,
}

impl KvCache {
    pub(crate) fn new(kind: LayerKind, options: &CacheOptions) -> Self {
        let window = match (kind, options.max_context) {
            (LayerKind::Full, limit) => limit,
            (LayerKind::Window(window), limit) => {
                Some(limit.map_or(window, |limit| window.min(limit)))
            }
        };
        let by = options.growth.max(1);
        let extent = match window {
            None => Extent::Grows { by },
            Some(window) => Extent::Ring {
                window: window.max(1),
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

    /// The same layer with another store.
    fn with(&self, store: Option<Rc<Store>>) -> Self {
        Self {
            extent: self.extent,
            scheme: self.scheme,
            store,
            pending: None,
        }
    }

    /// Keys or values `[.., D]` as they are kept.
    pub(crate) fn kept(&self, new: &Array) -> Result<Array> {
        match self.scheme {
            Some(scheme) => fast::pack(new, scheme),
            None => Ok(new.clone()),
        }
    }

    /// Slots of the buffers, 0 before the first write.
    pub(crate) fn capacity(&self) -> usize {
        self.store
            .as_ref()
            .map_or(0, |store| store.k.shape()[2] as usize)
    }

    /// Writes `k` and `v`, `[B, K, L, D]`, in place: row b's token j at slot `slots[b][j]`, packed where
    /// rows are.
    ///
    /// Returns the buffers, of at least `capacity` slots.
    pub(crate) fn write(
        &mut self,
        k: &Keys<'_>,
        v: &Array,
        slots: &Slots,
        capacity: usize,
    ) -> Result<(Array, Array)> {
        // A write that fails leaves no store: a step that has failed must not be continued with half of it.
        let store = self.store.take();
        let (k, v) = match slots {
            Slots::Positions { offsets, ring } => write_both(
                store.as_ref(),
                (k, v),
                (offsets, *ring),
                capacity,
                self.scheme,
            )?,
            Slots::Each(places) => {
                let (k, v) = (self.kept(&k.heads()?)?, self.kept(v)?);
                let store = match store {
                    Some(store) => store,
                    None => Store::new(empty(&k, capacity)?, empty(&v, capacity)?),
                };
                (
                    write(&store, |store| store.k.clone(), &k, places, capacity)?,
                    write(&store, |store| store.v.clone(), &v, places, capacity)?,
                )
            }
        };
        self.store = Some(Store::new(k.clone(), v.clone()));
        Ok((k, v))
    }

    /// The buffers as they are, filled up with empty slots to `capacity`.
    pub(crate) fn read(&self, capacity: usize) -> Result<Option<(Array, Array)>> {
        match &self.store {
            Some(store) => Ok(Some((
                grown(&store.k, capacity)?,
                grown(&store.v, capacity)?,
            ))),
            None => Ok(None),
        }
    }

    /// Takes what the ring holds once the step has committed.
    pub(crate) fn stage(&mut self, k: Array, v: Array) {
        self.pending = Some(Store::new(k, v));
    }

    /// Whether the step can only be kept as a whole.
    pub(crate) fn is_staged(&self) -> bool {
        self.pending.is_some()
    }

    pub(crate) fn settle(&mut self, commit: bool) {
        if let Some(store) = self.pending.take()
            && commit
        {
            self.store = Some(store);
        }
    }

    /// Whether a row that has written `written` positions still holds all that a token at position `len`
    /// sees of those before it: `window - 1` of them.
    pub(crate) fn can_rewind(&self, written: usize, len: usize) -> bool {
        match self.extent {
            Extent::Grows { .. } => true,
            Extent::Ring { window, slack, .. } => {
                written <= window + slack || written <= len + slack + 1
            }
        }
    }

    /// Slots that the first `len` positions of a row take that has written `written`. A ring that has
    /// wrapped is one piece.
    pub(crate) fn slots(&self, written: usize, len: usize) -> usize {
        match self.extent {
            Extent::Ring { window, slack, .. } if written > window + slack => window + slack,
            Extent::Grows { .. } | Extent::Ring { .. } => len,
        }
    }

    /// The first `slots` slots of row `row`, as views.
    pub(crate) fn view(&self, row: usize, slots: usize) -> Result<Self> {
        let row = row as i32;
        let slots = slots.min(self.capacity()) as i32;
        let part = |array: &Array| array.slice_axis(0, row, row + 1)?.slice_axis(2, 0, slots);
        let store = match &self.store {
            Some(store) => Some(Rc::new(Store {
                k: part(&store.k)?,
                v: part(&store.v)?,
                borrowed: true,
            })),
            None => None,
        };
        Ok(self.with(store))
    }

    /// Takes keys and values `[1, K, slots, D]` from elsewhere, as they are kept.
    pub(crate) fn fill(&mut self, k: Array, v: Array) {
        self.store = Some(Rc::new(Store {
            k,
            v,
            borrowed: true,
        }));
    }

    pub(crate) fn select(&self, rows: &Array) -> Result<Self> {
        self.map(|array| array.take(rows, 0))
    }

    /// The rows of `other` behind these; of each of the two, so many rows and slots that are in use.
    pub(crate) fn join(
        &self,
        other: &Self,
        [rows, others]: [usize; 2],
        used: [usize; 2],
    ) -> Result<Self> {
        let capacity = self.capacity().max(other.capacity());
        let parts = [
            (&self.store, 0, used[0]),
            (&other.store, rows as i32, used[1]),
        ];
        let Some(like) = self.store.as_ref().or(other.store.as_ref()) else {
            return Ok(self.with(None));
        };
        let joined = |pick: fn(&Store) -> &Array| -> Result<Array> {
            let [_, heads, _, d] = pick(like).dims()?;
            let shape = [(rows + others) as i32, heads, capacity as i32, d];
            let mut buffer = fast::blank(&shape, pick(like).dtype())?;
            for (store, first, used) in parts {
                if let Some(store) = store {
                    buffer = placed(&buffer, pick(store), first, used)?;
                }
            }
            Ok(buffer)
        };
        let store = Store::new(joined(|store| &store.k)?, joined(|store| &store.v)?);
        Ok(self.with(Some(store)))
    }

    /// Gives back slots behind position `longest`.
    pub(crate) fn shrink(&mut self, longest: usize) -> Result<()> {
        let capacity = match self.extent {
            Extent::Grows { by } => longest.div_ceil(by) * by,
            Extent::Ring { window, slack, by } => (longest.div_ceil(by) * by).min(window + slack),
        };
        if let Some(store) = &self.store
            && capacity < self.capacity()
        {
            // A copy: a view would keep the whole buffer alive.
            let part = |array: &Array| array.slice_axis(2, 0, capacity as i32)?.contiguous();
            self.store = match capacity {
                0 => None,
                _ => Some(Rc::new(Store {
                    k: part(&store.k)?,
                    v: part(&store.v)?,
                    // A copy of few bytes may be a view after all.
                    borrowed: store.borrowed,
                })),
            };
        }
        Ok(())
    }

    /// Writes the first `used` slots of row `from` of `other` over row `row` of `rows`.
    pub(crate) fn put(
        &mut self,
        (row, rows): (usize, usize),
        other: &Self,
        (from, used): (usize, usize),
    ) -> Result<()> {
        let Some(new) = &other.store else {
            return Ok(());
        };
        let capacity = self.capacity().max(other.capacity());
        let store = self.store.take();
        let written = |pick: fn(&Store) -> &Array| -> Result<Array> {
            let [_, heads, held, d] = pick(new).dims()?;
            let (row, from, held) = (row as i32, from as i32, held.min(used as i32));
            let new = pick(new)
                .slice_axis(0, from, from + 1)?
                .slice_axis(2, 0, held)?;
            let (starts, stops) = ([row, 0, 0, 0], [row + 1, heads, held, d]);
            match &store {
                Some(store) => {
                    let in_place = store.is_own() && pick(store).shape()[2] as usize >= capacity;
                    let buffer = grown(pick(store), capacity)?;
                    match in_place {
                        true => inplace::slice_update_in_place(buffer, &new, &starts, &stops),
                        false => buffer.slice_update(&new, &starts, &stops),
                    }
                }
                None => {
                    let shape = [rows as i32, heads, capacity as i32, d];
                    fast::blank(&shape, new.dtype())?.slice_update(&new, &starts, &stops)
                }
            }
        };
        let (k, v) = (written(|store| &store.k)?, written(|store| &store.v)?);
        self.store = Some(Store::new(k, v));
        Ok(())
    }

    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.pending
            .as_ref()
            .or(self.store.as_ref())
            .into_iter()
            .flat_map(|store| [&store.k, &store.v])
    }

    fn map(&self, f: impl Fn(&Array) -> Result<Array>) -> Result<Self> {
        let store = match &self.store {
            Some(store) => Some(Store::new(f(&store.k)?, f(&store.v)?)),
            None => None,
        };
        Ok(self.with(store))
    }
}

/// A buffer for keys or values like `new`, which are in the cache's storage format. Zeros: a masked slot that held NaN
/// would poison the sum that it does not take part in.
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

/// `larger` with the first `used` slots of `part` in its own, from row `first` on.
fn placed(larger: &Array, part: &Array, first: i32, used: usize) -> Result<Array> {
    let [b, heads, held, d] = part.dims()?;
    let used = held.min(used as i32);
    let part = part.slice_axis(2, 0, used)?;
    larger.slice_update(&part, &[first, 0, 0, 0], &[first + b, heads, used, d])
}
