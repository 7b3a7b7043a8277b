//! User kernels as operations of the lazy graph.
//!
//! - [`CpuKernel`]: a Rust type that computes outputs from typed slices.
//! - [`MetalKernel`], [`CudaKernel`]: source text that the back end compiles. [`precompiled_cuda_kernel`] runs a kernel
//!   that is compiled already.
//!
//! ```
//! use mlx_core::{Array, Result, array, kernel::{self, CpuKernel, Spec, View, ViewMut}};
//!
//! # fn main() -> mlx_core::Result<()> {
//! struct Double;
//!
//! impl CpuKernel for Double {
//!     fn name(&self) -> &'static str {
//!         "double"
//!     }
//!     fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
//!         Ok(vec![inputs[0].clone()])
//!     }
//!     fn eval(&self, inputs: &[View], outputs: &mut [ViewMut]) -> Result<(), String> {
//!         let x = inputs[0].as_slice::<f32>()?;
//!         let y = outputs[0].as_mut_slice::<f32>()?;
//!         y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
//!         Ok(())
//!     }
//! }
//!
//! let x: Array = array![1.0f32, 2.0];
//! assert_eq!(kernel::apply(Double, &[&x])?[0].to_vec::<f32>()?, [2.0, 4.0]);
//! # Ok(())
//! # }
//! ```

mod callbacks;
mod cpu;
mod cuda;
mod launch;
mod metal;
mod precompiled;
mod view;

pub use cpu::{CpuKernel, apply, apply_shared, live};
pub use cuda::CudaKernel;
pub use launch::{LaunchConfig, TemplateArg};
pub use metal::{MetalKernel, start_capture, stop_capture};
pub use precompiled::{ScalarArg, precompiled_cuda_kernel};
pub use view::{Spec, View, ViewMut};
