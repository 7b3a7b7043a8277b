//! The bytes of a batch's caches.

use mlx_nn::StateCost;

/// The size of a batch's caches as a function of the number of rows and of the longest row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheCost {
    layers: Vec<StateCost>,
    /// Buffers grow by this many positions.
    growth: usize,
}

impl CacheCost {
    /// The cost of layers with these states, whose buffers grow by `growth` positions
    /// ([`CacheOptions::growth`](mlx_nn::CacheOptions::growth)).
    pub(crate) fn new(layers: Vec<StateCost>, growth: usize) -> Self {
        Self {
            layers,
            growth: growth.max(1),
        }
    }

    /// The bytes of the buffers of `rows` rows, the longest of which holds `longest` positions.
    pub(crate) fn bytes(&self, rows: usize, longest: usize) -> usize {
        let room = longest.div_ceil(self.growth) * self.growth;
        let row: usize = self.layers.iter().map(|layer| layer.bytes(room)).sum();
        rows * row
    }
}
