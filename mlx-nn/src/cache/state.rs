//! [`LayerState`]: what a cache holds for one layer beside pages.

use std::rc::Rc;

use mlx_core::{Array, Error, ErrorKind, Result};

use super::LayerKind;
use super::recurrent::RecurrentCache;
use crate::step::axis::Axis;

/// The tokens that each row keeps of a step that is about to commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept<'s> {
    /// Tokens that each row keeps, at most as many as it brought.
    pub(crate) keep: &'s [usize],
    /// The tokens of the step.
    pub(crate) axis: &'s Axis,
    /// [`CacheOptions::slack`]
    pub(crate) slack: usize,
    /// The slot with the state of each row after the tokens that it keeps, if the step has stored the
    /// state after each token.
    pub(crate) slots: Option<&'s Rc<[usize]>>,
}

impl Kept<'_> {
    /// Whether every row keeps all of its tokens.
    pub(crate) fn is_whole(&self) -> bool {
        self.keep == self.axis.widths
    }

    /// Whether the states after the last places of all rows are those after the tokens that they keep.
    pub(crate) fn is_at_end(&self) -> bool {
        self.is_whole() && !self.axis.is_padded()
    }

    /// The error for a step that has declared that all of its tokens are kept.
    pub(crate) fn not_whole(&self) -> Error {
        let (keep, widths) = (self.keep, &self.axis.widths);
        refusal(format!(
            "a step of {widths:?} tokens, all of which were to be kept, cannot keep {keep:?}"
        ))
    }

    /// The error for a step whose state exists only for all of its tokens.
    pub(crate) fn too_wide(&self) -> Error {
        let Self {
            keep, axis, slack, ..
        } = self;
        let (width, widths) = (axis.longest(), &axis.widths);
        refusal(format!(
            "a step of {width} tokens is too wide for slack {slack} to keep {keep:?} of {widths:?}"
        ))
    }
}

/// What a cache holds for one layer beside the pages of the pool.
#[derive(Clone, Debug)]
pub(crate) enum LayerState {
    /// Nothing: its keys and values are in pages.
    Paged,
    /// Arrays of a fixed size a row.
    Recurrent(Box<RecurrentCache>),
}

impl LayerState {
    pub(crate) fn new(kind: LayerKind, rows: usize) -> Self {
        match kind {
            LayerKind::Full
            | LayerKind::Window(_)
            | LayerKind::Latent
            | LayerKind::LatentWindow { .. } => Self::Paged,
            LayerKind::Recurrent(shape) => {
                Self::Recurrent(Box::new(RecurrentCache::new(shape, rows)))
            }
        }
    }

    /// The recurrent state, if that is what the layer keeps.
    pub(crate) fn recurrent(&mut self) -> Option<&mut RecurrentCache> {
        match self {
            Self::Paged => None,
            Self::Recurrent(state) => Some(state),
        }
    }

    /// The rows `rows`, in that order. `indices` holds the same numbers.
    pub(crate) fn select(&self, rows: &[usize], indices: &Array) -> Result<Self> {
        match self {
            Self::Paged => Ok(Self::Paged),
            Self::Recurrent(state) => {
                let state = state.select(rows, indices)?;
                Ok(Self::Recurrent(Box::new(state)))
            }
        }
    }

    /// These rows, then those of `other`. `rows` are the numbers of both.
    pub(crate) fn join(&self, other: &Self, rows: [usize; 2]) -> Result<Self> {
        match (self, other) {
            (Self::Paged, Self::Paged) => Ok(Self::Paged),
            (Self::Recurrent(state), Self::Recurrent(other)) => {
                Ok(Self::Recurrent(Box::new(state.join(other, rows)?)))
            }
            _ => Err(incompatible()),
        }
    }

    /// Writes row `from` of `other` over row `row` of `rows`.
    pub(crate) fn put(&mut self, place: (usize, usize), other: &Self, from: usize) -> Result<()> {
        match (self, other) {
            (Self::Paged, Self::Paged) => Ok(()),
            (Self::Recurrent(state), Self::Recurrent(other)) => state.put(place, other, from),
            _ => Err(incompatible()),
        }
    }

    /// Clears row `row`.
    pub(crate) fn clear(&mut self, row: usize) {
        if let Self::Recurrent(state) = self {
            state.clear(row);
        }
    }

    /// The arrays that hold the rows, none before the first write.
    pub(crate) fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Paged => Vec::new(),
            Self::Recurrent(state) => state.arrays(),
        }
    }

    /// The arrays that hold the rows at recorded lengths.
    pub(crate) fn recorded_arrays(&self) -> Vec<&Array> {
        match self {
            Self::Paged => Vec::new(),
            Self::Recurrent(state) => state.recorded_arrays(),
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
