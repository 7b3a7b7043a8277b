//! Rows of keys and values: how they are cut out, copied, joined and committed.

use std::rc::Rc;

use mlx_core::{Array, Result, fast, inplace};

use super::{Extent, KvCache, Store, grown, placed};
use crate::cache::state::{Kept, LayerState, RowLen, State, incompatible, refusal};

impl KvCache {
    /// The slots of the longest of these rows.
    fn used(&self, rows: &[RowLen]) -> usize {
        rows.iter().map(|&row| self.slots(row)).max().unwrap_or(0)
    }

    /// The slots that a row takes. A ring that has wrapped is one piece.
    fn slots(&self, row: RowLen) -> usize {
        match self.extent {
            Extent::Ring { window, slack, .. } if row.written > window + slack => window + slack,
            Extent::Grows { .. } | Extent::Ring { .. } => row.len,
        }
    }
}

impl State for KvCache {
    fn prepare(&mut self, kept: &Kept<'_>) -> Result<()> {
        match self.pending.is_some() && !kept.is_whole() {
            true => Err(kept.too_wide()),
            false => Ok(()),
        }
    }

    fn end_step(&mut self, commit: bool) {
        if let Some(store) = self.pending.take()
            && commit
        {
            self.store = Some(store);
        }
    }

    /// A ring can be shortened if it still holds the `window - 1` positions before `len`, which a
    /// token at position `len` sees.
    fn can_rewind(&self, _row: usize, held: RowLen, len: usize) -> bool {
        match self.extent {
            Extent::Grows { .. } => true,
            Extent::Ring { window, slack, .. } => {
                held.written <= window + slack || held.written <= len + slack + 1
            }
        }
    }

    fn truncate(&mut self, _row: usize, _len: usize) -> Result<()> {
        Ok(())
    }

    fn record(&mut self, _row: usize, _len: usize) -> Result<()> {
        Ok(())
    }

    fn clear(&mut self, _row: usize) {}

    fn select(&self, _rows: &[usize], indices: &Array) -> Result<LayerState> {
        let store = match &self.store {
            Some(store) => Some(Store::new(store.each(|buffer| buffer.take(indices, 0))?)),
            None => None,
        };
        Ok(LayerState::Kv(self.with(store)))
    }

    fn join(&self, other: &LayerState, lens: [&[RowLen]; 2]) -> Result<LayerState> {
        let LayerState::Kv(other) = other else {
            return Err(incompatible());
        };
        let capacity = self.capacity().max(other.capacity());
        let [rows, others] = lens.map(<[RowLen]>::len);
        let parts = [
            (&self.store, 0, self.used(lens[0])),
            (&other.store, rows as i32, other.used(lens[1])),
        ];
        let Some(like) = self.store.as_ref().or(other.store.as_ref()) else {
            return Ok(LayerState::Kv(self.with(None)));
        };
        let joined = |(at, like): (usize, &Array)| -> Result<Array> {
            let [_, heads, _, d] = like.dims()?;
            let shape = [(rows + others) as i32, heads, capacity as i32, d];
            let mut buffer = fast::blank(&shape, like.dtype())?;
            for (store, first, used) in parts {
                if let Some(store) = store {
                    buffer = placed(&buffer, &store.arrays[at], first, used)?;
                }
            }
            Ok(buffer)
        };
        let arrays = like.arrays.iter().enumerate().map(joined);
        let store = Store::new(arrays.collect::<Result<_>>()?);
        Ok(LayerState::Kv(self.with(Some(store))))
    }

    fn has_room_for(&self, other: &LayerState) -> bool {
        let LayerState::Kv(other) = other else {
            return false;
        };
        let fits = |store: &Rc<Store>| store.is_own() && self.capacity() >= other.capacity();
        other.store.is_none() || self.store.as_ref().is_some_and(fits)
    }

    fn put(
        &mut self,
        (row, rows): (usize, usize),
        other: &LayerState,
        (from, held): (usize, RowLen),
    ) -> Result<()> {
        let LayerState::Kv(other) = other else {
            return Err(incompatible());
        };
        let Some(new) = &other.store else {
            return Ok(());
        };
        let used = other.slots(held) as i32;
        let capacity = self.capacity().max(other.capacity());
        let store = self.store.take();
        let written = |(at, new): (usize, &Array)| -> Result<Array> {
            let [_, heads, held, d] = new.dims()?;
            let (row, from, held) = (row as i32, from as i32, held.min(used));
            let new = new.slice_axis(0, from, from + 1)?.slice_axis(2, 0, held)?;
            let (starts, stops) = ([row, 0, 0, 0], [row + 1, heads, held, d]);
            match &store {
                Some(store) => {
                    let held = &store.arrays[at];
                    let in_place = store.is_own() && held.shape()[2] as usize >= capacity;
                    let buffer = grown(held, capacity)?;
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
        let arrays = new.arrays.iter().enumerate().map(written);
        self.store = Some(Store::new(arrays.collect::<Result<_>>()?));
        Ok(())
    }

    fn view(&self, row: usize, held: RowLen, len: usize) -> Result<LayerState> {
        let row = row as i32;
        let slots = self.slots(RowLen { len, ..held }).min(self.capacity()) as i32;
        let part = |array: &Array| array.slice_axis(0, row, row + 1)?.slice_axis(2, 0, slots);
        let store = match &self.store {
            Some(store) => Some(Rc::new(Store {
                arrays: store.each(part)?,
                borrowed: true,
            })),
            None => None,
        };
        Ok(LayerState::Kv(self.with(store)))
    }

    fn fill(&mut self, held: RowLen, arrays: Vec<Array>) -> Result<()> {
        let slots = self.slots(held);
        for array in &arrays {
            let [rows, _, held, _] = array.dims()?;
            if rows != 1 || held as usize != slots {
                return Err(refusal(format!(
                    "keys or values {:?} where 1 row of {slots} slots belongs",
                    array.shape()
                )));
            }
        }
        self.store = Some(Rc::new(Store {
            arrays,
            borrowed: true,
        }));
        Ok(())
    }

    fn shrink(&mut self, longest: usize) -> Result<()> {
        let capacity = match self.extent {
            Extent::Grows { by } => longest.div_ceil(by) * by,
            Extent::Ring { window, slack, by } => (longest.div_ceil(by) * by).min(window + slack),
        };
        if let Some(store) = &self.store
            && capacity < self.capacity()
        {
            // A copy, because a view would keep the whole buffer alive.
            let part = |array: &Array| array.slice_axis(2, 0, capacity as i32)?.contiguous();
            self.store = match capacity {
                0 => None,
                _ => Some(Rc::new(Store {
                    arrays: store.each(part)?,
                    // `contiguous` of a small array may still be a view.
                    borrowed: store.borrowed,
                })),
            };
        }
        Ok(())
    }

    fn arrays(&self) -> Vec<&Array> {
        let store = self.pending.as_ref().or(self.store.as_ref());
        store.into_iter().flat_map(|store| &store.arrays).collect()
    }

    fn recorded_arrays(&self) -> Vec<&Array> {
        Vec::new()
    }
}
