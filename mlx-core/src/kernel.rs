//! User kernels as operations of the lazy graph.
//!
//! - [`CpuKernel`]: a Rust type that computes outputs from typed slices.
//! - [`MetalKernel`], [`CudaKernel`]: source text that the back end compiles.

mod callbacks;
mod cpu;
mod cuda;
mod launch;
mod metal;
mod view;

pub use cpu::{CpuKernel, apply, apply_shared, live};
pub use cuda::CudaKernel;
pub use launch::{LaunchConfig, TemplateArg};
pub use metal::MetalKernel;
pub use view::{Spec, View, ViewMut};
