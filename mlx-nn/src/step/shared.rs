//! Layers that attend to the keys and values of an earlier layer, and store none.

use mlx_core::{Array, Result};

use super::Step;
use crate::attend::{Attend, Fresh, Keys, attend};
use crate::cache::state::refusal;

impl Step<'_> {
    /// [`attend`](Self::attend) for a layer whose keys and values later layers read too.
    ///
    /// # Errors
    /// The same as those of [`attend`](Self::attend).
    pub fn attend_shared<'k>(
        &mut self,
        layer: usize,
        q: impl Into<Keys<'k>>,
        k: impl Into<Keys<'k>>,
        v: &Array,
        options: &Attend<'_>,
    ) -> Result<Array> {
        let fresh = Fresh::new(q.into(), k.into());
        let (arrays, mask) = self.written(layer, &fresh, Some(v))?;
        self.shared.insert(layer, (arrays.clone(), mask.clone()));
        let scheme = self.cache.options.quantized;
        attend(
            &fresh.queries()?,
            &arrays[0],
            &arrays[1],
            scheme,
            mask,
            options,
        )
    }

    /// The attention of queries `[B, H, L, D]` over the keys and values that layer `layer` shared in this step with
    /// [`attend_shared`](Self::attend_shared): `[B, H, L, Dv]`. Nothing is written.
    ///
    /// # Errors
    /// That layer has not shared any in this step, or the shapes do not fit.
    pub fn attend_again(&mut self, layer: usize, q: &Array, options: &Attend<'_>) -> Result<Array> {
        let Some((arrays, mask)) = self.shared.get(&layer) else {
            return Err(refusal(format!(
                "layer {layer} has shared no keys and values in this step"
            )));
        };
        let scheme = self.cache.options.quantized;
        attend(q, &arrays[0], &arrays[1], scheme, mask.clone(), options)
    }
}
