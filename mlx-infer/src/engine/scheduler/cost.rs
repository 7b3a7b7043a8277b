//! The bytes of rows' caches.

use mlx_nn::StateCost;

/// The size of a row's cache as a function of its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheCost {
    layers: Vec<StateCost>,
    /// Positions of a page.
    page: usize,
}

impl CacheCost {
    /// The cost of layers with these states, whose positions are in pages of `page` positions.
    pub(crate) fn new(layers: Vec<StateCost>, page: usize) -> Self {
        Self { layers, page }
    }

    /// The bytes of a row of `len` positions.
    pub(crate) fn row(&self, len: usize) -> usize {
        let layers = self.layers.iter();
        layers
            .map(|layer| layer.bytes_in_pages(len, self.page))
            .sum()
    }
}
