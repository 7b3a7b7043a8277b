//! Keys and values of one layer: a buffer that grows, or a ring.

use std::rc::Rc;

use mlx_core::ops::{concat, create::zeros};
use mlx_core::{Array, Error, ErrorKind, Result, inplace};

use super::{CacheOptions, LayerKind};

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

/// Two buffers `[B, K, capacity, D]`.
#[derive(Debug)]
struct Store {
    k: Array,
    v: Array,
}

/// Keys and values of one layer.
#[derive(Clone, Debug)]
pub(crate) struct KvCache {
    pub(crate) extent: Extent,
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
            store: None,
            pending: None,
        }
    }

    /// Slots of the buffers, 0 before the first write.
    pub(crate) fn capacity(&self) -> usize {
        self.store
            .as_ref()
            .map_or(0, |store| store.k.shape()[2] as usize)
    }

    /// Writes `k` and `v`, `[B, K, L, D]`, in place: row b's token j at slot `slots[b][j]`.
    ///
    /// Returns the buffers, of at least `capacity` slots.
    pub(crate) fn write(
        &mut self,
        k: &Array,
        v: &Array,
        slots: &Slots,
        capacity: usize,
    ) -> Result<(Array, Array)> {
        let store = match self.store.take() {
            Some(store) => store,
            None => Rc::new(Store {
                k: buffer(k, capacity)?,
                v: buffer(v, capacity)?,
            }),
        };
        // A write that fails leaves no store: the error is of a broken step, and whoever catches it
        // must not go on with half of it.
        let k = write(&store, |store| store.k.clone(), k, slots, capacity)?;
        let v = write(&store, |store| store.v.clone(), v, slots, capacity)?;
        self.store = Some(Rc::new(Store {
            k: k.clone(),
            v: v.clone(),
        }));
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
        self.pending = Some(Rc::new(Store { k, v }));
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

    /// Whether a row that has written `written` positions still shows all it showed at length `len`.
    pub(crate) fn can_rewind(&self, written: usize, len: usize) -> bool {
        match self.extent {
            Extent::Grows { .. } => true,
            Extent::Ring { window, slack, .. } => {
                written <= window + slack || written <= len + slack
            }
        }
    }

    pub(crate) fn select(&self, rows: &Array) -> Result<Self> {
        self.map(|array| array.take(rows, 0))
    }

    pub(crate) fn join(&self, other: &Self, rows: usize, others: usize) -> Result<Self> {
        let capacity = self.capacity().max(other.capacity());
        let store = match (&self.store, &other.store) {
            (None, None) => None,
            (a, b) => {
                let like = a.as_ref().or(b.as_ref()).expect("one of them is there");
                let part = |store: &Option<Rc<Store>>, rows: usize, pick: fn(&Store) -> &Array| {
                    match store {
                        Some(store) => grown(pick(store), capacity),
                        None => {
                            let shape = pick(like).shape();
                            zeros(
                                &[rows as i32, shape[1], capacity as i32, shape[3]],
                                pick(like).dtype(),
                            )
                        }
                    }
                };
                let joined = |pick: fn(&Store) -> &Array| {
                    concat(&[part(a, rows, pick)?, part(b, others, pick)?], 0)
                };
                Some(Rc::new(Store {
                    k: joined(|store| &store.k)?,
                    v: joined(|store| &store.v)?,
                }))
            }
        };
        Ok(Self {
            extent: self.extent,
            store,
            pending: None,
        })
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
                })),
            };
        }
        Ok(())
    }

    /// Writes row `from` of `other` over row `row` of `rows`.
    pub(crate) fn put(&mut self, row: usize, rows: usize, other: &Self, from: usize) -> Result<()> {
        let Some(new) = &other.store else {
            return Ok(());
        };
        let capacity = self.capacity().max(other.capacity());
        let store = self.store.take();
        let written = |pick: fn(&Store) -> &Array| -> Result<Array> {
            let [_, heads, held, d] = pick(new).dims()?;
            let (row, from) = (row as i32, from as i32);
            let new = pick(new).slice_axis(0, from, from + 1)?;
            let (starts, stops) = ([row, 0, 0, 0], [row + 1, heads, held, d]);
            match &store {
                Some(store) => {
                    let in_place =
                        Rc::strong_count(store) == 1 && pick(store).shape()[2] as usize >= capacity;
                    let buffer = grown(pick(store), capacity)?;
                    match in_place {
                        true => inplace::slice_update_in_place(buffer, &new, &starts, &stops),
                        false => buffer.slice_update(&new, &starts, &stops),
                    }
                }
                None => {
                    let shape = [rows as i32, heads, capacity as i32, d];
                    zeros(&shape, new.dtype())?.slice_update(&new, &starts, &stops)
                }
            }
        };
        let (k, v) = (written(|store| &store.k)?, written(|store| &store.v)?);
        self.store = Some(Rc::new(Store { k, v }));
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
            Some(store) => Some(Rc::new(Store {
                k: f(&store.k)?,
                v: f(&store.v)?,
            })),
            None => None,
        };
        Ok(Self {
            extent: self.extent,
            store,
            pending: None,
        })
    }
}

/// Where the tokens of a step go.
pub(crate) enum Slots {
    /// Every row writes `start..start + L`.
    Range(usize),
    /// `[B, L]` row numbers and slots.
    Scattered { rows: Array, slots: Array },
}

fn write(
    store: &Rc<Store>,
    pick: fn(&Store) -> Array,
    new: &Array,
    slots: &Slots,
    capacity: usize,
) -> Result<Array> {
    let alone = Rc::strong_count(store) == 1;
    let buffer = pick(store);
    let [b, heads, l, d] = new.dims()?;
    if buffer.shape()[0] != b || buffer.shape()[1] != heads || buffer.shape()[3] != d {
        let message = format!(
            "cache holds {:?}, given keys or values {:?}",
            buffer.shape(),
            new.shape()
        );
        return Err(Error::new(ErrorKind::Shape, message));
    }
    let in_place = alone && buffer.shape()[2] as usize >= capacity;
    let buffer = grown(&buffer, capacity)?;
    match slots {
        Slots::Range(start) => {
            let starts = [0, 0, *start as i32, 0];
            let stops = [b, heads, *start as i32 + l, d];
            if in_place {
                inplace::slice_update_in_place(buffer, new, &starts, &stops)
            } else {
                buffer.slice_update(new, &starts, &stops)
            }
        }
        Slots::Scattered { rows, slots } => {
            let updates = new.swap_axes(1, 2)?.reshape(&[b, l, 1, heads, 1, d])?;
            if in_place {
                inplace::scatter_in_place(buffer, &[rows, slots], &updates, &[0, 2])
            } else {
                buffer.scatter(&[rows, slots], &updates, &[0, 2])
            }
        }
    }
}

/// An empty buffer for keys or values like `new`. Zeros: a masked slot that held NaN would poison
/// the sum it does not take part in.
fn buffer(new: &Array, capacity: usize) -> Result<Array> {
    let [b, heads, _, d] = new.dims()?;
    zeros(&[b, heads, capacity as i32, d], new.dtype())
}

fn grown(buffer: &Array, capacity: usize) -> Result<Array> {
    let [b, heads, held, d] = buffer.dims()?;
    if held as usize >= capacity {
        return Ok(buffer.clone());
    }
    let more = zeros(&[b, heads, capacity as i32 - held, d], buffer.dtype())?;
    concat(&[buffer, &more], 2)
}
