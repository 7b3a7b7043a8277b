//! User kernels as operations of the lazy graph.
//!
//! - [`CpuKernel`]: a Rust type that computes outputs from typed slices.
//! - [`MetalKernel`], [`CudaKernel`]: source text that the back end compiles. Kernels that are compiled already
//!   (Python's `precompiled_cuda_kernel`) cannot be run: mlx-c does not bind them.

mod callbacks;
mod cpu;
mod cuda;
mod launch;
mod metal;
mod view;

pub use cpu::{CpuKernel, apply, apply_shared, live};
pub use cuda::CudaKernel;
pub use launch::{LaunchConfig, TemplateArg};
pub use metal::{MetalKernel, start_capture, stop_capture};
pub use view::{Spec, View, ViewMut};
