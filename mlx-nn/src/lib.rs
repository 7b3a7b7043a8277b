//! Neural network layers, quantised linears, LoRA and caches on [`mlx_core`].
//!
//! A layer is a plain struct with the checkpoint's names as field names. Operations on parameters (loading, quantising,
//! casting, counting, LoRA, freezing) are visitors outside the layers. The state between forward passes is in a
//! [`ModelCache`]; layers hold no state.
//!
//! | to | see |
//! |---|---|
//! | define a layer and name its parameters | [`module!`], [`Module`], [`Param`] |
//! | multiply by a dense or quantised matrix, with or without LoRA | [`Linear`], [`Weight`], [`Lora`] |
//! | route tokens to experts | [`ExpertsMlp`], [`ExpertsLinear`] |
//! | carry the sum that layers add to, and norm it with the next projections | [`Residual`], [`Normed`] |
//! | normalise, embed, rotate, activate | [`RmsNorm`], [`LayerNorm`], [`Embedding`], [`Rope`], [`Activation`] |
//! | attend | [`Attention`], [`Step::attend`] |
//! | mix tokens by a recurrence | [`Recurrence`]: [`GatedDeltaNet`], [`Mamba`], [`ShortConv`] |
//! | turn features into logits | [`Head`] |
//! | load a checkpoint, with a report of all that does not fit | [`fill_lazily`], [`Checkpoint`] |
//! | map published tensors to parameters: rename, transpose, split, join, stack | [`Rule`], [`Rules`] |
//! | quantise a model, or attach adapters to it | [`mod@quantize`], [`lora`] |
//! | choose what is trained | [`trainable`], [`Patterns`] |
//! | keep the state of several rows | [`ModelCache`], [`CacheOptions`] |
//! | say what a layer keeps, and what that costs | [`LayerKind`], [`RecurrentShape`], [`StateCost`] |
//! | run a forward pass, and keep some of its tokens | [`ModelCache::begin`], [`Step`], [`Step::commit`] |
//! | write a recurrent layer | [`Step::window`], [`Step::state`], [`StateAfter`] |
//! | compute a loss without the logits of all tokens | [`loss`] |
//!
//! Axes in the documentation: `B` rows, `L` new tokens of a step, `S` stored tokens, `H` query heads, `K` key and
//! value heads, `D` features of a head, `E` features of a token, `V` vocabulary.
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
//!         let [now, later] = self.0.split_pair()?;
//!         self.0 = later;
//!         param.set(random::normal(&now, param.shape(), DType::F32, 0.0, 0.02)?);
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! let mut block = Block {
//!     norm: RmsNorm::with_offset(8, 1e-6, 1.0)?,
//!     mlp: GatedMlp::new(8, 32, false, Activation::Silu)?,
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
//! // Row 0 brings three tokens, row 1 one; its other two places are padding.
//! let mut step = cache.begin(&[3, 1])?;
//! let qkv = ones(&[2, 4, 3, 32], DType::F32)?; // [B, H, L, D]
//! let options = Attend { scale: 0.2, softcap: None, sinks: None, alibi: None };
//! let y = step.attend(0, &qkv, &qkv, &qkv, &options)?;
//! assert_eq!(y.shape(), [2, 4, 3, 32]);
//! // Row 0 keeps two of its tokens: the third was a draft that is rejected.
//! step.commit(&[2, 1])?;
//! assert_eq!(cache.lens(), [2, 1]);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod attend;

pub mod activation;
pub mod attention;
pub mod cache;
pub mod checkpoint;
pub mod conv;
mod decay;
pub mod delta;
pub mod delta_channels;
pub mod embedding;
pub mod experts;
pub mod head;
pub mod init;
pub mod latent;
pub mod lightning;
pub mod linear;
pub mod lora;
pub mod loss;
pub mod mamba;
pub mod mask;
pub mod mlp;
pub mod module;
pub mod names;
pub mod norm;
pub mod normed;
pub mod quantize;
pub mod recurrence;
pub mod residual;
pub mod rope;
pub mod short_conv;
pub mod step;
pub mod trainable;
pub mod weight;

pub use activation::{Activation, Xielu};
pub use attention::{Alibi, Attention, AttentionConfig, Growth, KvSource, QkKind, QkNorm, QkPlace};
pub use cache::{
    CacheOptions, KvShape, LayerKind, ModelCache, RecurrentShape, RowPart, StateCost, StatePart,
};
pub use checkpoint::{Checkpoint, Decoded, FillOptions, Made, Make, fill_lazily};
pub use conv::{CausalConv, JointConv};
pub use delta::{DeltaConfig, GatedDeltaNet};
pub use delta_channels::{ChannelDelta, ChannelDeltaConfig};
pub use embedding::Embedding;
pub use experts::{
    ClampedGate, Correction, ExpertsConfig, ExpertsLinear, ExpertsMlp, GroupScore, Groups, Routing,
    Scoring, SharedExpert, StackedExperts, UngatedExperts,
};
pub use head::{Head, HeadMatrix};
pub use init::Initial;
pub use latent::{IndexConfig, LatentAttention, LatentConfig};
pub use lightning::{Lightning, LightningConfig};
pub use linear::Linear;
pub use lora::{Adaptable, Layout, Lora, LoraConfig};
pub use mamba::{GroupNorm, Mamba, MambaConfig};
pub use mlp::{FeedForward, GatedMlp, PlainMlp};
pub use module::{Module, Param, Path, Visit, VisitMut};
pub use names::{Piece, Rule, Rules, TernaryForm, ternary_scheme};
pub use norm::{LayerNorm, LayerNormByHead, Norm, NormConfig, NormKind, RmsNorm};
pub use normed::{Input, Normed};
pub use recurrence::{Recurrence, RecurrenceConfig};
pub use residual::Residual;
pub use rope::{Rope, RopeConfig, RopeScaling};
pub use short_conv::{ShortConv, ShortConvConfig};
pub use step::{Attend, Keys, RepeatedStep, Rerun, StateAfter, Step, last_features};
pub use trainable::Patterns;
pub use weight::Weight;
