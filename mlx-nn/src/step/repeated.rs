//! Steps that repeat the step before: [`RepeatedStep`].
//!
//! Two steps of one token a row with the same places have the same lazy graph, except for the
//! offsets and the tables of pages, as long as every decision that the host makes from the lengths of rows is the same. So
//! each such decision limits the lengths up to which it stays the same
//! ([`Step::lasts_until`](super::Step::lasts_until)). A decision without a known limit, a mask or
//! an index that the host computes, and a state that is not written in place limit them to 0.

use std::ops::Range;

use mlx_core::{Array, Result, async_eval};

use super::Step;
use super::axis::AxisReads;
use super::paged;
use super::recurrent::TokenSlots;
use crate::cache::ModelCache;
use crate::cache::state::{LayerState, refusal};

/// The last step, if all of its tokens were kept and nothing but its rows has changed since.
#[derive(Clone, Debug)]
pub(crate) struct Last {
    /// The places of each row, if a step has more than one for a row.
    pub(crate) places: usize,
    /// Whether it has stored the states after each token.
    pub(crate) by_token: bool,
    /// The layer states that it has read and written.
    pub(crate) states: Range<usize>,
    /// [`Step::lasts`](super::Step::lasts)
    pub(crate) until: usize,
    /// [`Step::needs_rows`](super::Step::needs_rows)
    pub(crate) needs_rows: bool,
    /// [`ModelCache::moved`] at its end.
    pub(crate) moved: u64,
    /// Which arrays of its axis the layers have read.
    pub(crate) reads: AxisReads,
    /// The groups of layers for which it made tables of pages, and the columns of these.
    pub(crate) tables: Vec<(usize, usize)>,
}

/// What steps over keys and values need to have the lazy graph of another one ([`Step::graph`]). Unlike
/// the steps that [`RepeatedStep`] repeats they may have [lengths of their own](ModelCache::begin_at), and
/// several of them can be a part of one computation.
#[derive(Clone, Debug)]
pub struct StepGraph {
    states: Range<usize>,
    /// The first place of each row, and the number of all places.
    places: Vec<usize>,
    /// [`Step::begins`]
    begins: bool,
    /// [`Step::lasts`](super::Step::lasts)
    until: usize,
    reads: AxisReads,
    /// The groups of layers for which the step made tables of pages, and the columns of these.
    tables: Vec<(usize, usize)>,
    moved: u64,
}

impl StepGraph {
    /// The graph of a step whose layers have run.
    pub(super) fn of(step: &Step<'_>) -> Option<Self> {
        let states = step.states.clone();
        let is_paged = |layer: &LayerState| matches!(layer, LayerState::Paged);
        let lasts = step.lasts.get() > 0 && !step.needs_rows.get();
        let fits = lasts && step.cache.layers[states.clone()].iter().all(is_paged);
        fits.then(|| Self {
            places: step.axis.places().to_vec(),
            begins: step.has_beginning(),
            until: step.lasts.get(),
            reads: step.has_read.get(),
            tables: paged::tables(step),
            moved: step.cache.moved(states.clone()),
            states,
        })
    }

    /// [`Step::inputs_of`]
    pub(super) fn inputs(&self, step: &Step<'_>) -> Result<Option<Vec<Array>>> {
        let (cache, axis) = (&*step.cache, &step.axis);
        let reached = cache.lens.iter().zip(axis.each());
        let reached = reached.map(|(len, places)| len + places.len());
        let end = reached.chain(cache.expected.iter().copied()).max();
        if step.states != self.states
            || axis.places() != self.places
            || step.has_beginning() != self.begins
            || end.is_some_and(|end| end > self.until)
        {
            return Ok(None);
        }
        let pool = cache.pool.borrow();
        if step.lasts.get() == 0 {
            // Pages that rows no longer share are copied before the step, whose graph stays the same.
            async_eval(pool.arrays())?;
        }
        let moves = self.states.clone().any(|layer| pool.moves(layer));
        drop(pool);
        if moves || cache.moved(self.states.clone()) != self.moved {
            return Ok(None);
        }
        let mut inputs = axis.inputs(self.reads);
        for &(group, columns) in &self.tables {
            match paged::table_of(cache, group, axis)? {
                (held, table) if held == columns => inputs.push(table),
                _ => return Ok(None),
            }
        }
        Ok(Some(inputs))
    }
}

/// A step whose lazy graph is that of the step before with other [offsets](Self::offsets): every
/// other array that the step would make on the host holds the same values, and keys and values are
/// written to the same buffers. The caller launches the computation of the step before it again
/// ([`Replay::relaunch`](mlx_core::Replay::relaunch)).
///
/// Dropping it without [`commit`](Self::commit) leaves every row at its length.
pub struct RepeatedStep<'c> {
    cache: &'c mut ModelCache,
    offsets: Array,
    inputs: Vec<Array>,
    states: Range<usize>,
    tokens: Option<TokenSlots>,
}

impl<'c> RepeatedStep<'c> {
    /// `None` if the graph differs, or may differ. Each row has this number of places.
    pub(crate) fn new(
        cache: &'c mut ModelCache,
        widths: &[usize],
        places: usize,
    ) -> Result<Option<Self>> {
        let reached = cache.lens.iter().map(|len| len + places);
        let end = reached.chain(cache.expected.iter().copied()).max();
        let (Some(last), Some(axis)) = (&cache.last, &cache.axis) else {
            return Ok(None);
        };
        let is_shared = |layer: &LayerState| match layer {
            LayerState::Paged => false,
            LayerState::Recurrent(state) => !state.is_own(),
        };
        let (states, by_token) = (last.states.clone(), last.by_token);
        if last.places != places
            || !axis.fits(widths)
            || end.is_some_and(|end| end > last.until)
            || cache.layers[states.clone()].iter().any(is_shared)
        {
            return Ok(None);
        }
        let (axis, tables) = (axis.again(&cache.lens, widths)?, last.tables.clone());
        let (moved, reads) = (last.moved, last.reads);
        let Some(tables) = paged::repeated(cache, &axis, &tables)? else {
            return Ok(None);
        };
        if cache.moved(states.clone()) != moved {
            return Ok(None);
        }
        let readers = cache.layers[states.clone()]
            .iter()
            .flat_map(|layer| match layer {
                LayerState::Paged => Vec::new(),
                LayerState::Recurrent(state) => state.take_readers(),
            });
        let readers: Vec<Array> = readers.collect();
        if !readers.is_empty() {
            async_eval(&readers)?;
        }
        let mut recurrent = cache.layers[states.clone()]
            .iter()
            .filter_map(|layer| match layer {
                LayerState::Paged => None,
                LayerState::Recurrent(state) => Some(state),
            });
        let slots = recurrent.next().and_then(|state| state.slots().cloned());
        if reads.slots {
            axis.slots(slots.as_ref())?;
        }
        let mut inputs = axis.inputs(reads);
        let tokens = match (by_token, slots) {
            (false, _) => None,
            (true, Some(slots)) => Some(TokenSlots::new(&axis, slots)?),
            (true, None) => return Ok(None),
        };
        inputs.extend(tokens.iter().flat_map(TokenSlots::inputs));
        inputs.extend(tables);
        let offsets = axis.lens.clone();
        cache.axis = Some(axis);
        Ok(Some(Self {
            cache,
            offsets,
            inputs,
            states,
            tokens,
        }))
    }

    /// The number of positions that each row held before the step: I32 `[B]`, in place of
    /// [`Step::offsets`](super::Step::offsets) of the step before.
    pub fn offsets(&self) -> &Array {
        &self.offsets
    }

    /// The arrays in place of
    /// [`Step::inputs`](super::Step::inputs) of the step before.
    pub fn inputs(&self) -> &[Array] {
        &self.inputs
    }

    /// The arrays that the step writes in place.
    pub fn written(&self) -> Vec<Array> {
        self.cache.row_arrays()
    }

    /// Ends the step, whose computation is queued: each row keeps all of its tokens.
    pub fn commit(self) {
        let widths = self.cache.axis.as_ref().map(|axis| axis.widths.clone());
        self.keep(&widths.unwrap_or_default());
    }

    /// Ends the step, whose computation is queued: row b keeps its first `keep[b]` tokens.
    ///
    /// # Errors
    /// A row would keep more tokens than it brought, or only a part of a step that was to
    /// [keep all](super::Step::keep_all). The rows are then as before the step.
    pub fn commit_part(self, keep: &[usize]) -> Result<()> {
        let widths = self.cache.axis.as_ref().map(|axis| &axis.widths[..]);
        let widths = widths.unwrap_or_default();
        let is_part = |(keep, width): (&usize, &usize)| keep <= width;
        let is_recurrent = |layer: &LayerState| matches!(layer, LayerState::Recurrent(_));
        let needs_all = self.tokens.is_none()
            && self.cache.layers[self.states.clone()]
                .iter()
                .any(is_recurrent);
        if keep.len() != widths.len()
            || !keep.iter().zip(widths).all(is_part)
            || (needs_all && keep != widths)
        {
            return Err(refusal(format!(
                "rows of {widths:?} tokens cannot keep {keep:?} of a repeated step"
            )));
        }
        self.keep(keep);
        Ok(())
    }

    fn keep(self, keep: &[usize]) {
        let cache = self.cache;
        for (len, keep) in cache.lens.iter_mut().zip(keep) {
            *len += keep;
        }
        if let Some(tokens) = &self.tokens {
            let slots = tokens.after(keep);
            let layers = cache.layers[self.states.clone()].iter_mut();
            for state in layers.filter_map(LayerState::recurrent) {
                state.set_slots(&slots);
            }
        }
        // Pages of tokens that are not kept.
        for (pages, &len) in cache.pages.iter_mut().zip(&cache.lens) {
            pages.iter_mut().for_each(|pages| pages.truncate(len));
        }
        let (pool, slack) = (cache.pool.borrow(), cache.options.slack);
        for (group, own) in pool.groups().iter().enumerate() {
            // Where other layers of a group lag behind, their steps release the pages.
            if !own.layers.iter().all(|layer| self.states.contains(layer)) {
                continue;
            }
            for (pages, &len) in cache.pages.iter_mut().zip(&cache.lens) {
                if let Some(window) = own.window {
                    pages[group].drop_before(len.saturating_sub(window + slack));
                }
            }
        }
    }
}
