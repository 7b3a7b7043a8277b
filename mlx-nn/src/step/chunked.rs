//! Layers whose tokens see only the tokens of their own chunk of positions.

use mlx_core::fast::Mask;
use mlx_core::{Array, Result};

use super::{Layout, Step};
use crate::attend::{Attend, Fresh, Keys, attend};
use crate::mask::{mask, position, visible};

impl Step<'_> {
    /// [`attend`](Self::attend) for a layer whose tokens see only the tokens of their own chunk: position p belongs to
    /// chunk `p / chunk` (Llama 4). The layer keeps a window of `chunk` positions, or all.
    ///
    /// # Errors
    /// The same as those of [`attend`](Self::attend).
    pub fn attend_chunked<'k>(
        &mut self,
        layer: usize,
        chunk: usize,
        q: impl Into<Keys<'k>>,
        k: impl Into<Keys<'k>>,
        v: &Array,
        options: &Attend<'_>,
    ) -> Result<Array> {
        let fresh = Fresh::new(q.into(), k.into());
        let (arrays, window, layout) = self.stored(layer, &fresh, Some(v))?;
        let mask = match self.end() <= chunk {
            // All rows are in one chunk, in which a token sees the tokens before it.
            true => {
                self.lasts_until(chunk);
                self.mask(window, layout)?
            }
            false => self.chunk_mask(chunk, window, layout)?,
        };
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

    /// The mask of chunks, made once for each step.
    fn chunk_mask(&mut self, chunk: usize, window: Option<usize>, layout: Layout) -> Result<Mask> {
        self.lasts_until(0);
        let key = (chunk, window, layout);
        if let Some(mask) = self.chunks.get(&key) {
            return Ok(mask.clone());
        }
        let lens = &self.cache.lens;
        let slots = match layout {
            Layout::Straight { slots } => slots,
            Layout::Wrapped { cap } => cap,
            Layout::Chunk { cap } => cap + self.width,
        };
        let held = |row: usize, slot: usize| match layout {
            Layout::Straight { .. } => slot as i64,
            Layout::Wrapped { cap } => position(slot, lens[row] + self.width, cap),
            Layout::Chunk { cap } => lens[row] as i64 + slot as i64 - cap as i64,
        };
        // Each document of a row has its own chunks.
        let first = |row: usize, token: usize| match &self.documents {
            Some(documents) => {
                let own = documents[row].get(token);
                documents[row].iter().position(|of| Some(of) == own)
            }
            None => Some(0),
        };
        let array = mask(lens.len(), self.width, slots, |row, query, slot| {
            let (q, k) = ((lens[row] + query) as i64, held(row, slot));
            // Padding belongs to no document. It sees all tokens before it, so that its softmax has terms.
            let Some(first) = first(row, query) else {
                return visible(q, k, window);
            };
            let of = |position: i64| (position - first as i64).div_euclid(chunk as i64);
            k >= first as i64 && visible(q, k, window) && of(q) == of(k)
        })?;
        let mask = Mask::Array(array);
        self.chunks.insert(key, mask.clone());
        Ok(mask)
    }
}
