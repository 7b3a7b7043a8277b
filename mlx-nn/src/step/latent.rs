//! Layers that keep one vector for each position.

use mlx_core::fast::Mask;
use mlx_core::{Array, Result};

use super::Step;
use crate::attend::{Attend, Keys, attend};
use crate::cache::state::refusal;

impl Step<'_> {
    /// [`attend`](Self::attend) for a layer that keeps one vector for each position
    /// ([`LayerKind::Latent`](crate::LayerKind)): `latents` `[B, 1, L, D]` are the keys of all queries, and their first
    /// `value_dim` features are the values. If there is a selection, queries see only its positions.
    ///
    /// # Errors
    /// As [`attend`](Self::attend), or the cache is quantised.
    pub fn attend_latents(
        &mut self,
        layer: usize,
        q: &Array,
        latents: &Array,
        value_dim: i32,
        selection: Option<&Array>,
        options: &Attend<'_>,
    ) -> Result<Array> {
        if self.cache.options.quantized.is_some() {
            return Err(refusal(format!("layer {layer}: latents are not quantised")));
        }
        let (arrays, mask) = self.written(layer, &Keys::from(latents).into(), None)?;
        let mask = selection.map_or(mask, |seen| Mask::Array(seen.clone()));
        let keys = &arrays[0];
        let values = keys.slice_axis(-1, 0, value_dim)?;
        attend(q, keys, &values, None, mask, options)
    }
}
