//! Neural network layers, quantised linears and caches on MLX.
//!
//! Layers are plain structs whose fields are named as checkpoints name them; what works on their
//! parameters is a visitor (see [`Module`]). What a model remembers is a [`ModelCache`], and a
//! forward pass is a [`Step`]: a transaction over rows that each have their own length.
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

#![forbid(unsafe_code)]

mod attend;

pub mod activation;
pub mod attention;
pub mod cache;
pub mod checkpoint;
pub mod embedding;
pub mod experts;
pub mod head;
pub mod init;
pub mod linear;
pub mod lora;
pub mod loss;
pub mod mask;
pub mod mlp;
pub mod module;
pub mod norm;
pub mod quantize;
pub mod rope;
pub mod step;
pub mod trainable;
pub mod weight;

pub use activation::Activation;
pub use attention::{Attention, AttentionConfig};
pub use cache::{
    CacheOptions, KvShape, LayerKind, ModelCache, RecurrentShape, RowPart, StateCost, StatePart,
};
pub use checkpoint::{Checkpoint, FillOptions, Rename, fill};
pub use embedding::Embedding;
pub use experts::{ExpertsConfig, ExpertsLinear, ExpertsMlp};
pub use head::{Head, HeadMatrix};
pub use init::Initial;
pub use linear::Linear;
pub use lora::{Adaptable, Layout, Lora, LoraConfig};
pub use mlp::{FeedForward, GatedMlp};
pub use module::{Module, Param, Path, Visit, VisitMut};
pub use norm::{LayerNorm, RmsNorm};
pub use rope::{Rope, RopeConfig, RopeScaling};
pub use step::{Attend, Keys, StateAfter, Step};
pub use trainable::Patterns;
pub use weight::Weight;
