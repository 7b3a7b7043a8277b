//! What rows of tokens cost in bytes.

use mlx_nn::{CacheOptions, LayerKind};

/// The size of a batch's caches as a function of its rows and their longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheCost {
    /// Bytes a position of a row takes in a layer.
    position_bytes: usize,
    /// Most positions of each layer that remembers a window.
    layers: Vec<Option<usize>>,
    /// Buffers grow by so many positions.
    growth: usize,
}

impl CacheCost {
    /// The cost of layers of these kinds, whose keys and values of a position take `position_bytes`.
    pub fn new(layers: &[LayerKind], options: &CacheOptions, position_bytes: usize) -> Self {
        let limit = |kind: &LayerKind| {
            let window = match *kind {
                LayerKind::Full => None,
                LayerKind::Window(window) => Some(window),
            };
            let least = window.into_iter().chain(options.max_context).min();
            least.map(|window| window.max(1) + options.slack)
        };
        Self {
            position_bytes,
            layers: layers.iter().map(limit).collect(),
            growth: options.growth.max(1),
        }
    }

    /// Bytes of the buffers of `rows` rows of which the longest holds `longest` positions.
    pub fn bytes(&self, rows: usize, longest: usize) -> usize {
        let grown = longest.div_ceil(self.growth) * self.growth;
        let slots: usize = self
            .layers
            .iter()
            .map(|limit| limit.map_or(grown, |limit| grown.min(limit)))
            .sum();
        rows * slots * self.position_bytes
    }
}
