//! One row on its own: cut out of a cache to be kept, or put together from a file.

use mlx_core::{Array, Error, ErrorKind, Result};

use super::kv::KvCache;
use super::{CacheOptions, LayerKind, ModelCache};

impl ModelCache {
    /// Whether row `row` still holds what tokens behind its first `len` positions may see of them.
    pub fn can_shorten(&self, row: usize, len: usize) -> bool {
        let held = |layer: &KvCache| layer.can_rewind(self.written[row], len);
        len == self.lens[row] || (len < self.lens[row] && self.layers.iter().all(held))
    }

    /// The first `len` positions of row `row`, as a cache of one row. It shares the buffers of this one,
    /// which must not be written before it has been computed with or [copied](Self::compacted).
    ///
    /// # Errors
    /// The row does not exist or does not [hold](Self::can_shorten) them.
    pub fn prefix(&self, row: usize, len: usize) -> Result<Self> {
        if row >= self.rows() || !self.can_shorten(row, len) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("the first {len} positions of row {row} are not held"),
            ));
        }
        let written = self.written[row];
        let layers: Result<Vec<_>> = self
            .layers
            .iter()
            .map(|layer| layer.view(row, layer.slots(written, len)))
            .collect();
        Ok(Self {
            lens: vec![len],
            expected: vec![len],
            written: vec![written.max(len)],
            layers: layers?,
            options: self.options,
        })
    }

    /// A copy in buffers of its own, which are as large as what they hold. Nothing is evaluated.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn compacted(&self) -> Result<Self> {
        let mut copy = self.clone();
        copy.select(&(0..self.rows()).collect::<Vec<_>>())?;
        Ok(copy)
    }

    /// How many positions row `row` has ever written; with its length, what [`from_row`](Self::from_row)
    /// has to know.
    pub fn written(&self, row: usize) -> usize {
        self.written[row]
    }

    /// A cache of one row of `len` positions from the [arrays](Self::arrays) of a
    /// [prefix](Self::prefix), keys and values of each layer in turn: `[1, K, slots, D]`.
    ///
    /// # Errors
    /// The arrays are not those of such a row; the message names the layer.
    pub fn from_row(
        kinds: &[LayerKind],
        options: CacheOptions,
        len: usize,
        written: usize,
        arrays: Vec<Array>,
    ) -> Result<Self> {
        let fault = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        if arrays.len() != 2 * kinds.len() {
            let (n, wanted) = (arrays.len(), 2 * kinds.len());
            return fault(format!("a row needs {wanted} arrays, given {n}"));
        }
        if len == 0 || written < len || written > len + options.slack + 1 {
            return fault(format!(
                "a row of {len} positions cannot have written {written}"
            ));
        }
        let mut cache = Self::new(kinds, 1, options);
        let mut arrays = arrays.into_iter();
        for (index, layer) in cache.layers.iter_mut().enumerate() {
            let slots = layer.slots(written, len);
            let (Some(k), Some(v)) = (arrays.next(), arrays.next()) else {
                unreachable!("they were counted");
            };
            for array in [&k, &v] {
                let [rows, _, held, _] = array.dims()?;
                if rows != 1 || held as usize != slots {
                    return fault(format!(
                        "layer {index}: keys or values {:?} where 1 row of {slots} slots belongs",
                        array.shape()
                    ));
                }
            }
            layer.fill(k, v);
        }
        (cache.lens[0], cache.expected[0], cache.written[0]) = (len, len, written);
        Ok(cache)
    }
}
