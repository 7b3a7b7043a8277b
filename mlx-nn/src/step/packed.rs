//! Steps whose rows hold several documents each, so that training needs little padding.

use mlx_core::fast::Mask;
use mlx_core::{Error, ErrorKind, Result};

use super::Step;
use crate::cache::ModelCache;
use crate::mask::{mask, visible};

impl<'c> Step<'c> {
    pub(crate) fn packed(cache: &'c mut ModelCache, documents: &[Vec<usize>]) -> Result<Self> {
        if cache.options.store {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a packed step needs a cache that stores nothing",
            ));
        }
        let widths: Vec<usize> = documents.iter().map(|row| row.iter().sum()).collect();
        let states = 0..cache.layers.len();
        let mut step = Self::new(cache, states, None, &widths)?;
        if documents.iter().any(|row| row.len() > 1) {
            let row = |row: &Vec<usize>| {
                let lengths = row.iter().enumerate();
                lengths
                    .flat_map(|(document, &length)| std::iter::repeat_n(document, length))
                    .collect()
            };
            step.documents = Some(documents.iter().map(row).collect());
        }
        Ok(step)
    }

    /// The mask of a step that begins at position 0: causal and within the window, and only within a document.
    pub(super) fn packed_mask(&self, window: Option<usize>) -> Result<Mask> {
        let documents = self.documents.as_deref().unwrap_or_default();
        let width = self.width;
        // Padding belongs to no document. It sees all tokens before it, so that its softmax has terms.
        let of = |row: usize, token: usize| documents[row].get(token);
        let array = mask(documents.len(), width, width, |row, query, key| {
            visible(query as i64, key as i64, window)
                && (of(row, query) == of(row, key) || of(row, query).is_none())
        })?;
        Ok(Mask::Array(array))
    }
}
