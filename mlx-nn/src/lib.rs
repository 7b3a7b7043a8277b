//! Neural network layers, quantised linears, LoRA and caches on [`mlx_core`].
//!
//! A layer is a plain struct with the checkpoint's names as field names. Operations on parameters
//! (loading, quantising, casting, counting, LoRA, freezing) are visitors outside the layers. A
//! [`ModelCache`] holds the state between the steps of a generation. What training changes in a
//! layer besides parameters, such as the statistics of a batch norm, is a buffer, which
//! [`value_and_grad`] writes.
//!
//! | to | see |
//! |---|---|
//! | define a layer and name its parameters | [`derive@Module`], [`module!`], [`Param`] |
//! | count, freeze, cast, save and load parameters | [`trait@Module`] |
//! | train or evaluate, and change buffers | [`training`], [`Mode`], [`update_state`] |
//! | multiply by a dense or quantised matrix, with or without LoRA | [`Linear`], [`Weight`], [`Lora`] |
//! | route tokens to experts | [`ExpertsMlp`], [`ExpertsLinear`] |
//! | carry the sum that layers add to, and norm it with the next projections | [`Residual`], [`Normed`] |
//! | convolve, pool, resize | [`Conv2d`] and [others](convolution), [`pooling`], [`Upsample`] |
//! | normalise by batches, groups, examples | [`BatchNorm`], [`GroupNorm`], [`InstanceNorm`] |
//! | drop numbers in training | [`Dropout`], [`Dropout2d`], [`Dropout3d`] |
//! | run over sequences, encode and decode them | [`Rnn`], [`Gru`], [`Lstm`], [`Transformer`], [`MultiHeadAttention`] |
//! | chain layers | [`Sequential`], [`Layer`] |
//! | normalise, embed, rotate, activate | [`RmsNorm`], [`LayerNorm`], [`Embedding`], [`Rope`], [`Activation`] |
//! | attend | [`Attention`], [`Step::attend`] |
//! | mix tokens by a recurrence | [`Recurrence`]: [`GatedDeltaNet`], [`Mamba`], [`ProjectedScan`], [`SelectiveScan`], [`ShortConv`] |
//! | turn features into logits | [`Head`] |
//! | load a checkpoint, with a report of all that does not fit | [`fill_lazily`], [`Checkpoint`] |
//! | map published tensors to parameters: rename, transpose, split, join, stack | [`Rule`], [`Rules`] |
//! | quantise a model, or attach adapters to it | [`mod@quantize`], [`lora`] |
//! | see what matrices are multiplied by | [`observe`] |
//! | choose what is trained | [`trainable`], [`Patterns`] |
//! | keep the state of several rows | [`ModelCache`], [`CacheOptions`] |
//! | describe the state that a layer keeps, and its bytes | [`LayerKind`], [`RecurrentShape`], [`StateCost`] |
//! | run a forward pass, and keep some of its tokens | [`ModelCache::begin`], [`Step`], [`Step::commit`] |
//! | write a recurrent layer | [`Step::window`], [`Step::state`], [`StateAfter`] |
//! | differentiate a loss by the trainable parameters | [`value_and_grad`] |
//! | change parameters by their gradients | [`AdamW`] and [others](optim), [`MultiOptimizer`], [`Schedule`], [`clip`](mod@clip) |
//! | compute a loss, also without the logits of all tokens | [`loss`] |
//! | draw initial values | [`Initializer`], [`init`] |
//!
//! Axes in the documentation: `B` rows, `L` new tokens of a step, `S` stored tokens, `H` query heads, `K` key and
//! value heads, `D` features of a head, `E` features of a token, `V` vocabulary.
//!
//! # A model, trained
//!
//! ```
//! use mlx_nn::mlx_core::{Array, Result, random};
//! use mlx_nn::{AdamW, Linear, Module, loss, value_and_grad};
//!
//! #[derive(Module)]
//! struct Mlp { l1: Linear, l2: Linear }
//!
//! impl Mlp {
//!     fn forward(&self, x: &Array) -> Result<Array> {
//!         self.l2.forward(&self.l1.forward(x)?.tanh()?)
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("mlp.safetensors");
//! random::seed(0);
//! let x = Array::from_slice(&[0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], &[4, 2])?;
//! let labels = Array::from_slice(&[0i32, 1, 1, 0], &[4])?;
//! let mut model = Mlp { l1: Linear::new(2, 16, true)?, l2: Linear::new(16, 2, true)? };
//! let mut optimizer = AdamW::new(0.02).weight_decay(0.01);
//! let mut last = f32::INFINITY;
//! for _ in 0..200 {
//!     let (loss, grads) = value_and_grad(&mut model, |model| {
//!         loss::cross_entropy(&model.forward(&x)?, &labels)?.mean(.., false)
//!     })?;
//!     optimizer.update(&mut model, &grads)?;
//!     last = loss.item()?;
//! }
//! assert!(last < 0.05, "{last}");
//! model.save(&path)?;
//! # Ok(())
//! # }
//! ```
//!
//! # A layer, initialised by a visitor
//!
//! ```
//! use mlx_core::{Array, DType, Result, random};
//! use mlx_nn::{Activation, GatedMlp, Module, Param, Path, RmsNorm, VisitMut, module};
//!
//! struct Block { norm: RmsNorm, mlp: GatedMlp }
//! module!(Block { norm, mlp }); // names the children once: `norm.weight`, `mlp.up_proj.weight`, …
//!
//! /// An initialiser is a visitor, as loading, quantising and counting are.
//! struct Init(random::Key);
//! impl VisitMut for Init {
//!     fn param(&mut self, _path: &Path, param: &mut Param) -> Result<()> {
//!         let [now, later] = self.0.split()?;
//!         self.0 = later;
//!         param.set(random::normal_with(&now, param.shape(), DType::F32, 0.0, 0.02)?);
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! let mut block = Block {
//!     norm: RmsNorm::with_offset(8, 1e-6, 1.0)?,
//!     mlp: GatedMlp::empty(8, 32, false, Activation::Silu)?,
//! };
//! block.visit_mut(&mut Path::default(), &mut Init(random::Key::new(7)?))?;
//! let x = Array::from_slice(&[1.0f32; 16], &[2, 8])?;
//! let y = block.mlp.forward(&block.norm.forward(&x)?)?;
//! assert_eq!(y.shape(), [2, 8]);
//! # Ok(())
//! # }
//! ```
//!
//! # A forward pass is a transaction
//!
//! ```
//! use mlx_core::{Array, DType, Result, ops::create::ones};
//! use mlx_nn::{Attend, CacheOptions, LayerKind, ModelCache};
//!
//! # fn main() -> Result<()> {
//! // Two rows of a model with one layer.
//! let mut cache = ModelCache::new(&[LayerKind::Full], 2, CacheOptions::default());
//! // Row 0 brings three tokens, row 1 one: four tokens on one axis.
//! let mut step = cache.begin(&[3, 1])?;
//! let qkv = ones(&[1, 4, 4, 32], DType::F32)?; // [1, H, T, D]
//! let options = Attend { scale: 0.2, softcap: None, sinks: None, alibi: None };
//! let y = step.attend(0, &qkv, &qkv, &qkv, &options)?;
//! assert_eq!(y.shape(), [1, 4, 4, 32]);
//! // Row 0 keeps two of its tokens: the third was a draft that is rejected.
//! step.commit(&[2, 1])?;
//! assert_eq!(cache.lens(), [2, 1]);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

// `#[derive(Module)]` generates paths that begin with `mlx_nn`.
extern crate self as mlx_nn;

/// The programs of a guide, as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/mlx-in-rust.md")]
mod guide {}

mod attend;

pub mod activation;
pub mod attention;
pub mod bilinear;
pub mod cache;
pub mod checkpoint;
mod choice;
pub mod clip;
pub mod compressed;
pub mod conv;
pub mod convolution;
mod decay;
pub mod delta;
pub mod delta_channels;
pub mod dropout;
pub mod embedding;
pub mod experts;
pub mod fused;
pub mod grad;
pub mod head;
pub mod init;
pub mod latent;
pub mod layer;
pub mod lightning;
pub mod linear;
mod lines;
pub mod lora;
pub mod loss;
pub mod mamba;
pub mod mask;
pub mod mlp;
pub mod module;
pub mod names;
pub mod norm;
pub mod normed;
pub mod observe;
pub mod optim;
pub mod pooling;
mod projected_scan;
pub mod python;
pub mod qq_linear;
pub mod quantize;
pub mod recompute;
pub mod recurrence;
pub mod residual;
pub mod rnn;
pub mod rope;
mod rounding;
pub mod rwkv;
pub mod schedule;
pub mod selective;
pub mod shard;
pub mod short_conv;
pub mod sinusoidal;
mod sizes;
pub mod step;
pub mod streams;
pub mod trainable;
pub mod training;
pub mod transformer;
pub mod upsample;
pub mod weight;

// Activations as layers, by the names that they have in Python: `Sequential::new().add(Relu)`.
#[doc(no_inline)]
pub use activation::Activation::{
    Celu, Elu, Gelu, Glu, HardShrink, HardTanh, Hardswish, LeakyRelu, LogSigmoid, LogSoftmax, Mish,
    Relu, Relu6, Selu, Sigmoid, Silu, Softmax, Softmin, Softplus, Softshrink, Softsign, Tanh,
};
pub use activation::{
    Activation, PRelu, Xielu, celu, elu, gelu_approx, gelu_fast_approx, glu, hard_shrink,
    hard_tanh, hardswish, leaky_relu, log_sigmoid, log_softmax, mish, prelu, relu2, relu6, selu,
    softmin, softplus, softshrink, softsign,
};
pub use attention::{
    Alibi, Attention, AttentionConfig, BlockChoice, BlockIndexConfig, BlockPattern, GateFunction,
    Growth, HeadGate, KvSource, QkKind, QkNorm, QkPlace, kv_taps_kind, merge_heads, split_heads,
};
pub use bilinear::Bilinear;
pub use cache::{
    CacheOptions, KvShape, LayerKind, ModelCache, PAGE, PageUse, PrefixPage, PrefixStates,
    RecurrentShape, RowPart, StateCost, StatePart, WholePages,
};
pub use checkpoint::{Checkpoint, Decoded, FillOptions, Made, Make, fill_lazily};
pub use clip::clip_grad_norm;
pub use compressed::{
    BlocksConfig, BlocksIndex, Candidates, CompressedAttention, CompressedConfig, SourcedBlocks,
    SourcedIndex,
};
pub use conv::{CausalConv, JointConv};
pub use convolution::{
    Conv1d, Conv2d, Conv3d, ConvNd, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
    ConvTransposeNd,
};
pub use delta::{DeltaConfig, GatedDeltaNet};
pub use delta_channels::{ChannelDelta, ChannelDeltaConfig};
pub use dropout::{Dropout, Dropout2d, Dropout3d, DropoutNd};
pub use embedding::Embedding;
pub use experts::{
    ClampedGate, Correction, ExpertsConfig, ExpertsLinear, ExpertsMlp, GroupScore, Groups, Routing,
    Scoring, SharedExpert, StackedExperts, UngatedExperts,
};
pub use fused::{FusedAttention, FusedMlp};
pub use grad::{Gradients, Outputs, value_and_grad};
pub use head::{Head, HeadMatrix};
pub use init::{Initial, Initializer};
pub use latent::{IndexConfig, LatentAttention, LatentConfig};
pub use layer::{Identity, IntoLayer, Layer, Sequential};
pub use lightning::{Lightning, LightningConfig};
pub use linear::Linear;
pub use lora::{Adaptable, AdaptableLayer, AdapterSlot, Layout, Lora, LoraConfig};
pub use mamba::{Mamba, MambaConfig, MambaNorm};
pub use mlp::{FeedForward, GatedMlp, PlainMlp};
// Python's name of the module.
#[doc(no_inline)]
pub use loss as losses;
pub use mlx_core;
// The same functions as in the other crate, so that both can be imported with `*`.
#[doc(no_inline)]
pub use mlx_core::{gelu, relu, sigmoid, silu, softmax, tanh};
pub use mlx_nn_derive::Module;
pub use module::{Module, Param, Parameters, Path, Visit, VisitMut};
pub use names::{Piece, Rule, Rules, TernaryForm, ternary_scheme};
pub use norm::{
    BatchNorm, GroupNorm, InstanceNorm, LayerNorm, Norm, NormByHead, NormConfig, NormKind, RmsNorm,
};
pub use normed::{Input, Normed};
pub use optim::{
    AdaDelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Lion, Method, MultiOptimizer, Muon,
    Optimizer, RmsProp, Sgd,
};
pub use pooling::{AvgPool1d, AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d, Pool};
pub use projected_scan::{ProjectedScan, ProjectedScanConfig};
pub use qq_linear::QqLinear;
pub use recurrence::{Recurrence, RecurrenceConfig};
pub use residual::Residual;
pub use rnn::{Gru, Lstm, Rnn};
pub use rope::{Rope, RopeConfig, RopeScaling};
pub use rounding::{ROUNDED_BLOCK, eight_bits as rounded_to_eight_bits};
pub use rwkv::{ChannelMix, Rwkv7, Rwkv7Config};
pub use schedule::{
    Schedule, cosine_decay, exponential_decay, join_schedules, linear_schedule, step_decay,
};
pub use selective::{SelectiveConfig, SelectiveNorms, SelectiveScan};
pub use short_conv::{ShortConv, ShortConvConfig};
pub use sinusoidal::SinusoidalPositionalEncoding;
pub use sizes::Sizes;
pub use step::{
    Attend, KeptVectors, Keys, RepeatedStep, StateAfter, Step, StepGraph, Taps, last_features,
};
pub use streams::{GatedStreams, StreamMixer, StreamWeights, StreamsConfig, StreamsHead};
pub use trainable::Patterns;
pub use training::{Mode, update_state, with_state};
pub use transformer::{
    MultiHeadAttention, MultiHeadConfig, Transformer, TransformerConfig, TransformerDecoder,
    TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer,
};
pub use upsample::{Interpolation, Upsample};
pub use weight::Weight;
