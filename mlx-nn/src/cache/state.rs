//! [`LayerState`]: the state of one layer, and the operations that a [`ModelCache`](super::ModelCache) needs.

use mlx_core::{Array, Error, ErrorKind, Result};

use super::kv::KvCache;
use super::recurrent::RecurrentCache;
use super::{CacheOptions, LayerKind};

/// The length of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowLen {
    /// The number of positions that it holds.
    pub(crate) len: usize,
    /// The largest number of positions that it has ever had. Positions that a ring has overwritten do not come back
    /// when the row is shortened.
    pub(crate) written: usize,
}

/// The tokens that each row keeps of a step that is about to commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept<'s> {
    /// Tokens that each row keeps, at most as many as it brought.
    pub(crate) keep: &'s [usize],
    /// Tokens that each row brought.
    pub(crate) widths: &'s [usize],
    /// The width of the tokens' array.
    pub(crate) width: usize,
    /// [`CacheOptions::slack`]
    pub(crate) slack: usize,
}

impl Kept<'_> {
    /// Whether every row keeps all of its tokens.
    pub(crate) fn is_whole(&self) -> bool {
        self.keep == self.widths
    }

    /// The error for a step whose state exists only for all of its tokens.
    pub(crate) fn too_wide(&self) -> Error {
        let Self {
            keep,
            widths,
            width,
            slack,
        } = self;
        refusal(format!(
            "a step of {width} tokens is too wide for slack {slack} to keep {keep:?} of {widths:?}"
        ))
    }
}

/// The operations of every kind of layer state. Rows are numbered from 0. The
/// [`ModelCache`](super::ModelCache) holds their lengths and passes them as arguments.
pub(crate) trait State {
    /// Builds the state after a step of which the rows keep the tokens in `kept`. The state takes
    /// effect with [`end_step`](Self::end_step).
    fn prepare(&mut self, kept: &Kept<'_>) -> Result<()>;

    /// Ends the step: adopts the prepared state, or drops it.
    fn end_step(&mut self, commit: bool);

    /// Whether row `row` can be shortened to `len` positions, fewer than it holds.
    fn can_rewind(&self, row: usize, held: RowLen, len: usize) -> bool;

    /// Shortens row `row` to `len` positions, which [`can_rewind`](Self::can_rewind) has allowed.
    fn truncate(&mut self, row: usize, len: usize) -> Result<()>;

    /// Records the present length of row `row`, so that the row can be shortened to it later.
    fn record(&mut self, row: usize, len: usize) -> Result<()>;

    /// Clears row `row`.
    fn clear(&mut self, row: usize);

    /// The rows `rows`, in that order. `indices` holds the same numbers.
    fn select(&self, rows: &[usize], indices: &Array) -> Result<LayerState>;

    /// These rows, then those of `other`. `lens` has the lengths of both.
    fn join(&self, other: &LayerState, lens: [&[RowLen]; 2]) -> Result<LayerState>;

    /// Whether [`put`](Self::put) would write into the arrays that are there.
    fn has_room_for(&self, other: &LayerState) -> bool;

    /// Writes row `from` of `other`, of length `held`, over row `row` of `rows`.
    fn put(&mut self, row: (usize, usize), other: &LayerState, from: (usize, RowLen))
    -> Result<()>;

    /// The first `len` positions of row `row`, as views.
    fn view(&self, row: usize, held: RowLen, len: usize) -> Result<LayerState>;

    /// Sets the [arrays](Self::arrays) of one row, from a file or another cache. The error names the array that does
    /// not fit.
    fn fill(&mut self, held: RowLen, arrays: Vec<Array>) -> Result<()>;

    /// Frees the memory of positions from `longest` on.
    fn shrink(&mut self, longest: usize) -> Result<()>;

    /// The arrays that hold the rows, none before the first write.
    fn arrays(&self) -> Vec<&Array>;

    /// The arrays that hold the rows at [recorded](Self::record) lengths.
    fn recorded_arrays(&self) -> Vec<&Array>;
}

/// The state of one layer.
#[derive(Clone, Debug)]
pub(crate) enum LayerState {
    /// Keys and values of positions.
    Kv(KvCache),
    /// Arrays of a fixed size a row.
    Recurrent(RecurrentCache),
}

impl LayerState {
    pub(crate) fn new(kind: LayerKind, rows: usize, options: &CacheOptions) -> Self {
        match kind {
            LayerKind::Full | LayerKind::Window(_) | LayerKind::Latent => {
                Self::Kv(KvCache::new(kind, options))
            }
            LayerKind::Recurrent(shape) => Self::Recurrent(RecurrentCache::new(shape, rows)),
        }
    }

    pub(crate) fn state(&self) -> &dyn State {
        match self {
            Self::Kv(state) => state,
            Self::Recurrent(state) => state,
        }
    }

    pub(crate) fn state_mut(&mut self) -> &mut dyn State {
        match self {
            Self::Kv(state) => state,
            Self::Recurrent(state) => state,
        }
    }

    /// Whether the next step updates the layer's arrays in place.
    pub(crate) fn is_in_place(&self) -> bool {
        match self {
            Self::Kv(state) => state.is_own(),
            Self::Recurrent(_) => false,
        }
    }

    /// Keys and values, if that is what the layer keeps.
    pub(crate) fn kv(&mut self) -> Option<&mut KvCache> {
        match self {
            Self::Kv(state) => Some(state),
            Self::Recurrent(_) => None,
        }
    }

    /// The recurrent state, if that is what the layer keeps.
    pub(crate) fn recurrent(&mut self) -> Option<&mut RecurrentCache> {
        match self {
            Self::Kv(_) => None,
            Self::Recurrent(state) => Some(state),
        }
    }
}

/// The error for an operation that the cache's state does not allow.
pub(crate) fn refusal(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message.into())
}

/// The error for combining states of different kinds.
pub(crate) fn incompatible() -> Error {
    refusal("caches of different models or options cannot be joined")
}
