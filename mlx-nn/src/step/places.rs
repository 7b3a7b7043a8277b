//! The positions of a step's tokens, and their slots.

use mlx_core::ops::create::arange;
use mlx_core::{Array, DType, Result};

use super::Step;
use crate::cache::kv::Places;

impl Step<'_> {
    /// The position of each token in its text, I32 `[B, L]`. Positions of padding follow the row's last token.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn positions(&self) -> Result<Array> {
        let width = self.width as i32;
        if let Some(documents) = &self.documents {
            let mut positions = Vec::new();
            for row in documents {
                let own = row.iter().flat_map(|&len| 0..len as i32);
                positions.extend(own.chain(std::iter::repeat(0)).take(self.width));
            }
            return Array::from_slice(&positions, &[documents.len() as i32, width]);
        }
        let places = arange(0.0, f64::from(width), 1.0, DType::I32)?;
        self.offsets.expand_dims(-1)?.add(&places)
    }

    /// The slots of this step's tokens in buffers of `cap` slots, in which positions wrap around. The host computes them.
    pub(super) fn host_places(&self, cap: usize) -> Result<Places> {
        self.lasts_until(0);
        if let Some(len) = self.common_len()
            && len % cap + self.width <= cap
        {
            return Ok(Places::Range(len % cap));
        }
        let (mut rows, mut slots) = (Vec::new(), Vec::new());
        for (row, &len) in self.cache.lens.iter().enumerate() {
            rows.extend(std::iter::repeat_n(row as i32, self.width));
            slots.extend((len..len + self.width).map(|position| (position % cap) as i32));
        }
        let shape = [self.widths.len() as i32, self.width as i32];
        Ok(Places::Scattered {
            rows: Array::from_slice(&rows, &shape)?,
            slots: Array::from_slice(&slots, &shape)?,
        })
    }
}
