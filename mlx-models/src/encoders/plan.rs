//! [`EncoderPlan`]: the values that distinguish one encoder from another.

use mlx_core::Result;
use mlx_nn::{Activation, NormConfig, RopeConfig};

use crate::config::{Config, Source};

/// Where the norms of a layer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlaces {
    /// `norm(x + half(x))` (BERT).
    AfterSums,
    /// `x + half(norm(x))` (ModernBERT).
    Before,
    /// `x + norm(half(norm(x)))` (Gemma 3).
    Around,
}

/// What distinguishes a layer from the others of its encoder.
#[derive(Clone, Debug, Default)]
pub struct LayerPlan {
    /// The rope, if the layer has one.
    pub rope: Option<RopeConfig>,
    /// How far away the keys are that a query sees; `None` if it sees all.
    pub reach: Option<i32>,
    /// Whether there is no norm before attention, although other layers have one.
    pub no_first_norm: bool,
}

/// The head that classifies texts: `out_proj(norm(activation(dense(x))))`.
#[derive(Clone, Debug)]
pub struct HeadShape {
    /// The number of classes.
    pub classes: i32,
    /// Whether the first layer has a bias.
    pub bias: bool,
    /// The activation.
    pub activation: Activation,
    /// The norm, if there is one.
    pub norm: Option<NormConfig>,
    /// Whether the head reads the mean of a text's features, and not the features of its first
    /// token.
    pub reads_mean: bool,
}

/// Everything that distinguishes one encoder from another.
#[derive(Clone, Debug)]
pub struct EncoderPlan {
    /// Rows of the embedding.
    pub vocab: i32,
    /// Features of a token.
    pub hidden: i32,
    /// The most tokens of a text.
    pub max_positions: usize,
    /// Rows of the table of learned positions, if there is one.
    pub positions: Option<i32>,
    /// RoBERTa: positions begin after this id, that of padding, and a padding token has this
    /// position.
    pub padding: Option<u32>,
    /// Rows of the table of token types; 0 without a table.
    pub types: i32,
    /// Embeddings are multiplied by this.
    pub embedding_scale: Option<f32>,
    /// The norm of embeddings, if there is one.
    pub embedding_norm: Option<NormConfig>,
    /// The norms of layers.
    pub norm: NormConfig,
    /// Where they are.
    pub norms: NormPlaces,
    /// Whether there is a norm after the last layer.
    pub final_norm: bool,
    /// Query heads.
    pub heads: i32,
    /// Key and value heads.
    pub kv_heads: i32,
    /// Features of a head.
    pub head_dim: i32,
    /// Scores are multiplied by this.
    pub scale: f32,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether the output of attention has a bias.
    pub out_bias: bool,
    /// The norm of each head of q and k, if there is one: the epsilon, and the number that is added
    /// to the stored weight.
    pub qk_norm: Option<(f32, f32)>,
    /// Features inside the MLP.
    pub intermediate: i32,
    /// The activation of the MLP.
    pub activation: Activation,
    /// Whether the MLP has a gate.
    pub gated: bool,
    /// Whether the projections into the MLP have biases.
    pub mlp_bias: bool,
    /// Whether the projection out of the MLP has a bias.
    pub mlp_out_bias: bool,
    /// The layers.
    pub layers: Vec<LayerPlan>,
    /// The head that classifies texts, if there is one.
    pub head: Option<HeadShape>,
}

/// The sizes that all families read in the same way.
pub(super) struct Sizes {
    pub vocab: i32,
    pub hidden: i32,
    pub layers: usize,
    pub heads: i32,
    pub head_dim: i32,
    pub intermediate: i32,
    pub positions: i32,
}

impl Sizes {
    /// Reads the sizes. `defaults` are those of transformers' class: vocabulary, features, layers,
    /// heads, features inside the MLP, positions.
    pub(super) fn read(c: &Config, defaults: [i32; 6]) -> Result<Self> {
        let [vocab, hidden, layers, heads, intermediate, positions] = defaults;
        let hidden = c.size("hidden_size", Some(hidden))?;
        let heads = c.size("num_attention_heads", Some(heads))?;
        if hidden % heads != 0 {
            return Err(c.error(format!(
                "hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
            )));
        }
        crate::config::keys::check_heads(c, heads, heads, hidden / heads)?;
        Ok(Self {
            vocab: c.size("vocab_size", Some(vocab))?,
            hidden,
            layers: crate::config::keys::n_layers(c, Some(layers))?,
            heads,
            head_dim: hidden / heads,
            intermediate: c.size("intermediate_size", Some(intermediate))?,
            positions: c.size("max_position_embeddings", Some(positions))?,
        })
    }
}

/// Whether `architectures` names a class with a head that classifies texts.
pub(super) fn is_classifier(c: &Config) -> Result<bool> {
    let names: Vec<String> = c.or("architectures", Vec::new())?;
    Ok(names
        .iter()
        .any(|name| name.ends_with("ForSequenceClassification")))
}

/// The number of classes of the head: the rows of its last matrix.
pub(super) fn classes(source: &Source<'_>) -> Result<i32> {
    let shape = source.tensors.shape("head.out_proj.weight")?;
    match shape.as_deref() {
        Some(&[classes, _]) => Ok(classes),
        // A model that is initialised has no tensors.
        _ => {
            let labels: Option<serde_json::Map<_, _>> = source.config.opt("id2label")?;
            Ok(labels.map_or(2, |labels| labels.len() as i32))
        }
    }
}
