//! Training of language models on MLX: the library and the `mlx-train` command.
//!
//! | concept | type | what it does |
//! |---|---|---|
//! | example | [`Example`] | token ids of a document, and which of them the loss counts |
//! | data set | [`data`] | JSON lines, through the chat template and tokenizer, to examples |
//! | order | [`feed`] | examples to batches, shuffled by a seed |
//! | batch | [`Batch`] | rows of examples as arrays, padded or packed |
//! | loss | [`loss`] | cross entropy of a batch, the vocabulary whole or in slices |
//! | gradients | [`value_and_grad`] | derivatives of a loss by every trainable parameter |
//! | optimiser | [`Optimizer`], [`Method`] | gradients to new parameters, with moments in F32 |
//! | learning rate | [`Schedule`] | the rate of each step |
//! | run | [`Trainer`], [`TrainerConfig`] | steps, evaluations, checkpoints, resumption; on one process, or on several that share the batches |
//! | checkpoint | [`checkpoint`] | a run's state on disk |
//! | evaluation | [`evaluate`](mod@evaluate) | loss, perplexity, accuracy |
//! | few bits | [`quantize`] | trained scales, bits by sensitivity |
//!
//! The feature `cli`, on by default, is the command. It brings the command-line parts of `mlx-infer` too.
//!
//! Gradients are taken with respect to the trainable parameters of any [`Module`](mlx_nn::Module):
//!
//! ```
//! use mlx_core::{Array, Result};
//! use mlx_nn::{Linear, Module, Param, Path, VisitMut, loss, trainable::set_trainable};
//! use mlx_train::{Method, Optimizer, Schedule, optim::Adam, value_and_grad};
//!
//! struct Fill(f32);
//! impl VisitMut for Fill {
//!     fn param(&mut self, _path: &Path, param: &mut Param) -> Result<()> {
//!         param.set(mlx_core::ops::create::full(param.shape(), self.0, mlx_core::DType::F32)?);
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! // y = 2 a - b, from four examples.
//! let x = Array::from_slice(&[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, -1.0], &[4, 2])?;
//! let y = Array::from_slice(&[2.0f32, -1.0, 1.0, 5.0], &[4, 1])?;
//! let mut model = Linear::empty(2, 1, false)?;
//! model.visit_mut(&mut Path::default(), &mut Fill(0.0))?;
//! set_trainable(&mut model, |_| true)?;
//! let mut optimizer =
//!     Optimizer::new(Method::AdamW(Adam::default()), Schedule::Constant { rate: 0.1 })?;
//! let mut last = f32::INFINITY;
//! for _ in 0..200 {
//!     let (values, grads) =
//!         value_and_grad(&mut model, |model| Ok(vec![loss::mse(&model.forward(&x)?, &y)?]))?;
//!     optimizer.update(&mut model, &grads)?;
//!     last = values[0].item()?;
//! }
//! assert!(last < 1e-3, "{last}");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod batch;
pub mod checkpoint;
pub mod curve;
pub mod data;
mod error;
pub mod evaluate;
pub mod export;
pub mod feed;
pub mod loss;
pub mod quantize;
mod ranks;
pub mod recompute;
pub mod trainer;

#[doc(no_inline)]
pub use {mlx_core, mlx_infer, mlx_models, mlx_nn};

pub use batch::{Batch, Example};
pub use error::{Error, ErrorKind, Result};
pub use mlx_nn::{Gradients, Method, Optimizer, Schedule, value_and_grad};
/// Optimisers, schedules, gradients and their clipping are those of [`mlx_nn`].
pub use mlx_nn::{clip, grad, optim, schedule};
pub use trainer::{Trainer, TrainerConfig};
