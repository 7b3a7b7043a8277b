//! [`ModelCache`]: the state of a model's layers for several rows of tokens.
//!
//! **The cache holds the length of each row, and the layers do not**: masks, rope offsets and write
//! slots follow from the lengths. **A step is a transaction**: [`ModelCache::begin`] opens a
//! [`Step`] with a width for each row, the layers write, and [`Step::commit`] sets how many of its
//! tokens each row keeps. Rejected drafts are written, and then not kept. A step that is dropped
//! leaves the rows as they were.
//!
//! The [`LayerKind`] of a layer determines its state: keys and values of positions, or a recurrent
//! state of a fixed size. The operations of the cache (commit, select, join, cut, bytes) are the
//! same for both.
//!
//! Keys and values lie in pages of 64 positions, which rows that begin alike share. Copying a row,
//! moving it to another batch and shortening it change lists of page numbers, and copy no keys. A
//! recurrent state cannot be computed backwards: see [`ModelCache::record`].

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use mlx_core::{Array, Error, Result, Scheme};

use crate::step::Step;
use crate::step::axis::{Axis, Starts};
use crate::step::repeated::{Last, RepeatedStep};

mod kind;
pub(crate) mod pages;
pub(crate) mod pool;
mod prefix;
pub(crate) mod recurrent;
mod row;
pub(crate) mod state;

pub use kind::{KvShape, LayerKind, RecurrentShape, RowPart, StateCost, StatePart};
pub use pages::PAGE;
use pages::RowPages;
use pool::PagePool;
pub use prefix::{PageUse, PrefixPage, PrefixStates, WholePages};
use recurrent::RecurrentCache;
use state::{LayerState, incompatible, refusal};

/// How a [`ModelCache`] stores the states of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Rows may keep a part of a step of up to `slack + 1` tokens, and can be shortened by that many: layers with a
    /// window hold this many positions more, and recurrent layers keep the state after each token until the step
    /// commits.
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
            slack: 0,
            max_context: None,
            store: true,
            quantized: None,
        }
    }
}

/// The states of all layers, and the length of each row.
///
/// Cloning is cheap: the clones share pages, and copy the one that they would both write to.
///
/// ```
/// use mlx_core::{DType, Result, ones};
/// use mlx_nn::{Attend, CacheOptions, LayerKind, ModelCache};
///
/// # fn main() -> Result<()> {
/// // Two rows of a model with one layer: three tokens for row 0, one for row 1.
/// let mut cache = ModelCache::new(&[LayerKind::Full], 2, CacheOptions::default());
/// let mut step = cache.begin(&[3, 1])?;
/// let qkv = ones([1, 4, 4, 16], DType::F32)?; // [1, H, T, D]: four tokens on one axis
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
    pub(crate) pool: Rc<RefCell<PagePool>>,
    pub(crate) lens: Vec<usize>,
    pub(crate) expected: Vec<usize>,
    /// The pages of each row, in each group of the pool.
    pub(crate) pages: Vec<Vec<RowPages>>,
    pub(crate) layers: Vec<LayerState>,
    pub(crate) options: CacheOptions,
    /// The last step, which the next step may [repeat](Self::begin_repeated).
    pub(crate) last: Option<Last>,
    /// The tokens of the last step.
    pub(crate) axis: Option<Axis>,
    pub(crate) starts: Starts,
}

impl ModelCache {
    /// Empty caches for `rows` rows of a model with these layers, in memory of their own.
    pub fn new(kinds: &[LayerKind], rows: usize, options: CacheOptions) -> Self {
        let pool = Rc::new(RefCell::new(PagePool::new(kinds, &options)));
        Self::in_pool(kinds.into(), pool, rows, options)
    }

    /// Empty caches for `rows` rows beside those of this cache. Rows then go from one to the other
    /// without a copy.
    #[must_use]
    pub fn beside(&self, rows: usize) -> Self {
        Self::in_pool(self.kinds.clone(), self.pool.clone(), rows, self.options)
    }

    fn in_pool(
        kinds: Rc<[LayerKind]>,
        pool: Rc<RefCell<PagePool>>,
        rows: usize,
        options: CacheOptions,
    ) -> Self {
        let layers = kinds.iter().map(|&kind| LayerState::new(kind, rows));
        let pages = (0..rows).map(|_| pool.borrow().row()).collect();
        Self {
            layers: layers.collect(),
            kinds,
            pool,
            lens: vec![0; rows],
            expected: vec![0; rows],
            pages,
            options,
            last: None,
            axis: None,
            starts: Starts::default(),
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

    /// Opens a step in which row b brings `widths[b]` tokens, or none. The tokens of all rows are one
    /// axis, row after row: arrays of tokens are `[1, T]`, where T is the sum of the widths.
    ///
    /// # Errors
    /// `widths` has another number of rows, or every width is 0.
    pub fn begin(&mut self, widths: &[usize]) -> Result<Step<'_>> {
        let states = 0..self.layers.len();
        Step::new(self, states, None, widths, 0)
    }

    /// Opens a step over the layer states `states`. The other states do not change, so they lack
    /// the step's tokens when it commits. Steps of [`begin_at`](Self::begin_at) add them later.
    ///
    /// # Errors
    /// The errors of [`begin`](Self::begin), or the cache has no such states.
    pub fn begin_part(&mut self, states: Range<usize>, widths: &[usize]) -> Result<Step<'_>> {
        Step::new(self, states, None, widths, 0)
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
        Step::new(self, states, Some(lens), widths, 0)
    }

    /// [`begin_part`](Self::begin_part), or [`begin_at`](Self::begin_at) if there are `lens`, where a
    /// row without tokens has a place on the axis of tokens all the same. Its token may be any valid
    /// one and is kept nowhere, and its features mean nothing. So the shapes of a step do not change
    /// when rows pause, leave or join.
    ///
    /// # Errors
    /// The errors of [`begin_at`](Self::begin_at).
    pub fn begin_slots(
        &mut self,
        states: Range<usize>,
        lens: Option<&[usize]>,
        widths: &[usize],
    ) -> Result<Step<'_>> {
        Step::new(self, states, lens, widths, 1)
    }

    /// [`begin_part`](Self::begin_part), where each row has `places` places, at least as many as it has
    /// tokens. The tokens behind its own may be any valid ones and are kept nowhere, and their features
    /// mean nothing.
    ///
    /// # Errors
    /// The errors of [`begin_part`](Self::begin_part), or a row has more tokens than places.
    pub fn begin_padded(
        &mut self,
        states: Range<usize>,
        widths: &[usize],
        places: usize,
    ) -> Result<Step<'_>> {
        check_places(widths, places)?;
        Step::new(self, states, None, widths, places)
    }

    /// [`begin_at`](Self::begin_at), where each row has `places` places as in
    /// [`begin_padded`](Self::begin_padded).
    ///
    /// # Errors
    /// The errors of both.
    pub fn begin_padded_at(
        &mut self,
        states: Range<usize>,
        lens: &[usize],
        widths: &[usize],
        places: usize,
    ) -> Result<Step<'_>> {
        check_places(widths, places)?;
        Step::new(self, states, Some(lens), widths, places)
    }

    /// Opens a step of these widths over the layer states of the last step, if its lazy graph would be the
    /// graph of the last step with other offsets; `None` otherwise. The graphs are the same if rows bring
    /// one token each, recurrent states are written in place ([`Step::keep_all`]), no buffer grows, no rope
    /// changes, and only such steps use these states; rows may have been put, cleared or shortened since.
    /// The layer states must have been evaluated, when the last step began and now. Otherwise the graph of
    /// a step also contains the operations that compute the states.
    ///
    /// # Errors
    /// No memory for the offsets.
    pub fn begin_repeated(&mut self, widths: &[usize]) -> Result<Option<RepeatedStep<'_>>> {
        RepeatedStep::new(self, widths, 1)
    }

    /// [`begin_repeated`](Self::begin_repeated) of a [padded](Self::begin_padded) step, of which rows may
    /// have kept any number of tokens.
    ///
    /// # Errors
    /// No memory for the offsets.
    pub fn begin_repeated_padded(
        &mut self,
        widths: &[usize],
        places: usize,
    ) -> Result<Option<RepeatedStep<'_>>> {
        RepeatedStep::new(self, widths, places)
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
            .map(|layer| layer.select(rows, &indices))
            .collect();
        self.layers = layers?;
        self.lens = rows.iter().map(|&row| self.lens[row]).collect();
        self.expected = rows.iter().map(|&row| self.expected[row]).collect();
        self.pages = rows.iter().map(|&row| self.pages[row].clone()).collect();
        Ok(())
    }

    /// Appends the rows of `other`, a cache of the same model and options. Keys and values are
    /// copied unless one cache was made [beside](Self::beside) the other.
    ///
    /// # Errors
    /// The caches have other layers or options.
    pub fn join(&mut self, other: &ModelCache) -> Result<()> {
        self.last = None;
        self.check_kin(other)?;
        let rows = [self.rows(), other.rows()];
        let layers: Result<Vec<_>> = self
            .layers
            .iter()
            .zip(&other.layers)
            .map(|(a, b)| a.join(b, rows))
            .collect();
        let pages: Result<Vec<_>> = (0..other.rows())
            .map(|row| self.adopted(other, row))
            .collect();
        (self.layers, self.pages) = (layers?, [std::mem::take(&mut self.pages), pages?].concat());
        self.lens.extend(&other.lens);
        self.expected.extend(&other.expected);
        Ok(())
    }

    /// Replaces row `row` by row `from` of `other`, a cache of the same model and options. Keys and
    /// values are copied unless one cache was made [beside](Self::beside) the other.
    ///
    /// # Errors
    /// A row does not exist, or the caches have other layers or options.
    pub fn put(&mut self, row: usize, other: &ModelCache, from: usize) -> Result<()> {
        self.rows_changed();
        self.check_kin(other)?;
        self.check_row(row)?;
        other.check_row(from)?;
        let place = (row, self.rows());
        let pages = self.adopted(other, from)?;
        for (layer, new) in self.layers.iter_mut().zip(&other.layers) {
            layer.put(place, new, from)?;
        }
        self.pages[row] = pages;
        self.lens[row] = other.lens[from];
        self.expected[row] = other.expected[from];
        Ok(())
    }

    /// The pages of row `row` of `other`, or of a copy in this cache's pool.
    fn adopted(&self, other: &ModelCache, row: usize) -> Result<Vec<RowPages>> {
        if Rc::ptr_eq(&self.pool, &other.pool) {
            return Ok(other.pages[row].clone());
        }
        let mut own = self.pool.borrow().row();
        let (mut pool, from) = (self.pool.borrow_mut(), other.pool.borrow());
        for (group, (own, pages)) in own.iter_mut().zip(&other.pages[row]).enumerate() {
            let range = (pages.held_from(), other.lens[row]);
            own.prepare(range.0, range.1);
            let layers = pool.groups()[group].layers.clone();
            for layer in layers.into_iter().filter(|_| range.0 < range.1) {
                let arrays = from.positions(layer, pages, range)?;
                pool.fill(layer, own, range.0, &arrays)?;
            }
        }
        Ok(own)
    }

    /// Bytes of slots for states after single tokens ([`Step::keep_any`]). They are a part of
    /// [`nbytes`](Self::nbytes).
    pub fn spare_state_bytes(&self) -> usize {
        let layers = self.layers.iter().map(|layer| match layer {
            LayerState::Paged => 0,
            LayerState::Recurrent(state) => state.spare_bytes(),
        });
        layers.sum()
    }

    /// Frees the slots for states after single tokens. Nothing is evaluated.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn narrow_states(&mut self) -> Result<()> {
        let layers = self.layers.iter_mut();
        let mut states = layers.filter_map(LayerState::recurrent);
        states.try_for_each(RecurrentCache::narrow)
    }

    /// The first part of the recurrent state of layer `layer`, for all rows: `[B, …]`. `None` before the
    /// first step. Lazy arrays may read it, so no step writes it in place.
    ///
    /// # Errors
    /// The layer has no recurrent state.
    pub fn state(&mut self, layer: usize) -> Result<Option<Array>> {
        Ok(self.recurrent(layer)?.lend(0)?.cloned())
    }

    /// Replaces this part of a state of one part.
    ///
    /// # Errors
    /// The layer has no such state, or the array has another shape.
    pub fn set_state(&mut self, layer: usize, state: Array) -> Result<()> {
        let rows = self.rows();
        self.recurrent(layer)?.set(rows, state)
    }

    fn recurrent(&mut self, layer: usize) -> Result<&mut RecurrentCache> {
        let state = self.layers.get_mut(layer);
        let state = state.and_then(LayerState::recurrent);
        state.ok_or_else(|| refusal(format!("layer {layer} has no recurrent state")))
    }

    /// A number that differs after arrays of the pool, or of the recurrent states among `states`, were
    /// replaced by others.
    pub(crate) fn moved(&self, states: Range<usize>) -> u64 {
        let layers = self.layers[states].iter();
        let states = layers.map(|layer| match layer {
            LayerState::Paged => 0,
            LayerState::Recurrent(state) => state.moved(),
        });
        self.pool.borrow().moved() + states.sum::<u64>()
    }

    /// Notes that rows hold other positions than after the last step. Later steps have its lazy graph
    /// all the same, unless a decision in it was about these rows.
    fn rows_changed(&mut self) {
        self.last.take_if(|last| last.needs_rows);
    }

    /// Clears row `row`. The row itself stays.
    pub fn clear(&mut self, row: usize) {
        self.rows_changed();
        for layer in &mut self.layers {
            layer.clear(row);
        }
        self.pages[row].iter_mut().for_each(RowPages::clear);
        self.lens[row] = 0;
        self.expected[row] = 0;
    }

    /// Records the present length of row `row`, so that the row can be shortened to it later. Layers with keys and
    /// values need no record; recurrent layers copy their state of the row.
    ///
    /// # Errors
    /// The row does not exist, or there is no memory for a handle.
    pub fn record(&mut self, row: usize) -> Result<()> {
        self.last = None;
        self.check_row(row)?;
        let len = self.lens[row];
        self.layers
            .iter_mut()
            .filter_map(LayerState::recurrent)
            .try_for_each(|layer| layer.record(row, len))
    }

    /// Drops the [recorded](Self::record) lengths of all rows, and their states.
    pub fn clear_recorded(&mut self) {
        self.last = None;
        let layers = self.layers.iter_mut();
        for state in layers.filter_map(LayerState::recurrent) {
            state.clear_recorded();
        }
    }

    /// Shortens row `row` to its first `len` positions.
    ///
    /// # Errors
    /// The row is shorter, a layer with a window no longer holds positions that tokens after `len` see, or a recurrent
    /// layer has not [recorded](Self::record) that length. The row is then unchanged.
    pub fn truncate(&mut self, row: usize, len: usize) -> Result<()> {
        self.rows_changed();
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
        if let Some(layer) = self.lost_at(row, len) {
            return Err(refusal(format!(
                "layer {layer} ({}) no longer holds the state of row {row} at length {len} of {held}",
                self.kinds[layer]
            )));
        }
        let layers = self.layers.iter_mut();
        for layer in layers.filter_map(LayerState::recurrent) {
            layer.truncate(row, len)?;
        }
        for pages in &mut self.pages[row] {
            pages.truncate(len);
        }
        self.lens[row] = len;
        Ok(())
    }

    /// A layer that does not hold what tokens after the first `len` positions of row `row` depend
    /// on.
    fn lost_at(&self, row: usize, len: usize) -> Option<usize> {
        let groups = self.pool.borrow();
        let groups = groups.groups().iter().zip(&self.pages[row]);
        let window = groups.filter_map(|(group, pages)| {
            // A token at position `len` sees the `window - 1` positions before it.
            let first = (len + 1).saturating_sub(group.window?);
            (first < pages.held_from()).then_some(group.layers[0])
        });
        let recurrent = self.layers.iter().enumerate().filter_map(|(at, layer)| {
            let LayerState::Recurrent(state) = layer else {
                return None;
            };
            (!state.can_rewind(row, len)).then_some(at)
        });
        window.chain(recurrent).min()
    }

    /// Drops the memory of the pool after the evaluation of a step has failed. The failure may have
    /// taken writes of other rows with it, so all rows of all caches of the pool must be computed
    /// again. A step with one of them is an error.
    pub fn recover(&mut self) {
        self.last = None;
        self.pool.borrow_mut().recover();
    }

    /// Reserves memory for `pages[g]` pages in each group g of layers, in the order of
    /// [`page_use`](Self::page_use), for the rows of all caches of the pool. As long as they hold no more,
    /// the arrays of pages are not replaced by larger ones. `parts` describes the arrays of each layer
    /// ([`LayerKind::row_parts`]). To be called before the first step.
    ///
    /// # Errors
    /// There is no memory, or the numbers of layers or groups are others.
    pub fn reserve(&mut self, parts: &[Vec<RowPart>], pages: &[usize]) -> Result<()> {
        self.last = None;
        self.pool.borrow_mut().reserve(parts, pages)
    }

    /// How often the arrays of pages were made or replaced: where steps are repeated, each time costs a
    /// new graph.
    pub fn moves(&self) -> u64 {
        self.pool.borrow().moved()
    }

    /// Bytes of the arrays of pages, held or not.
    pub fn pool_bytes(&self) -> usize {
        self.pool.borrow().arrays().map(Array::nbytes).sum()
    }

    /// Frees the memory of the pool if no row of any cache is in it and none was
    /// [reserved](Self::reserve). Returns whether it did.
    pub fn release(&mut self) -> bool {
        self.last = None;
        self.pool.borrow_mut().release()
    }

    /// The arrays that hold the rows: the pages of all caches of the pool, then recurrent states,
    /// then states of [recorded](Self::record) lengths. Callers evaluate them.
    pub fn arrays(&self) -> Vec<Array> {
        let recorded = self.layers.iter().flat_map(LayerState::recorded_arrays);
        let mut arrays = self.row_arrays();
        arrays.extend(recorded.cloned());
        arrays
    }

    /// The arrays of pages of the layers among `states`: those of the [`arrays`](Self::arrays) that a step
    /// over these layers writes in place.
    pub fn page_arrays(&self, states: Range<usize>) -> Vec<Array> {
        let pool = self.pool.borrow();
        states
            .flat_map(|layer| pool.arrays_of(layer).to_vec())
            .collect()
    }

    /// The [`arrays`](Self::arrays) without those of recorded lengths.
    pub fn row_arrays(&self) -> Vec<Array> {
        let mut arrays: Vec<Array> = self.pool.borrow().arrays().cloned().collect();
        arrays.extend(self.layers.iter().flat_map(LayerState::arrays).cloned());
        arrays
    }

    /// Bytes of the pages that the rows hold, each counted once, and of recurrent states.
    pub fn nbytes(&self) -> usize {
        let pool = self.pool.borrow();
        let groups = 0..pool.groups().len();
        let pages = groups.map(|group| {
            let rows = self.pages.iter();
            let held: BTreeSet<u32> = rows
                .flat_map(|row| row[group].numbered().map(|(_, page)| page))
                .collect();
            held.len() * pool.page_bytes(group)
        });
        let layers = self.layers.iter();
        let recurrent =
            layers.flat_map(|layer| layer.arrays().into_iter().chain(layer.recorded_arrays()));
        pages.sum::<usize>() + recurrent.map(Array::nbytes).sum::<usize>()
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

/// Refuses rows with more tokens than places.
fn check_places(widths: &[usize], places: usize) -> Result<()> {
    match widths.iter().any(|&width| width > places) {
        true => Err(refusal(format!(
            "rows of {widths:?} tokens do not fit in {places} places each"
        ))),
        false => Ok(()),
    }
}

/// `error` with the layer in front.
pub(crate) fn in_layer(layer: usize, error: &Error) -> Error {
    Error::new(error.kind(), format!("layer {layer}: {error}"))
}
