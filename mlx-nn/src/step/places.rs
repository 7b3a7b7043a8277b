//! The positions of a step's tokens.

use mlx_core::ops::create::arange;
use mlx_core::{Array, DType, Result};

use super::Step;

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
}
