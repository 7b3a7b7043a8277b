//! Layers that are one position behind the others.

use mlx_core::{Array, Result};

use super::Step;

impl Step<'_> {
    /// How many positions each row held before the step.
    pub fn lens(&self) -> &[usize] {
        self.lasts_until(0);
        &self.cache.lens
    }

    /// Runs a layer in which every row is one position shorter than in the others. Keys and values of position p need
    /// the token at p + 1, so the next step writes the last position. A row that begins has the same length in all
    /// layers.
    ///
    /// # Errors
    /// Those of `run`.
    pub fn behind<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let lens: Vec<usize> = self
            .lens()
            .iter()
            .map(|len| len.saturating_sub(1))
            .collect();
        let offsets: Vec<i32> = lens.iter().map(|&len| len as i32).collect();
        let offsets = Array::from_slice(&offsets, &[offsets.len() as i32])?;
        let lens = std::mem::replace(&mut self.cache.lens, lens);
        let offsets = std::mem::replace(&mut self.offsets, offsets);
        let masks = std::mem::take(&mut self.masks);
        let places = std::mem::take(&mut self.places);
        let result = run(self);
        (self.cache.lens, self.offsets) = (lens, offsets);
        (self.masks, self.places) = (masks, places);
        result
    }
}
