//! A single row: cut out of a cache to be kept, or restored from a file.

use std::collections::BTreeSet;

use mlx_core::{Array, Result};

use super::state::{LayerState, refusal};
use super::{CacheOptions, LayerKind, ModelCache, in_layer};
use crate::mask::position;

impl ModelCache {
    /// Whether row `row` still holds everything that tokens after its first `len` positions depend
    /// on.
    pub fn can_shorten(&self, row: usize, len: usize) -> bool {
        let held = self.lens[row];
        len == held || (len < held && self.lost_at(row, len).is_none())
    }

    /// The greatest length of at most `most` to which row `row` [can](Self::can_shorten) be
    /// shortened; 0 if all of its positions have to be computed again.
    pub fn longest_prefix(&self, row: usize, most: usize) -> usize {
        let recorded = self.recorded(row);
        let shorter = recorded.iter().rev().copied().filter(|&len| len < most);
        let mut lengths = std::iter::once(most).chain(shorter);
        lengths.find(|&len| self.can_shorten(row, len)).unwrap_or(0)
    }

    /// The first `len` positions of row `row`, as a cache of one row [beside](Self::beside) this one. It shares the
    /// pages of keys and values, and has copies of recurrent states. Nothing is evaluated.
    ///
    /// # Errors
    /// The row does not exist, or [cannot be shortened](Self::can_shorten) to `len`.
    pub fn prefix(&self, row: usize, len: usize) -> Result<Self> {
        if row >= self.rows() || !self.can_shorten(row, len) {
            return Err(refusal(format!(
                "the first {len} positions of row {row} are not held"
            )));
        }
        let held = self.lens[row];
        let mut own = self.beside(1);
        for (layer, from) in own.layers.iter_mut().zip(&self.layers) {
            if let LayerState::Recurrent(state) = from {
                *layer = LayerState::Recurrent(Box::new(state.prefix(row, held, len)?));
            }
        }
        own.pages[0].clone_from(&self.pages[row]);
        own.pages[0]
            .iter_mut()
            .for_each(|pages| pages.truncate(len));
        (own.lens[0], own.expected[0]) = (len, len);
        Ok(own)
    }

    /// The same rows in memory of their own, with nothing but them in it. Nothing is evaluated.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn detached(&self) -> Result<Self> {
        let mut own = Self::new(&self.kinds, 0, self.options);
        own.join(self)?;
        Ok(own)
    }

    /// The number that [`from_row`](Self::from_row) needs beside the row's length: how many positions a ring of each
    /// layer with a window would have been given, if its last ones are those that the layer holds.
    pub fn written(&self, row: usize) -> usize {
        let pool = self.pool.borrow();
        let groups = pool.groups().iter().zip(&self.pages[row]);
        let written = groups.filter_map(|(group, pages)| {
            let ring = group.window? + self.options.slack;
            (pages.held_from() > 0).then_some(pages.held_from() + ring)
        });
        written.fold(self.lens[row], usize::max)
    }

    /// The lengths below its own at which the recurrent layers have [recorded](Self::record) row `row`. Empty if there
    /// are no recurrent layers: other layers need no record.
    pub fn recorded(&self, row: usize) -> Vec<usize> {
        let lengths = self.layers.iter().filter_map(|layer| match layer {
            LayerState::Recurrent(state) => Some(state.lengths(row)),
            LayerState::Paged => None,
        });
        let lengths: BTreeSet<usize> = lengths.flatten().collect();
        let own = self.lens[row];
        lengths.into_iter().filter(|&len| len < own).collect()
    }

    /// The states that row `row` had at a [recorded](Self::recorded) length: the layer and its arrays, for
    /// each recurrent layer.
    pub fn recorded_state(&self, row: usize, len: usize) -> Vec<(usize, &[Array])> {
        let layers = self.layers.iter().enumerate();
        layers
            .filter_map(|(index, layer)| match layer {
                LayerState::Recurrent(state) => Some((index, state.recorded(row, len)?)),
                LayerState::Paged => None,
            })
            .collect()
    }

    /// Adds the state of a recorded length to row `row`: the arrays of each recurrent layer in turn, as
    /// [`recorded_state`](Self::recorded_state) gave them.
    ///
    /// # Errors
    /// The length is not below the row's, or the arrays do not fit such a state; the message names the layer.
    pub fn restore(&mut self, row: usize, len: usize, states: Vec<Vec<Array>>) -> Result<()> {
        self.last = None;
        self.check_row(row)?;
        if len == 0 || len >= self.lens[row] {
            return Err(refusal(format!(
                "a row of {} positions has no recorded state at {len}",
                self.lens[row]
            )));
        }
        let layers = self.layers.iter_mut().enumerate();
        let recurrent = layers.filter_map(|(at, layer)| Some((at, layer.recurrent()?)));
        let recurrent: Vec<_> = recurrent.collect();
        if recurrent.len() != states.len() {
            let (n, wanted) = (states.len(), recurrent.len());
            return Err(refusal(format!(
                "states of {n} layers where {wanted} are recurrent"
            )));
        }
        for ((at, layer), arrays) in recurrent.into_iter().zip(states) {
            let restored = layer.restore(row, len, arrays);
            restored.map_err(|error| in_layer(at, &error))?;
        }
        Ok(())
    }

    /// The arrays of row `row` in the order of [`LayerKind::part_names`], layer by layer, as
    /// [`from_row`](Self::from_row) takes them. Keys and values are `[1, K, S, D]` with the row's S positions in order.
    /// A layer with a window that has passed the first positions has a ring: position p is at `p mod (window + slack)`.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn to_row(&self, row: usize) -> Result<Vec<Array>> {
        let (len, written) = (self.lens[row], self.written(row));
        let pool = self.pool.borrow();
        let mut arrays = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            if let LayerState::Recurrent(state) = layer {
                arrays.extend(state.views(row)?);
                continue;
            }
            let group = pool.group_of(index)?;
            let pages = &self.pages[row][group];
            let ring = pool.groups()[group].window;
            let ring = ring.map(|window| window + self.options.slack);
            match ring.filter(|&ring| written > ring) {
                None => arrays.extend(pool.positions(index, pages, (0, len))?),
                Some(ring) => {
                    let first = written - ring;
                    let held = pool.positions(index, pages, (first, len))?;
                    // Slots of positions that are not held have any content.
                    let order: Vec<i32> = (0..ring)
                        .map(|slot| position(slot, written, ring) - first as i64)
                        .map(|at| at.min((len - first) as i64 - 1) as i32)
                        .collect();
                    let order = Array::from_slice(&order, &[ring as i32])?;
                    let turned = held.iter().map(|array| array.take(&order, 2));
                    arrays.extend(turned.collect::<Result<Vec<_>>>()?);
                }
            }
        }
        Ok(arrays)
    }

    /// A cache with one row of `len` positions from the [arrays](Self::to_row) of a row: the parts of each layer in
    /// turn. `written` is that of the [row](Self::written).
    ///
    /// # Errors
    /// The arrays do not fit such a row; the message names the layer.
    pub fn from_row(
        kinds: &[LayerKind],
        options: CacheOptions,
        len: usize,
        written: usize,
        arrays: Vec<Array>,
    ) -> Result<Self> {
        Self::new(kinds, 0, options).row_from(len, written, arrays)
    }

    /// [`from_row`](Self::from_row), [beside](Self::beside) this cache.
    ///
    /// # Errors
    /// Those of [`from_row`](Self::from_row).
    pub fn row_from(&self, len: usize, written: usize, arrays: Vec<Array>) -> Result<Self> {
        let options = self.options;
        let parts = |kind: &LayerKind| kind.part_names().len();
        let wanted: usize = self.kinds.iter().map(parts).sum();
        if arrays.len() != wanted {
            let n = arrays.len();
            return Err(refusal(format!("a row needs {wanted} arrays, given {n}")));
        }
        if len == 0 || written < len || written > len + options.slack + 1 {
            return Err(refusal(format!(
                "a row of {len} positions cannot have written {written}"
            )));
        }
        let mut cache = self.beside(1);
        let kinds = cache.kinds.clone();
        let mut arrays = arrays.into_iter();
        {
            let mut pool = cache.pool.borrow_mut();
            let windows: Vec<_> = pool.groups().iter().map(|group| group.window).collect();
            for (pages, window) in cache.pages[0].iter_mut().zip(windows) {
                let ring = window.map(|window| window + options.slack);
                let begin = ring.map_or(0, |ring| written.saturating_sub(ring));
                pages.prepare(begin, len);
            }
            for (index, (kind, layer)) in kinds.iter().zip(&mut cache.layers).enumerate() {
                let arrays: Vec<Array> = arrays.by_ref().take(parts(kind)).collect();
                let filled = match layer {
                    LayerState::Recurrent(state) => state.fill(arrays),
                    LayerState::Paged => {
                        let group = pool.group_of(index)?;
                        let ring = pool.groups()[group].window;
                        let ring = ring.map(|window| window + options.slack);
                        in_order(&arrays, len, written, ring).and_then(|(begin, arrays)| {
                            pool.fill(index, &cache.pages[0][group], begin, &arrays)
                        })
                    }
                };
                filled.map_err(|error| in_layer(index, &error))?;
            }
        }
        (cache.lens[0], cache.expected[0]) = (len, len);
        Ok(cache)
    }
}

/// Keys or values of a row, whose slots may be a ring, in the order of positions, and the first
/// position.
fn in_order(
    arrays: &[Array],
    len: usize,
    written: usize,
    ring: Option<usize>,
) -> Result<(usize, Vec<Array>)> {
    let ring = ring.filter(|&ring| written > ring);
    let slots = ring.unwrap_or(len);
    for array in arrays {
        let [rows, _, held, _] = array.dims()?;
        if rows != 1 || held as usize != slots {
            return Err(refusal(format!(
                "keys or values {:?} where 1 row of {slots} slots belongs",
                array.shape()
            )));
        }
    }
    let Some(ring) = ring else {
        return Ok((0, arrays.to_vec()));
    };
    let begin = written - ring;
    let order: Vec<i32> = (begin..len)
        .map(|position| (position % ring) as i32)
        .collect();
    let order = Array::from_slice(&order, &[order.len() as i32])?;
    let turned = arrays.iter().map(|array| array.take(&order, 2));
    Ok((begin, turned.collect::<Result<_>>()?))
}
