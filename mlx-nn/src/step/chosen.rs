//! The part of [`Step`] for layers whose queries see only positions that were chosen: the vectors
//! by which positions are chosen, and the choice.

use mlx_core::{Array, Result};

use super::Step;
use super::paged::StepPages;
use crate::attend::Keys;

/// The vectors that a layer keeps for each position, and what the queries of a step may see.
#[derive(Clone, Debug)]
pub struct KeptVectors {
    /// All vectors of each row, `[B, S, D]`, where S is the length of the longest row. Shorter rows
    /// have any vectors behind their own.
    pub vectors: Array,
    /// Which of its row's positions each query may see: Bool `[1, T, S]`.
    pub visible: Array,
}

impl Step<'_> {
    /// Writes one vector for each position, `[1, 1, T, D]`, to the cache of a layer that keeps such
    /// vectors.
    ///
    /// # Errors
    /// The shapes do not fit, or the layer has another kind of state.
    pub fn keep(&mut self, layer: usize, vectors: &Array) -> Result<KeptVectors> {
        let keys = Keys::from(vectors);
        self.check_step(layer, &keys)?;
        self.lasts_until(0);
        let longest = self.places_and_lens().map(|(len, places)| len + places).max();
        let longest = longest.unwrap_or(0);
        let (all, window) = if self.stores() {
            let StepPages { paged, window } = self.pages_of(layer)?;
            let (arrays, _) = self.write(layer, None, &keys, None, &paged)?;
            let all = paged.gathered(&arrays[0])?.squeeze(1)?;
            (all.slice_axis(1, 0, longest as i32)?, window)
        } else {
            (self.by_row(vectors, longest)?, self.window_of(layer)?)
        };
        let mut visible = Vec::with_capacity(self.tokens() * longest);
        for (len, places) in self.places_and_lens() {
            for position in len..len + places {
                let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
                visible.extend((0..longest).map(|at| (first..=position).contains(&at)));
            }
        }
        let shape = [1, self.tokens() as i32, longest as i32];
        Ok(KeptVectors {
            vectors: all,
            visible: Array::from_slice(&visible, &shape)?,
        })
    }

    /// The length before the step and the number of places of each row.
    fn places_and_lens(&self) -> impl Iterator<Item = (usize, usize)> {
        let lens = self.cache.lens.iter().copied();
        lens.zip(self.axis.each().map(|places| places.len()))
    }

    /// The vectors `[1, 1, T, D]` of rows that hold nothing else: `[B, longest, D]`.
    fn by_row(&self, vectors: &Array, longest: usize) -> Result<Array> {
        let last = self.tokens() - 1;
        let rows = self.axis.each();
        let places = rows.flat_map(|places| {
            (places.start..places.start + longest).map(|place| place.min(last) as i32)
        });
        let places: Vec<i32> = places.collect();
        let shape = [self.axis.rows() as i32, longest as i32];
        let [_, _, _, d] = vectors.dims()?;
        let all = vectors.reshape(&[-1, d])?;
        all.take(&Array::from_slice(&places, &shape)?, 0)
    }

    /// The selection of the last layer that has chosen positions: Bool `[1, T, S]`; `None` if
    /// queries see all positions that they may see.
    pub fn selection(&self) -> Option<&Array> {
        self.selection.as_ref()
    }

    /// Sets the [`selection`](Self::selection) for this layer and the layers after it.
    pub fn set_selection(&mut self, selection: Option<Array>) {
        self.selection = selection;
    }
}
