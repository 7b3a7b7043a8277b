//! Steps that repeat the step before: [`RepeatedStep`].
//!
//! Two steps of one token a row with the same places have the same lazy graph, except for the
//! offsets and the tables of pages, as long as every decision that the host makes from the lengths of rows is the same. So
//! each such decision limits the lengths up to which it stays the same
//! ([`Step::lasts_until`](super::Step::lasts_until)). A decision without a known limit, a mask or
//! an index that the host computes, and a state that is not updated in place limit them to 0.

use mlx_core::{Array, Result};

use super::paged;
use crate::cache::ModelCache;
use crate::cache::state::LayerState;

/// The last step, if all of its tokens were kept and nothing but its rows has changed since.
#[derive(Clone, Debug)]
pub(crate) struct Last {
    /// [`Step::lasts`](super::Step::lasts)
    pub(crate) until: usize,
    /// [`Step::needs_rows`](super::Step::needs_rows)
    pub(crate) needs_rows: bool,
    /// How often the pool's arrays were replaced before its end.
    pub(crate) moved: u64,
    /// The groups of layers for which it made tables of pages, and the columns of these.
    pub(crate) tables: Vec<(usize, usize)>,
}

/// A step whose lazy graph is that of the step before with other [offsets](Self::offsets): every
/// other array that the step would make on the host holds the same values, and keys and values are
/// written to the same buffers. The caller launches the computation of the step before it again
/// ([`Replay::relaunch`](mlx_core::Replay::relaunch)).
///
/// Dropping it without [`commit`](Self::commit) leaves every row at its length.
pub struct RepeatedStep<'c> {
    cache: &'c mut ModelCache,
    inputs: Vec<Array>,
}

impl<'c> RepeatedStep<'c> {
    /// `None` if the graph differs, or may differ.
    pub(crate) fn new(cache: &'c mut ModelCache, widths: &[usize]) -> Result<Option<Self>> {
        let reached = cache.lens.iter().map(|len| len + 1);
        let end = reached.chain(cache.expected.iter().copied()).max();
        let (Some(last), Some(axis)) = (&cache.last, &cache.axis) else {
            return Ok(None);
        };
        let is_recurrent = |layer: &LayerState| matches!(layer, LayerState::Recurrent(_));
        if !axis.fits(widths)
            || end.is_some_and(|end| end > last.until)
            || cache.layers.iter().any(is_recurrent)
        {
            return Ok(None);
        }
        let (axis, tables) = (axis.again(&cache.lens, widths)?, last.tables.clone());
        let moved = last.moved;
        let Some(tables) = paged::repeated(cache, &axis, &tables)? else {
            return Ok(None);
        };
        if cache.pool.borrow().moved() != moved {
            return Ok(None);
        }
        let mut inputs = vec![axis.lens.clone(), axis.positions.clone()];
        inputs.extend(tables);
        cache.axis = Some(axis);
        Ok(Some(Self { cache, inputs }))
    }

    /// The number of positions that each row held before the step: I32 `[B]`, in place of
    /// [`Step::offsets`](super::Step::offsets) of the step before.
    pub fn offsets(&self) -> &Array {
        &self.inputs[0]
    }

    /// The offsets, the positions and the tables of pages, in place of
    /// [`Step::inputs`](super::Step::inputs) of the step before.
    pub fn inputs(&self) -> &[Array] {
        &self.inputs
    }

    /// The arrays that the step writes in place.
    pub fn written(&self) -> Vec<Array> {
        self.cache.row_arrays()
    }

    /// Ends the step, whose computation is queued: each row keeps its token.
    pub fn commit(self) {
        let cache = self.cache;
        let widths = cache.axis.iter().flat_map(|axis| &axis.widths);
        for (len, width) in cache.lens.iter_mut().zip(widths) {
            *len += width;
        }
        let (pool, slack) = (cache.pool.borrow(), cache.options.slack);
        for (group, own) in pool.groups().iter().enumerate() {
            for (pages, &len) in cache.pages.iter_mut().zip(&cache.lens) {
                if let Some(window) = own.window {
                    pages[group].drop_before(len.saturating_sub(window + slack));
                }
            }
        }
    }
}
