//! Layers whose queries see only a selection of the positions before them.

use mlx_core::fast::Mask;
use mlx_core::{Array, Result};

use super::Step;
use crate::attend::{Attend, Keys, attend};

impl Step<'_> {
    /// The length of the longest row, including its tokens of this step.
    pub fn longest(&self) -> usize {
        self.lasts_until(0);
        let rows = self.cache.lens.iter().zip(&self.widths);
        rows.map(|(len, width)| len + width).max().unwrap_or(0)
    }

    /// Writes one vector for each position, `[B, 1, L, D]`, to the cache of a layer that keeps such vectors. Returns
    /// all vectors of the rows, `[B, 1, S, D]`, and which of them the step's queries may see, Bool `[B or 1, 1, L, S]`.
    ///
    /// # Errors
    /// The shapes do not fit, or the layer has another kind of state.
    pub fn keep(&mut self, layer: usize, vectors: &Array) -> Result<(Array, Array)> {
        let (arrays, mask) = self.written(layer, &Keys::from(vectors).into(), None)?;
        let kept = arrays.into_iter().next().expect("a layer keeps an array");
        let visible = mask.visible(self.width as i32, kept.dim(2)?)?;
        Ok((kept, visible))
    }

    /// The selection of the last layer that has chosen positions: Bool `[B, 1, L, S]`; `None` if queries see all
    /// positions that they may see.
    pub fn selection(&self) -> Option<&Array> {
        self.selection.as_ref()
    }

    /// Sets the [`selection`](Self::selection) for this layer and the layers after it.
    pub fn set_selection(&mut self, selection: Option<Array>) {
        self.selection = selection;
    }

    /// [`attend`](Self::attend), where queries see only the selection, if there is one.
    ///
    /// # Errors
    /// The same as those of [`attend`](Self::attend).
    pub fn attend_selected(
        &mut self,
        layer: usize,
        q: &Array,
        k: &Array,
        v: &Array,
        selection: Option<&Array>,
        options: &Attend<'_>,
    ) -> Result<Array> {
        let (arrays, mask) = self.written(layer, &Keys::from(k).into(), Some(v))?;
        let mask = selection.map_or(mask, |seen| Mask::Array(seen.clone()));
        let scheme = self.cache.options.quantized;
        attend(q, &arrays[0], &arrays[1], scheme, mask, options)
    }
}
