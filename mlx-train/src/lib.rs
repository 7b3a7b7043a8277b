//! Training of language models on MLX: the library and the `mlx-train` command.

#![forbid(unsafe_code)]

pub mod batch;
pub mod checkpoint;
pub mod clip;
pub mod curve;
pub mod data;
mod error;
pub mod evaluate;
pub mod export;
pub mod feed;
pub mod grad;
pub mod loss;
pub mod optim;
pub mod recompute;
pub mod schedule;
pub mod trainer;

pub use batch::{Batch, Example};
pub use error::{Error, ErrorKind, Result};
pub use grad::{Gradients, value_and_grad};
pub use optim::{Method, Optimizer};
pub use schedule::Schedule;
pub use trainer::{Trainer, TrainerConfig};
