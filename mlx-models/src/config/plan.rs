//! Plans: the values that distinguish one decoder from another. The module `decoders` builds the
//! layers from them.

use mlx_nn::{
    Activation, BlockChoice, BlockPattern, ClampedGate, ExpertsConfig, Growth, HeadGate,
    LatentConfig, LayerKind, NormConfig, NormKind, QkNorm, RecurrenceConfig, RopeConfig,
};

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
        /// A gate that replaces the activation's.
        clamp: Option<ClampedGate>,
    },
    /// One MLP without a gate.
    Plain {
        /// Features inside.
        intermediate: i32,
        /// Bias on its two projections.
        bias: bool,
        /// Its activation.
        activation: Activation,
    },
    /// One MLP with a gate, in which gates and what they multiply are alternating rows of one matrix.
    Paired {
        /// Features inside.
        intermediate: i32,
        /// The gate. Both projections have biases.
        gate: ClampedGate,
    },
    /// One MLP without a gate, whose activation is [`Xielu`](mlx_nn::Xielu) with slopes of this many axes.
    Learned {
        /// Features inside.
        intermediate: i32,
        /// Axes of the slopes in the files: 0 or 1.
        axes: usize,
    },
    /// A router and experts.
    Experts(ExpertsConfig),
}

/// The attention of a decoder's layers.
#[derive(Clone, Debug)]
pub struct AttentionPlan {
    /// Query heads.
    pub heads: i32,
    /// Key and value heads.
    pub kv_heads: i32,
    /// Features of a head.
    pub head_dim: i32,
    /// Scores are multiplied by this.
    pub scale: f32,
    /// Soft cap of scores.
    pub softcap: Option<f32>,
    /// Bias on q, k and v.
    pub qkv_bias: bool,
    /// Bias on the output.
    pub out_bias: bool,
    /// Norms on q and k.
    pub qk_norm: Option<QkNorm>,
    /// q, k and v are clipped to `-clip ..= clip`.
    pub qkv_clip: Option<f32>,
    /// Queries are scaled by a function of their position.
    pub query_growth: Option<Growth>,
    /// The factor of the bias of ALiBi, in a decoder with ALiBi.
    pub alibi: Option<f32>,
    /// Sinks: one learned score for each query head, which takes part in the softmax and adds no
    /// value.
    pub sinks: bool,
    /// Layers with a window attend within fixed chunks of this many positions.
    pub chunk: Option<usize>,
    /// A gate on the output, which `q_proj` computes with the queries.
    pub output_gate: bool,
    /// A gate on the output with a projection of its own.
    pub gate: Option<HeadGate>,
    /// Features of a head of v, if they are not those of q and k.
    pub value_dim: Option<i32>,
    /// Values are multiplied by this.
    pub value_scale: Option<f32>,
    /// Queries see only the blocks of positions that a small attention chooses.
    pub blocks: Option<BlockChoice>,
    /// Queries see only the blocks of positions that a pattern gives their heads.
    pub pattern: Option<BlockPattern>,
    /// Keys and values are mixed with those of the token before.
    pub kv_taps: bool,
    /// Latent attention, over compressed keys and values, in place of attention over heads.
    pub latent: Option<LatentConfig>,
    /// For each layer, whether its queries see the positions that an earlier layer's indexer chose. Empty if no layer
    /// does.
    pub shares_index: Vec<bool>,
}

impl AttentionPlan {
    /// Attention over heads whose scores are divided by the root of the head size. It has no
    /// optional parts.
    pub fn plain(heads: i32, kv_heads: i32, head_dim: i32) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
            softcap: None,
            qkv_bias: false,
            out_bias: false,
            qk_norm: None,
            qkv_clip: None,
            query_growth: None,
            alibi: None,
            sinks: false,
            chunk: None,
            output_gate: false,
            gate: None,
            value_dim: None,
            value_scale: None,
            blocks: None,
            pattern: None,
            kv_taps: false,
            latent: None,
            shares_index: Vec::new(),
        }
    }
}

/// The norms of a decoder, except those on q and k.
#[derive(Clone, Copy, Debug)]
pub struct NormPlan {
    /// The formula.
    pub kind: NormKind,
    /// Epsilon.
    pub eps: f32,
    /// The epsilon of the norms before the output projections of attention and gated MLP, if the
    /// decoder has such norms.
    pub before_outputs: Option<f32>,
    /// The epsilon of the norms after attention and MLP, if it is not that of the others.
    pub after: Option<f32>,
    /// The numbers that are added to the weights of the norms after attention and after MLP, which are RMS norms, if
    /// they are not those of the others.
    pub after_offsets: Option<[f32; 2]>,
}

impl NormPlan {
    /// Norms of the mean square around attention and MLP.
    pub fn rms(eps: f32) -> Self {
        Self {
            kind: NormKind::Rms(0.0),
            eps,
            before_outputs: None,
            after: None,
            after_offsets: None,
        }
    }

    /// A norm over a token's features.
    pub fn config(&self) -> NormConfig {
        NormConfig {
            kind: self.kind,
            eps: self.eps,
        }
    }
}

/// The factors of a decoder. An absent factor is 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScalePlan {
    /// Embeddings are multiplied by this.
    pub embedding: Option<f32>,
    /// The outputs of attention and MLP are multiplied by this before they are added to the residual.
    pub residual: Option<f32>,
    /// Logits are multiplied by this.
    pub logits: Option<f32>,
    /// Soft cap of logits.
    pub logit_softcap: Option<f32>,
}

/// The output head of a decoder.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadPlan {
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Whether the head has a bias, if it is not the embedding.
    pub bias: bool,
}

/// Everything that distinguishes one decoder from another of the same order of operations.
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Rows of the embedding.
    pub vocab: i32,
    /// The context length in tokens, if the config has one.
    pub max_positions: Option<usize>,
    /// The state of each layer. Recurrent layers compute `recurrence`, the others attend.
    pub layers: Vec<LayerKind>,
    /// The rope of each layer, if the layer has one.
    pub ropes: Vec<Option<RopeConfig>>,
    /// The attention of the layers that attend.
    pub attention: AttentionPlan,
    /// The attention of each layer, if they differ. Empty if all have `attention`.
    pub attentions: Vec<AttentionPlan>,
    /// The recurrence of recurrent layers.
    pub recurrence: Option<RecurrenceConfig>,
    /// The feed-forward half of each layer.
    pub feed_forward: Vec<MlpConfig>,
    /// The norms, except those on q and k.
    pub norm: NormPlan,
    /// The factors.
    pub scales: ScalePlan,
    /// The output head.
    pub head: HeadPlan,
}
