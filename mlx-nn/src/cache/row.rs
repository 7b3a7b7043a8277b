//! A single row: cut out of a cache to be kept, or restored from a file.

use std::collections::BTreeSet;

use mlx_core::{Array, Result};

use super::state::{LayerState, RowLen, refusal};
use super::{CacheOptions, LayerKind, ModelCache, in_layer};

impl ModelCache {
    /// Whether row `row` still holds everything that tokens after its first `len` positions depend
    /// on.
    pub fn can_shorten(&self, row: usize, len: usize) -> bool {
        let held = |layer: &LayerState| layer.state().can_rewind(row, self.row_len(row), len);
        len == self.lens[row] || (len < self.lens[row] && self.layers.iter().all(held))
    }

    /// The greatest length of at most `most` to which row `row` [can](Self::can_shorten) be
    /// shortened; 0 if all of its positions have to be computed again.
    pub fn longest_prefix(&self, row: usize, most: usize) -> usize {
        let recorded = self.recorded(row);
        let shorter = recorded.iter().rev().copied().filter(|&len| len < most);
        let mut lengths = std::iter::once(most).chain(shorter);
        lengths.find(|&len| self.can_shorten(row, len)).unwrap_or(0)
    }

    /// The first `len` positions of row `row`, as a cache of one row. It shares the buffers of this cache. This cache
    /// must not be written before the new one has been used or [copied](Self::compacted).
    ///
    /// # Errors
    /// The row does not exist, or [cannot be shortened](Self::can_shorten) to `len`.
    pub fn prefix(&self, row: usize, len: usize) -> Result<Self> {
        if row >= self.rows() || !self.can_shorten(row, len) {
            return Err(refusal(format!(
                "the first {len} positions of row {row} are not held"
            )));
        }
        let held = self.row_len(row);
        let layers: Result<Vec<_>> = self
            .layers
            .iter()
            .map(|layer| layer.state().view(row, held, len))
            .collect();
        Ok(Self {
            kinds: self.kinds.clone(),
            lens: vec![len],
            expected: vec![len],
            written: vec![held.written.max(len)],
            layers: layers?,
            options: self.options,
            last: None,
        })
    }

    /// A copy in buffers of its own, which are only as large as their content. Nothing is evaluated.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn compacted(&self) -> Result<Self> {
        let mut copy = self.clone();
        copy.select(&(0..self.rows()).collect::<Vec<_>>())?;
        Ok(copy)
    }

    /// The largest number of positions that row `row` has ever had. [`from_row`](Self::from_row) needs it beside the
    /// row's length.
    pub fn written(&self, row: usize) -> usize {
        self.written[row]
    }

    /// The lengths below its own at which the recurrent layers have [recorded](Self::record) row `row`. Empty if there
    /// are no recurrent layers: other layers need no record.
    pub fn recorded(&self, row: usize) -> Vec<usize> {
        let lengths = self.layers.iter().filter_map(|layer| match layer {
            LayerState::Recurrent(state) => Some(state.lengths(row)),
            LayerState::Kv(_) => None,
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
                LayerState::Kv(_) => None,
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

    /// A cache with one row of `len` positions from the [arrays](Self::row_arrays) of a [prefix](Self::prefix): the
    /// parts of each layer in turn.
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
        let parts = |kind: &LayerKind| kind.part_names().len();
        let wanted: usize = kinds.iter().map(parts).sum();
        if arrays.len() != wanted {
            let n = arrays.len();
            return Err(refusal(format!("a row needs {wanted} arrays, given {n}")));
        }
        if len == 0 || written < len || written > len + options.slack + 1 {
            return Err(refusal(format!(
                "a row of {len} positions cannot have written {written}"
            )));
        }
        let mut cache = Self::new(kinds, 1, options);
        let mut arrays = arrays.into_iter();
        let held = RowLen { len, written };
        for (index, (kind, layer)) in kinds.iter().zip(&mut cache.layers).enumerate() {
            let arrays = arrays.by_ref().take(parts(kind)).collect();
            let filled = layer.state_mut().fill(held, arrays);
            filled.map_err(|error| in_layer(index, &error))?;
        }
        (cache.lens[0], cache.expected[0], cache.written[0]) = (len, len, written);
        Ok(cache)
    }
}
