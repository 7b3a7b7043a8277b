//! [`ModelCache`]: what the layers of a model remember of several rows of tokens.
//!
//! Two ideas make it small. **Row lengths live once**, here and not in the layers: masks, rope
//! offsets and write slots follow from them. **A step is a transaction**: [`ModelCache::begin`]
//! opens a [`Step`] with a width for each row, the layers write, and [`Step::commit`] says how many
//! of its tokens each row keeps. Right padding, finished rows and rejected drafts are the same
//! thing: written, not kept. A step that is dropped leaves the lengths as they were.
//!
//! A row's slot `j` holds position `j` (growing layers) or the last position congruent to `j`
//! (rings), so keeping fewer tokens is only a change of length.

use mlx_core::{Array, Error, ErrorKind, Result, Scheme};

use crate::step::Step;

pub(crate) mod kv;
mod row;

use kv::KvCache;

/// What a layer of a model needs to remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Every position.
    Full,
    /// The last so many positions, the query's own included.
    Window(usize),
}

/// How a [`ModelCache`] stores things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Growing buffers grow by this many positions.
    pub growth: usize,
    /// Extra slots of a ring: steps of up to `slack + 1` tokens may be taken back in part.
    pub slack: usize,
    /// Every layer remembers at most so many positions.
    pub max_context: Option<usize>,
    /// `false`: one step over whole prompts, after which nothing is remembered.
    pub store: bool,
    /// Keys and values are kept packed ([`fast::pack`](mlx_core::fast::pack)), and attended to as that:
    /// also in the step that brings them, so that how a text is cut into steps does not show.
    pub quantized: Option<Scheme>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            growth: 256,
            slack: 0,
            max_context: None,
            store: true,
            quantized: None,
        }
    }
}

/// The caches of all layers, and how much of them belongs to each row.
///
/// Cloning is cheap: the clones share buffers until one of them writes.
#[derive(Clone, Debug)]
pub struct ModelCache {
    pub(crate) lens: Vec<usize>,
    pub(crate) expected: Vec<usize>,
    /// How many positions each row has ever written: what a ring lost does not come back when the
    /// row is shortened.
    pub(crate) written: Vec<usize>,
    pub(crate) layers: Vec<KvCache>,
    pub(crate) options: CacheOptions,
}

impl ModelCache {
    /// Empty caches for `rows` rows of a model with these layers.
    pub fn new(kinds: &[LayerKind], rows: usize, options: CacheOptions) -> Self {
        let layers = kinds
            .iter()
            .map(|&kind| KvCache::new(kind, &options))
            .collect();
        Self {
            lens: vec![0; rows],
            expected: vec![0; rows],
            written: vec![0; rows],
            layers,
            options,
        }
    }

    /// How many positions each row holds.
    pub fn lens(&self) -> &[usize] {
        &self.lens
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.lens.len()
    }

    /// Says that row `row` will hold `positions` positions in the end: embeddings that depend on a
    /// text's length (LongRoPE) treat all its chunks alike.
    pub fn expect(&mut self, row: usize, positions: usize) {
        self.expected[row] = positions;
    }

    /// Opens a step in which row b brings `widths[b]` tokens; the tokens' array is as wide as the
    /// widest, padded on the right with any valid token.
    ///
    /// # Errors
    /// `widths` has another number of rows, or every width is 0.
    pub fn begin(&mut self, widths: &[usize]) -> Result<Step<'_>> {
        Step::new(self, widths)
    }

    /// Opens a step in which row b brings documents of the lengths `documents[b]`, one behind the
    /// other, and none sees another. Positions go on from document to document, which rotary
    /// embeddings do not notice: they tell distances.
    ///
    /// # Errors
    /// The cache stores what it sees ([`CacheOptions::store`]), or as [`begin`](Self::begin).
    pub fn begin_packed(&mut self, documents: &[Vec<usize>]) -> Result<Step<'_>> {
        Step::packed(self, documents)
    }

    /// Keeps the rows `rows`, in that order; a row may appear more than once (a fork).
    ///
    /// # Errors
    /// A row does not exist.
    pub fn select(&mut self, rows: &[usize]) -> Result<()> {
        if let Some(row) = rows.iter().find(|&&row| row >= self.rows()) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("row {row} does not exist; the cache has {}", self.rows()),
            ));
        }
        let indices: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        let indices = Array::from_slice(&indices, &[rows.len() as i32])?;
        let layers: Result<Vec<_>> = self
            .layers
            .iter()
            .map(|layer| layer.select(&indices))
            .collect();
        self.layers = layers?;
        self.lens = rows.iter().map(|&row| self.lens[row]).collect();
        self.expected = rows.iter().map(|&row| self.expected[row]).collect();
        self.written = rows.iter().map(|&row| self.written[row]).collect();
        Ok(())
    }

    /// Appends the rows of `other`, a cache of the same model and options.
    ///
    /// # Errors
    /// The caches are of different make.
    pub fn join(&mut self, other: &ModelCache) -> Result<()> {
        self.check_kin(other)?;
        let (rows, others) = (self.rows(), other.rows());
        let layers: Result<Vec<_>> = self
            .layers
            .iter()
            .zip(&other.layers)
            .map(|(a, b)| a.join(b, [rows, others], [self.used(a), other.used(b)]))
            .collect();
        self.layers = layers?;
        self.lens.extend(&other.lens);
        self.expected.extend(&other.expected);
        self.written.extend(&other.written);
        Ok(())
    }

    /// Writes row `from` of `other`, a cache of the same model and options, over row `row`.
    ///
    /// What the row held before is gone: this is how a slot is used again.
    ///
    /// # Errors
    /// A row does not exist, or the caches are of different make. A write that fails half-way leaves
    /// a cache that is not to be used any more.
    pub fn put(&mut self, row: usize, other: &ModelCache, from: usize) -> Result<()> {
        self.check_kin(other)?;
        for (row, rows) in [(row, self.rows()), (from, other.rows())] {
            if row >= rows {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!("row {row} does not exist; the cache has {rows}"),
                ));
            }
        }
        let rows = self.rows();
        for (layer, kept) in self.layers.iter_mut().zip(&other.layers) {
            let used = kept.slots(other.written[from], other.lens[from]);
            layer.put((row, rows), kept, (from, used))?;
        }
        self.lens[row] = other.lens[from];
        self.expected[row] = other.expected[from];
        self.written[row] = other.written[from];
        Ok(())
    }

    /// Slots of a layer that hold something of any row.
    fn used(&self, layer: &KvCache) -> usize {
        let rows = self.written.iter().zip(&self.lens);
        rows.map(|(&written, &len)| layer.slots(written, len))
            .max()
            .unwrap_or(0)
    }

    /// Forgets what row `row` holds; its place stays.
    pub fn clear(&mut self, row: usize) {
        self.lens[row] = 0;
        self.expected[row] = 0;
        self.written[row] = 0;
    }

    /// Gives back what the buffers have beyond the longest row.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn shrink(&mut self) -> Result<()> {
        let longest = self.lens.iter().max().copied().unwrap_or(0);
        self.layers
            .iter_mut()
            .try_for_each(|layer| layer.shrink(longest))
    }

    fn check_kin(&self, other: &ModelCache) -> Result<()> {
        if self.options == other.options && self.layers.len() == other.layers.len() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Invalid,
            "caches of different models or options cannot be joined",
        ))
    }

    /// Shortens row `row` to its first `len` positions.
    ///
    /// # Errors
    /// The row is shorter, or a ring no longer holds what it would have to show.
    pub fn truncate(&mut self, row: usize, len: usize) -> Result<()> {
        let held = self.lens[row];
        if len > held {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("row {row} holds {held} positions and cannot be shortened to {len}"),
            ));
        }
        if let Some(layer) = self
            .layers
            .iter()
            .position(|layer| !layer.can_rewind(self.written[row], len))
        {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "layer {layer} no longer holds what row {row} showed at length {len} of {held}"
                ),
            ));
        }
        self.lens[row] = len;
        Ok(())
    }

    /// The arrays that hold the state, to evaluate or to count them.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(KvCache::arrays)
    }

    /// Bytes of all buffers.
    pub fn nbytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }
}
