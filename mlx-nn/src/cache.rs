//! [`ModelCache`]: the state of a model's layers for several rows of tokens.
//!
//! **The cache holds the length of each row, and the layers do not**: masks, rope offsets and write
//! slots follow from the lengths. **A step is a transaction**: [`ModelCache::begin`] opens a
//! [`Step`] with a width for each row, the layers write, and [`Step::commit`] sets how many of its
//! tokens each row keeps. Right padding, finished rows and rejected drafts are all written, and
//! then not kept. A step that is dropped leaves the rows as they were.
//!
//! The [`LayerKind`] of a layer determines its state: keys and values of positions, or a recurrent
//! state of a fixed size. The operations of the cache (commit, select, join, cut, bytes) are the
//! same for both.
//!
//! Slot `j` of a layer with keys and values holds position `j` (growing layers) or the last
//! position congruent to `j` (rings), so that keeping fewer tokens only changes the length. A
//! recurrent state cannot be computed backwards: see [`ModelCache::record`].

use std::ops::Range;
use std::rc::Rc;

use mlx_core::{Array, Error, Result, Scheme};

use crate::step::Step;
use crate::step::repeated::{Last, RepeatedStep};

mod kind;
pub(crate) mod kv;
pub(crate) mod recurrent;
mod row;
pub(crate) mod state;

pub use kind::{KvShape, LayerKind, RecurrentShape, RowPart, StateCost, StatePart};
use state::{LayerState, RowLen, incompatible, refusal};

/// How a [`ModelCache`] stores the states of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Growing buffers grow by this many positions.
    pub growth: usize,
    /// Rows may keep a part of a step of up to `slack + 1` tokens: rings have this many extra slots, and recurrent
    /// layers keep the state after each token until the step commits.
    pub slack: usize,
    /// The most positions that any layer with keys and values keeps.
    pub max_context: Option<usize>,
    /// `false`: the cache allows one step, over whole texts, and stores nothing.
    pub store: bool,
    /// Keys and values are stored quantised ([`fast::pack`](mlx_core::fast::pack)). Attention already reads the
    /// quantised values in the step that writes them, so that the chunks of a prompt do not change its result.
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

/// The states of all layers, and the length of each row.
///
/// Cloning is cheap: the clones share buffers until one of them writes.
///
/// ```
/// use mlx_core::{DType, Result, ones};
/// use mlx_nn::{Attend, CacheOptions, LayerKind, ModelCache};
///
/// # fn main() -> Result<()> {
/// // Two rows of a model with one layer: three tokens for row 0, one for row 1.
/// let mut cache = ModelCache::new(&[LayerKind::Full], 2, CacheOptions::default());
/// let mut step = cache.begin(&[3, 1])?;
/// let qkv = ones([2, 4, 3, 16], DType::F32)?; // [B, H, L, D]
/// let options = Attend { scale: 0.25, softcap: None, sinks: None, alibi: None };
/// step.attend(0, &qkv, &qkv, &qkv, &options)?;
/// step.commit_all()?;
/// assert_eq!(cache.lens(), [3, 1]);
/// // Row 0 goes one token back; then row 1 leaves.
/// cache.truncate(0, 2)?;
/// cache.select(&[0])?;
/// assert_eq!(cache.lens(), [2]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ModelCache {
    kinds: Rc<[LayerKind]>,
    pub(crate) lens: Vec<usize>,
    pub(crate) expected: Vec<usize>,
    /// The largest number of positions that each row has ever had; see [`RowLen`].
    pub(crate) written: Vec<usize>,
    pub(crate) layers: Vec<LayerState>,
    pub(crate) options: CacheOptions,
    /// The last step, which the next step may [repeat](Self::begin_repeated).
    pub(crate) last: Option<Last>,
}

impl ModelCache {
    /// Empty caches for `rows` rows of a model with these layers.
    pub fn new(kinds: &[LayerKind], rows: usize, options: CacheOptions) -> Self {
        let layers = kinds
            .iter()
            .map(|&kind| LayerState::new(kind, rows, &options))
            .collect();
        Self {
            kinds: kinds.into(),
            lens: vec![0; rows],
            expected: vec![0; rows],
            written: vec![0; rows],
            layers,
            options,
            last: None,
        }
    }

    /// The number of positions that each row holds.
    pub fn lens(&self) -> &[usize] {
        &self.lens
    }

    /// The kinds of the layer states.
    pub fn kinds(&self) -> &[LayerKind] {
        &self.kinds
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.lens.len()
    }

    /// Announces that row `row` will hold `positions` positions when its prompt is computed. Rotary embeddings that
    /// depend on the length of a text (LongRoPE) then treat all chunks of the prompt alike.
    pub fn expect(&mut self, row: usize, positions: usize) {
        self.last = None;
        self.expected[row] = positions;
    }

    /// Opens a step in which row b brings `widths[b]` tokens. The array of tokens is as wide as the widest row; the
    /// other rows are padded on the right with any valid token.
    ///
    /// # Errors
    /// `widths` has another number of rows, or every width is 0.
    pub fn begin(&mut self, widths: &[usize]) -> Result<Step<'_>> {
        let states = 0..self.layers.len();
        Step::new(self, states, None, widths)
    }

    /// Opens a step over the layer states `states`. The other states do not change, so they lack
    /// the step's tokens when it commits. Steps of [`begin_at`](Self::begin_at) add them later.
    ///
    /// # Errors
    /// The errors of [`begin`](Self::begin), or the cache has no such states.
    pub fn begin_part(&mut self, states: Range<usize>, widths: &[usize]) -> Result<Step<'_>> {
        Step::new(self, states, None, widths)
    }

    /// Opens a step over the layer states `states`, in which row b has `lens[b]` positions. The
    /// lengths of the rows do not change when the step commits: they are those of the other states.
    ///
    /// # Errors
    /// The errors of [`begin_part`](Self::begin_part), or `lens` has another number of rows.
    pub fn begin_at(
        &mut self,
        states: Range<usize>,
        lens: &[usize],
        widths: &[usize],
    ) -> Result<Step<'_>> {
        Step::new(self, states, Some(lens), widths)
    }

    /// Opens a step of these widths over the layer states of the last step, if its lazy graph would
    /// be the graph of the last step with other offsets; `None` otherwise. The graphs are the same
    /// if rows bring one token each, all layers keep keys and values, no buffer grows, no rope
    /// changes, and only such steps use the cache. The layer states must have been evaluated when
    /// the last step began. Otherwise the graph of that step also contains the operations that
    /// compute the states.
    ///
    /// # Errors
    /// No memory for the offsets.
    pub fn begin_repeated(&mut self, widths: &[usize]) -> Result<Option<RepeatedStep<'_>>> {
        RepeatedStep::new(self, widths)
    }

    /// Opens a step in which row b brings documents of the lengths `documents[b]`, one after the
    /// other. Tokens attend only within their document. Positions continue from document to
    /// document, because rotary embeddings depend only on distances.
    ///
    /// # Errors
    /// The cache stores keys and values ([`CacheOptions::store`]), or an error of
    /// [`begin`](Self::begin).
    pub fn begin_packed(&mut self, documents: &[Vec<usize>]) -> Result<Step<'_>> {
        Step::packed(self, documents)
    }

    /// Keeps the rows `rows`, in that order; a row may appear more than once (a fork).
    ///
    /// # Errors
    /// A row does not exist.
    pub fn select(&mut self, rows: &[usize]) -> Result<()> {
        self.last = None;
        for &row in rows {
            self.check_row(row)?;
        }
        let indices: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        let indices = Array::from_slice(&indices, &[rows.len() as i32])?;
        let layers: Result<Vec<_>> = self
            .layers
            .iter()
            .map(|layer| layer.state().select(rows, &indices))
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
    /// The caches have other layers or options.
    pub fn join(&mut self, other: &ModelCache) -> Result<()> {
        self.last = None;
        self.check_kin(other)?;
        let (lens, others) = (self.row_lens(), other.row_lens());
        let layers: Result<Vec<_>> = self
            .layers
            .iter()
            .zip(&other.layers)
            .map(|(a, b)| a.state().join(b, [&lens, &others]))
            .collect();
        self.layers = layers?;
        self.lens.extend(&other.lens);
        self.expected.extend(&other.expected);
        self.written.extend(&other.written);
        Ok(())
    }

    /// Replaces row `row` by row `from` of `other`, a cache of the same model and options.
    ///
    /// # Errors
    /// A row does not exist, or the caches have other layers or options. After a write that failed half-way the cache
    /// must not be used any more.
    pub fn put(&mut self, row: usize, other: &ModelCache, from: usize) -> Result<()> {
        self.last = None;
        self.check_kin(other)?;
        self.check_row(row)?;
        other.check_row(from)?;
        let place = (row, self.rows());
        for (layer, new) in self.layers.iter_mut().zip(&other.layers) {
            let source = (from, other.row_len(from));
            layer.state_mut().put(place, new, source)?;
        }
        self.lens[row] = other.lens[from];
        self.expected[row] = other.expected[from];
        self.written[row] = other.written[from];
        Ok(())
    }

    /// Whether [`put`](Self::put) would write a row of `other` into the buffers that are there:
    /// they are large enough, and no clone shares them.
    pub fn has_room_for(&self, other: &ModelCache) -> bool {
        let mut layers = self.layers.iter().zip(&other.layers);
        layers.all(|(layer, other)| layer.state().has_room_for(other))
    }

    /// Clears row `row`. The row itself stays.
    pub fn clear(&mut self, row: usize) {
        self.last = None;
        for layer in &mut self.layers {
            layer.state_mut().clear(row);
        }
        self.lens[row] = 0;
        self.expected[row] = 0;
        self.written[row] = 0;
    }

    /// Frees the part of the buffers that is beyond the longest row.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn shrink(&mut self) -> Result<()> {
        self.last = None;
        let longest = self.lens.iter().max().copied().unwrap_or(0);
        self.layers
            .iter_mut()
            .try_for_each(|layer| layer.state_mut().shrink(longest))
    }

    /// Records the present length of row `row`, so that the row can be shortened to it later. Growing layers can be
    /// shortened to any length; recurrent layers copy their state of the row.
    ///
    /// # Errors
    /// The row does not exist, or there is no memory for a handle.
    pub fn record(&mut self, row: usize) -> Result<()> {
        self.last = None;
        self.check_row(row)?;
        let len = self.lens[row];
        self.layers
            .iter_mut()
            .try_for_each(|layer| layer.state_mut().record(row, len))
    }

    /// Drops the [recorded](Self::record) lengths of all rows, and their states.
    pub fn clear_recorded(&mut self) {
        self.last = None;
        for layer in &mut self.layers {
            if let LayerState::Recurrent(state) = layer {
                state.clear_recorded();
            }
        }
    }

    /// Shortens row `row` to its first `len` positions.
    ///
    /// # Errors
    /// The row is shorter, a ring no longer holds positions that tokens after `len` see, or a recurrent layer
    /// has not [recorded](Self::record) that length. The row is then unchanged.
    pub fn truncate(&mut self, row: usize, len: usize) -> Result<()> {
        self.last = None;
        self.check_row(row)?;
        let held = self.lens[row];
        if len > held {
            return Err(refusal(format!(
                "row {row} holds {held} positions and cannot be shortened to {len}"
            )));
        }
        if len == held {
            return Ok(());
        }
        let at = self.row_len(row);
        let lost = |layer: &LayerState| !layer.state().can_rewind(row, at, len);
        if let Some(layer) = self.layers.iter().position(lost) {
            return Err(refusal(format!(
                "layer {layer} ({}) no longer holds the state of row {row} at length {len} of {held}",
                self.kinds[layer]
            )));
        }
        for layer in &mut self.layers {
            layer.state_mut().truncate(row, len)?;
        }
        self.lens[row] = len;
        Ok(())
    }

    /// The arrays that hold the rows, layer by layer in the order of [`LayerKind::part_names`],
    /// then the arrays of [recorded](Self::record) lengths. Callers evaluate them or count their
    /// bytes.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let recorded = self.layers.iter();
        self.row_arrays()
            .chain(recorded.flat_map(|layer| layer.state().recorded_arrays()))
    }

    /// The [`arrays`](Self::arrays) without those of recorded lengths.
    pub fn row_arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(|layer| layer.state().arrays())
    }

    /// Bytes of all buffers.
    pub fn nbytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    fn row_len(&self, row: usize) -> RowLen {
        RowLen {
            len: self.lens[row],
            written: self.written[row],
        }
    }

    fn row_lens(&self) -> Vec<RowLen> {
        (0..self.rows()).map(|row| self.row_len(row)).collect()
    }

    fn check_row(&self, row: usize) -> Result<()> {
        match row < self.rows() {
            true => Ok(()),
            false => Err(refusal(format!(
                "row {row} does not exist; the cache has {}",
                self.rows()
            ))),
        }
    }

    fn check_kin(&self, other: &ModelCache) -> Result<()> {
        match self.options == other.options && self.kinds == other.kinds {
            true => Ok(()),
            false => Err(incompatible()),
        }
    }
}

/// `error` with the layer in front.
pub(crate) fn in_layer(layer: usize, error: &Error) -> Error {
    Error::new(error.kind(), format!("layer {layer}: {error}"))
}
