//! The bytes of rows' caches.

use mlx_nn::{PAGE, StateCost};

/// The size of a row's cache as a function of its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheCost {
    layers: Vec<StateCost>,
}

impl CacheCost {
    /// The cost of layers with these states.
    pub(crate) fn new(layers: Vec<StateCost>) -> Self {
        Self { layers }
    }

    /// The bytes of a row of `len` positions, in whole pages. A row that has more positions than a
    /// layer keeps also holds the page that it leaves and the page that it enters.
    pub(crate) fn row(&self, len: usize) -> usize {
        let layer = |layer: &StateCost| {
            let most = layer.limit.map_or(len, |limit| len.min(limit + PAGE));
            layer.row_bytes + most.div_ceil(PAGE) * PAGE * layer.position_bytes
        };
        self.layers.iter().map(layer).sum()
    }
}
