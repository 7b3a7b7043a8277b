//! Safe, lazy MLX arrays for Rust.
//!
//! ```
//! use mlx_core::{Array, Result};
//!
//! # fn main() -> Result<()> {
//! let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
//! let y = x.matmul(&x)?.add(0.5)?; // builds a graph
//! assert_eq!(y.to_vec::<f32>()?, [7.5, 10.5, 15.5, 22.5]); // reading evaluates it
//! # Ok(())
//! # }
//! ```
//!
//! - **Lazy.** Operations build a graph; [`eval()`], [`async_eval`] and reading run it.
//! - **One thread.** MLX's streams belong to threads, so [`Array`] is neither `Send` nor `Sync`.
//! - **Errors, not aborts.** Every operation returns [`Result`]; a panic or error in a Rust closure
//!   that MLX calls comes back as a panic or error after the call.

mod array;
mod dtype;
mod error;
mod ffi;
mod poison;

pub mod device;
pub mod eval;
pub mod fast;
pub mod fft;
pub mod files;
mod frozen;
pub mod inplace;
pub mod kernel;
pub mod linalg;
pub mod memory;
pub mod ops;
pub mod profile;
pub mod random;
pub mod safetensors;
pub mod settings;
pub mod stream;
pub mod transforms;

pub use self::safetensors::Safetensors;
pub use array::Array;
pub use dtype::{Complex64, DType, Element};
pub use error::{Error, ErrorKind, Result};
pub use eval::{async_eval, eval, graph_size, synchronize};
pub use frozen::Frozen;
pub use ops::*;
pub use stream::{Device, DeviceKind, Stream};
