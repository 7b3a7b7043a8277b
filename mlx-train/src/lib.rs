//! Training of language models on MLX: the library and the `mlx-train` command.

#![forbid(unsafe_code)]

pub mod batch;
pub mod clip;
pub mod grad;
pub mod loss;
pub mod optim;
pub mod schedule;

pub use batch::{Batch, Example};
pub use grad::{Gradients, value_and_grad};
pub use optim::{Method, Optimizer};
pub use schedule::Schedule;
