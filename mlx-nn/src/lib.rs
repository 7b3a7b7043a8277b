//! Neural network layers, quantised linears and caches on MLX.
//!
//! Layers are plain structs whose fields are named as checkpoints name them; what works on their
//! parameters is a visitor (see [`Module`]). What a model remembers is a [`ModelCache`], and a
//! forward pass is a [`Step`]: a transaction over rows that each have their own length.

#![forbid(unsafe_code)]

mod attend;

pub mod activation;
pub mod attention;
pub mod cache;
pub mod checkpoint;
pub mod embedding;
pub mod experts;
pub mod linear;
pub mod lora;
pub mod loss;
pub mod mask;
pub mod mlp;
pub mod module;
pub mod norm;
pub mod rope;
pub mod step;
pub mod weight;

pub use activation::Activation;
pub use attention::{Attention, AttentionConfig};
pub use cache::{CacheOptions, LayerKind, ModelCache};
pub use checkpoint::{Checkpoint, FillOptions, Rename, fill};
pub use embedding::Embedding;
pub use experts::{ExpertsConfig, ExpertsMlp};
pub use linear::Linear;
pub use lora::Lora;
pub use mlp::{FeedForward, GatedMlp};
pub use module::{Module, Param, Path, Visit, VisitMut};
pub use norm::{LayerNorm, RmsNorm};
pub use rope::{Rope, RopeConfig, RopeScaling};
pub use step::{Attend, Step};
pub use weight::Weight;
