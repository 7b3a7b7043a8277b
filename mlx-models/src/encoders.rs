//! Encoders: models whose tokens see those before and after them. They turn texts into features,
//! and generate none.
//!
//! [`EncoderModel`] is the only one. An [`EncoderPlan`] says what distinguishes one family from
//! another: embeddings of positions and types, ropes, windows, norms, the MLP. A family is a file
//! that turns a config into a plan, and a table of names. [`SentenceModules`] are what
//! sentence-transformers puts after an encoder.
//!
//! ```
//! use mlx_models::{Model, Texts};
//! use serde_json::json;
//!
//! # fn main() -> mlx_core::Result<()> {
//! let config = json!({
//!     "model_type": "bert", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
//!     "num_attention_heads": 2, "vocab_size": 40, "max_position_embeddings": 16
//! });
//! let model = mlx_models::initialised("example", config, 7)?.model;
//! let encoder = model.encoder().expect("BERT is an encoder");
//! let texts = Texts::new(&[&[2u32, 9, 3], &[2, 3]])?;
//! assert_eq!(encoder.encode(&texts)?.shape(), [5, 32]);
//! # Ok(())
//! # }
//! ```

pub(crate) mod bert;
pub(crate) mod gte;
pub(crate) mod modernbert;
pub(crate) mod nomic_bert;

mod layer;
mod model;
mod plan;
mod sentence;

pub use layer::EncoderLayer;
pub use model::EncoderModel;
pub use plan::{EncoderPlan, HeadShape, LayerPlan, NormPlaces};
pub use sentence::{PoolingMode, SentenceModules};

use crate::config::Config;

/// Whether positions begin after the id of padding, as in RoBERTa.
fn is_roberta(c: &Config) -> mlx_core::Result<bool> {
    let name: String = c.or("model_type", String::new())?;
    Ok(name != "bert")
}
