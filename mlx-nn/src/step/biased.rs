//! Layers whose scores have a bias by the positions of keys (ALiBi).

use mlx_core::fast::Mask;
use mlx_core::ops::create;
use mlx_core::{Array, DType, Result};

use super::{Layout, Step};
use crate::attend::Fresh;
use crate::attention::Alibi;
use crate::cache::state::refusal;

impl Step<'_> {
    /// Writes keys and values to the cache of a layer with ALiBi. Returns the keys and values that the step's queries
    /// attend to, and the mask with the bias, in the dtype of the queries.
    pub(super) fn written_biased(
        &mut self,
        layer: usize,
        k: &Fresh<'_>,
        v: &Array,
        alibi: &Alibi,
        dtype: DType,
    ) -> Result<(Vec<Array>, Mask)> {
        let (arrays, window, layout) = self.stored(layer, k, Some(v))?;
        let Layout::Straight { slots } = layout else {
            return Err(refusal(format!(
                "layer {layer} has ALiBi and must keep all positions"
            )));
        };
        if let Some((held, mask)) = &self.biased
            && *held == slots
        {
            return Ok((arrays, mask.clone()));
        }
        let visible = self.mask(window, layout)?;
        let visible = visible.visible(self.width as i32, slots as i32)?;
        let positions = self.key_positions(slots)?;
        let mask = Mask::Array(alibi.mask(&positions, &visible, dtype)?);
        self.biased = Some((slots, mask.clone()));
        Ok((arrays, mask))
    }

    /// The position of the key in each slot, in its document where rows hold several: `[B or 1, 1, 1, S]`.
    fn key_positions(&self, slots: usize) -> Result<Array> {
        let Some(documents) = &self.documents else {
            let positions = create::arange(0.0, slots as f64, 1.0, DType::F32)?;
            return positions.reshape(&[1, 1, 1, slots as i32]);
        };
        let mut positions = Vec::with_capacity(documents.len() * slots);
        for row in documents {
            let begin = |slot: usize| {
                let own = row.get(slot)?;
                row.iter().position(|of| of == own)
            };
            positions.extend((0..slots).map(|slot| (slot - begin(slot).unwrap_or(0)) as f32));
        }
        Array::from_slice(&positions, &[documents.len() as i32, 1, 1, slots as i32])
    }
}
