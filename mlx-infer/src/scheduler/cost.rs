//! Bytes of a batch's caches.

use mlx_nn::StateCost;

/// The size of a batch's caches as a function of its rows and of the longest of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheCost {
    layers: Vec<StateCost>,
    /// Buffers grow by so many positions.
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

    /// Bytes of the buffers of `rows` rows of which the longest holds `longest` positions.
    pub(crate) fn bytes(&self, rows: usize, longest: usize) -> usize {
        let room = longest.div_ceil(self.growth) * self.growth;
        let row: usize = self.layers.iter().map(|layer| layer.bytes(room)).sum();
        rows * row
    }
}
