//! What distinguishes one pre-norm decoder from another.

use mlx_core::Result;
use mlx_nn::{Activation, DeltaConfig, ExpertsConfig, LayerKind, Rope, RopeConfig};

use crate::causal::Surroundings;
use crate::{Geometry, LayerGeometry, kv_heads};

/// The feed-forward half of one layer.
#[derive(Clone, Debug)]
pub enum MlpConfig {
    /// One gated MLP.
    Dense {
        /// Features inside.
        intermediate: i32,
        /// Bias on its three projections.
        bias: bool,
        /// Its activation.
        activation: Activation,
    },
    /// A router and experts.
    Experts(ExpertsConfig),
}

/// Everything that distinguishes one pre-norm decoder from another.
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Rows of the embedding.
    pub vocab: i32,
    /// Query heads.
    pub heads: i32,
    /// Key and value heads.
    pub kv_heads: i32,
    /// Features of a head.
    pub head_dim: i32,
    /// What each layer keeps. Recurrent layers mix tokens as `delta` says, the others attend.
    pub layers: Vec<LayerKind>,
    /// The feed-forward half of each layer.
    pub mlps: Vec<MlpConfig>,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Epsilon of every norm.
    pub norm_eps: f32,
    /// Bias on q, k and v.
    pub qkv_bias: bool,
    /// Bias on the attention's output.
    pub out_bias: bool,
    /// Norms on each head's q and k.
    pub qk_norm: bool,
    /// A gate on the attention's output.
    pub output_gate: bool,
    /// The gated delta rule of recurrent layers.
    pub delta: Option<DeltaConfig>,
    /// The head is the embedding.
    pub tied: bool,
    /// Positions the model was made for, if its config tells.
    pub max_positions: Option<usize>,
}

impl DecoderConfig {
    /// What is around the layers.
    ///
    /// # Errors
    /// The rope is none.
    pub fn surroundings(&self) -> Result<Surroundings> {
        let switches_after = Rope::new(&self.rope, self.head_dim)?.switches_after();
        let kv = kv_heads(self.kv_heads, self.head_dim);
        let layers = self.layers.iter();
        let layers = layers.map(|&kind| match kind {
            LayerKind::Recurrent(shape) => LayerGeometry::recurrent(shape),
            kind => LayerGeometry::attention(self.heads, kv, kind),
        });
        Ok(Surroundings {
            geometry: Geometry::new(self.vocab, self.hidden, layers.collect())
                .with_positions(self.max_positions, switches_after),
            norm_eps: self.norm_eps,
            norm_offset: 0.0,
            tied: self.tied,
            embed_scale: None,
            softcap: None,
        })
    }
}
