//! Safe, lazy MLX arrays for Rust: the crate that the others of this workspace compute with.
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
//! - **One thread.** MLX's streams belong to threads, so [`Array`] is neither `Send` nor `Sync`. A [`Frozen`] array can cross threads.
//! - **Errors, not aborts.** Every operation returns [`Result`]. Indices are checked when they are used, a failed allocation is an
//!   error, and a panic or error in a Rust closure that MLX calls comes back as a panic or error after the call.
//!
//! # From MLX and NumPy
//!
//! | Python | here |
//! |---|---|
//! | `mx.array([1.0, 2.0])` | [`Array::from_slice`], [`Array::scalar`] |
//! | `np.asarray(a)`, `a.tolist()`, `a.item()` | [`Array::to_vec`], [`Array::item`] |
//! | `a.shape`, `a.dtype`, `mx.bfloat16` | [`Array::shape`], [`Array::dtype`], [`DType::BF16`] |
//! | `mx.zeros`, `mx.arange`, `mx.linspace` | [`zeros`], [`arange`], [`linspace`] |
//! | `a + b`, `a + 1`, `a @ b`, `a < b` | [`Array::add`] (arrays and numbers), [`Array::matmul`], [`Array::less`] |
//! | `a.astype(mx.float16)` | [`Array::astype`] |
//! | `a[1:3]`, `a[..., i]`, `mx.take` | [`Array::slice_axis`], [`Array::take`], [`Array::take_along_axis`] |
//! | `a[i] = b`, `a.at[i].add(b)` | [`Array::put_along_axis`], [`Array::scatter_add_axis`] (a new array each), [`inplace`] |
//! | `mx.where(c, a, b)` | [`Array::select`] of `c` |
//! | `mx.sum(a, axis=-1, keepdims=True)` | [`Array::sum`]`(-1, true)`; `..` is all axes |
//! | `mx.eval`, `mx.async_eval` | [`eval()`], [`async_eval`] |
//! | `mx.grad`, `mx.value_and_grad`, `mx.vmap` | [`transforms::grad`], [`transforms::value_and_grad`], [`transforms::vmap`] |
//! | `mx.compile`, `mx.checkpoint` | [`transforms::Compiled`], [`transforms::checkpoint`] |
//! | `mx.random.key(0)`, `mx.random.normal` | [`random::Key`] (explicit: there is no global state), [`random::normal`] |
//! | `mx.quantize`, `mx.quantized_matmul` | [`quantize::quantize`], [`fast::quantized_linear`] |
//! | `mx.fast.rms_norm`, `mx.fast.scaled_dot_product_attention` | [`fast`] |
//! | `mx.fast.metal_kernel`, custom kernels | [`kernel`] (Metal, CUDA, and CPU kernels in Rust) |
//! | `mx.load`, `mx.save_safetensors` | [`Safetensors`], [`safetensors`] |
//! | `mx.linalg`, `mx.fft` | [`linalg`], [`fft`] |
//! | `mx.set_default_device`, `mx.stream` | [`Device`], [`Stream`] |
//! | `mx.get_peak_memory`, `mx.set_memory_limit` | [`memory`] |
//!
//! Functions have MLX's names where MLX has them. A number beside an array takes the array's dtype, and is refused where that dtype
//! cannot hold it.

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
mod replay;
pub mod safetensors;
pub mod settings;
pub mod stream;
pub mod transforms;

/// Loads the library of MLX, which the first call of this crate does otherwise.
///
/// A program calls it in `main`, before it starts threads: MLX regards the thread that loads it as the main one, and
/// loading sets a variable of the environment.
///
/// # Errors
/// The library is not found ([`ErrorKind::Library`]). Then every call that needs it fails in the same way.
pub fn init() -> Result<()> {
    mlx_c_sys::load().map_err(|text| Error::new(ErrorKind::Library, text))
}

/// The raw bindings, for what this crate does not have.
#[doc(no_inline)]
pub use mlx_c_sys;

pub use self::safetensors::Safetensors;
pub use array::Array;
pub use dtype::{Complex64, DType, Element};
pub use error::{Error, ErrorKind, Result};
pub use eval::{async_eval, eval, graph_size, synchronize};
pub use frozen::Frozen;
pub use ops::*;
pub use replay::{Graph, Replay};
pub use stream::{Device, DeviceKind, Stream};
