//! [`Geometry`]: the sizes of a model, layer by layer.

use mlx_core::{DType, Result};
use mlx_nn::shard::Ranks;
use mlx_nn::{CacheOptions, KvShape, LayerKind, RecurrentShape, RowPart, StateCost};

/// The sizes of a model as it was built. Other crates use these sizes instead of config.json.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Rows of the embedding.
    pub vocab: i32,
    /// Features of a token.
    pub hidden: i32,
    /// The context length in tokens, if the config has one.
    pub max_positions: Option<usize>,
    /// See [`Model::switches_after`](crate::model::Model::switches_after).
    pub switches_after: Option<usize>,
    /// See [`Model::grows_after`](crate::model::Model::grows_after).
    pub grows_after: Option<usize>,
    layers: Vec<LayerGeometry>,
    states: Vec<LayerKind>,
    /// The KV heads of each state, if the state holds keys and values.
    kv: Vec<Option<KvShape>>,
    /// The dtype of each state's keys, if it differs from that of the activations.
    dtypes: Vec<Option<DType>>,
    /// The index of each layer's first state.
    firsts: Vec<usize>,
}

/// The sizes of one decoder layer, and the kinds of its states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGeometry {
    /// Query heads; 0 without attention.
    pub heads: i32,
    /// The KV heads that the layer's attention reads.
    pub kv: Option<KvShape>,
    /// The kinds of the layer's states. Usually there is one. A layer that reads the state of
    /// another layer has none. A layer with attention and a recurrence, or with an indexer, has
    /// two.
    pub states: Vec<LayerKind>,
    /// The size of the F32 vectors in the layer's second state, if that state is of the kind
    /// [`LayerKind::Latent`].
    pub index_dim: Option<i32>,
    /// The earlier layer whose keys and values it reads, if it has none of its own.
    pub shares: Option<usize>,
    /// The first layer whose results within a step the layer reads beside the residual stream, such as
    /// the choice of an indexer. These layers and those between them are differentiated together.
    pub reads: Option<usize>,
}

impl LayerGeometry {
    /// A layer with this number of query heads and its own keys and values, in a state of this kind.
    pub fn attention(heads: i32, kv: KvShape, kind: LayerKind) -> Self {
        Self {
            heads,
            kv: Some(kv),
            states: vec![kind],
            index_dim: None,
            shares: None,
            reads: None,
        }
    }

    /// The layer with a second state: one F32 vector of this size for each position.
    #[must_use]
    pub fn with_index(mut self, features: i32) -> Self {
        self.states.push(LayerKind::Latent);
        self.index_dim = Some(features);
        self
    }

    /// A layer with this number of query heads over the keys and values of layer `layer`.
    pub fn sharing(heads: i32, kv: KvShape, layer: usize) -> Self {
        Self {
            heads,
            kv: Some(kv),
            states: Vec::new(),
            index_dim: None,
            shares: Some(layer),
            reads: None,
        }
    }

    /// A layer without a state.
    pub fn stateless() -> Self {
        Self {
            heads: 0,
            kv: None,
            states: Vec::new(),
            index_dim: None,
            shares: None,
            reads: None,
        }
    }

    /// A recurrent layer.
    pub fn recurrent(shape: RecurrentShape) -> Self {
        Self {
            states: vec![LayerKind::Recurrent(shape)],
            ..Self::stateless()
        }
    }
}

/// The shape of keys and values whose heads have one size.
pub fn kv_heads(heads: i32, head_dim: i32) -> KvShape {
    KvShape {
        heads,
        key_dim: head_dim,
        value_dim: head_dim,
    }
}

impl Geometry {
    /// A model with these layers. The model has no limit of positions, and its rope does not change
    /// with the length.
    ///
    /// # Panics
    /// A layer shares keys and values with one that is not before it.
    pub fn new(vocab: i32, hidden: i32, layers: Vec<LayerGeometry>) -> Self {
        let mut geometry = Self {
            vocab,
            hidden,
            max_positions: None,
            switches_after: None,
            grows_after: None,
            layers: Vec::with_capacity(layers.len()),
            states: Vec::new(),
            kv: Vec::new(),
            dtypes: Vec::new(),
            firsts: Vec::new(),
        };
        for layer in layers {
            geometry.push(layer);
        }
        geometry
    }

    /// Sets the context length, and the length at which the rope changes.
    #[must_use]
    pub fn with_positions(mut self, most: Option<usize>, switches_after: Option<usize>) -> Self {
        self.max_positions = most;
        self.switches_after = switches_after;
        self
    }

    /// Sets the length beyond which the rope depends on the length of the prompt.
    #[must_use]
    pub fn growing_after(mut self, length: Option<usize>) -> Self {
        self.grows_after = length;
        self
    }

    /// Adds a layer after the others.
    ///
    /// # Panics
    /// The layer shares keys and values with a layer that does not exist.
    pub fn push(&mut self, layer: LayerGeometry) {
        let first = match layer.shares {
            Some(shared) => self.firsts[shared],
            None => self.states.len(),
        };
        self.firsts.push(first);
        for (at, &kind) in layer.states.iter().enumerate() {
            self.states.push(kind);
            let recurrent = matches!(kind, LayerKind::Recurrent(_));
            let is_index = at > 0 && kind == LayerKind::Latent;
            let index = layer.index_dim.filter(|_| is_index);
            self.dtypes.push(index.map(|_| DType::F32));
            let index = index.map(|dim| kv_heads(1, dim));
            self.kv.push(index.or(layer.kv).filter(|_| !recurrent));
        }
        self.layers.push(layer);
    }

    /// Adds states that do not belong to a decoder layer, such as those of a head. `kv` has the
    /// heads of the states with keys and values. Returns the index of the first added state.
    pub fn beside(&mut self, kv: KvShape, states: &[LayerKind]) -> usize {
        let first = self.states.len();
        for &kind in states {
            self.states.push(kind);
            self.dtypes.push(None);
            let recurrent = matches!(kind, LayerKind::Recurrent(_));
            self.kv.push(Some(kv).filter(|_| !recurrent));
        }
        first
    }

    /// Leaves the heads and the states that a rank holds. `states` has the recurrent states that are divided: the whole
    /// one, and the rank's.
    pub(crate) fn divide(&mut self, ranks: Ranks, states: &[(LayerKind, LayerKind)]) {
        let own = |heads: i32| match heads % ranks.size() as i32 {
            0 => heads / ranks.size() as i32,
            // Several ranks have the same heads.
            _ => 1.min(heads),
        };
        let kv = |kv: &mut Option<KvShape>| {
            if let Some(kv) = kv {
                kv.heads = own(kv.heads);
            }
        };
        let divided = |kind: &mut LayerKind| {
            if let Some((_, part)) = states.iter().find(|(whole, _)| whole == kind) {
                *kind = *part;
            }
        };
        for layer in &mut self.layers {
            layer.heads = own(layer.heads);
            kv(&mut layer.kv);
            layer.states.iter_mut().for_each(divided);
        }
        self.states.iter_mut().for_each(divided);
        self.kv.iter_mut().for_each(kv);
    }

    /// The decoder layers, in order.
    pub fn layers(&self) -> &[LayerGeometry] {
        &self.layers
    }

    /// The states of all layers, in order: the states of a [`ModelCache`](mlx_nn::ModelCache).
    pub fn states(&self) -> &[LayerKind] {
        &self.states
    }

    /// The index among [`states`](Self::states) of the first state that layer `layer` reads.
    ///
    /// # Panics
    /// The model has no layer of this index.
    pub fn state_of(&self, layer: usize) -> usize {
        self.firsts[layer]
    }

    /// The KV heads of each of the [`states`](Self::states), if the state holds keys and values.
    pub fn kv(&self) -> &[Option<KvShape>] {
        &self.kv
    }

    /// The arrays of a row in each of the [`states`](Self::states), for activations of this dtype.
    ///
    /// # Errors
    /// The sizes of keys and values do not allow the packing of `options`. The message names the
    /// sizes of the first such state.
    pub fn row_parts(&self, dtype: DType, options: &CacheOptions) -> Result<Vec<Vec<RowPart>>> {
        self.each(dtype, |kind, kv, dtype| kind.row_parts(kv, dtype, options))
    }

    /// The cost of each of the [`states`](Self::states): bytes of a row and of a position.
    ///
    /// # Errors
    /// The same as those of [`row_parts`](Self::row_parts).
    pub fn costs(&self, dtype: DType, options: &CacheOptions) -> Result<Vec<StateCost>> {
        self.each(dtype, |kind, kv, dtype| kind.cost(kv, dtype, options))
    }

    fn each<T>(
        &self,
        activations: DType,
        of: impl Fn(&LayerKind, KvShape, DType) -> Result<T>,
    ) -> Result<Vec<T>> {
        let states = self.states.iter().zip(&self.kv).zip(&self.dtypes);
        let each = states.enumerate().map(|(state, ((kind, kv), dtype))| {
            let kv = kv.unwrap_or(kv_heads(0, 0));
            of(kind, kv, dtype.unwrap_or(activations))
                .map_err(|error| error.context(format!("head_dim {} of cache {state}", kv.key_dim)))
        });
        each.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlx_nn::StatePart;

    const STATE: RecurrentShape = RecurrentShape::new(&[StatePart::Carry {
        name: "state",
        shape: [2, 3, 5],
        dtype: DType::F32,
    }]);

    #[test]
    fn layers_differ_in_what_they_keep_and_what_it_costs() {
        let (small, large) = (kv_heads(4, 8), kv_heads(1, 32));
        let mut both = LayerGeometry::attention(4, small, LayerKind::Full);
        both.states.push(LayerKind::Recurrent(STATE));
        let geometry = Geometry::new(
            10,
            16,
            vec![
                LayerGeometry::attention(4, small, LayerKind::Window(6)),
                LayerGeometry::recurrent(STATE),
                LayerGeometry::attention(2, large, LayerKind::Full),
                LayerGeometry::sharing(4, small, 0),
                both,
                LayerGeometry::attention(2, large, LayerKind::Latent).with_index(8),
            ],
        );
        let kinds = [
            LayerKind::Window(6),
            LayerKind::Recurrent(STATE),
            LayerKind::Full,
            LayerKind::Full,
            LayerKind::Recurrent(STATE),
            LayerKind::Latent,
            LayerKind::Latent,
        ];
        assert_eq!(geometry.states(), kinds);
        let firsts: Vec<usize> = (0..6).map(|layer| geometry.state_of(layer)).collect();
        assert_eq!(firsts, [0, 1, 2, 0, 3, 5]);
        let index = kv_heads(1, 8);
        assert_eq!(
            geometry.kv(),
            [
                Some(small),
                None,
                Some(large),
                Some(small),
                None,
                Some(large),
                Some(index)
            ]
        );
        let costs = geometry
            .costs(DType::BF16, &CacheOptions::default())
            .unwrap();
        let bytes = |cost: &StateCost| (cost.row_bytes, cost.position_bytes);
        let bytes: Vec<(usize, usize)> = costs.iter().map(bytes).collect();
        // A latent is one vector with 2 bytes per element; the key of an indexer has 4 bytes per
        // element.
        assert_eq!(
            bytes[..5],
            [(0, 128), (120, 0), (0, 128), (0, 128), (120, 0)]
        );
        assert_eq!(bytes[5..], [(0, 64), (0, 32)]);
        assert!(costs[0].limit.is_some() && costs[2].limit.is_none());
    }
}
