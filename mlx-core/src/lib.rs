//! Safe, lazy MLX arrays for Rust: the crate that the others of this workspace compute with.
//!
//! ```
//! use mlx_core::{Result, array};
//!
//! # fn main() -> Result<()> {
//! let x = array![[1.0, 2.0], [3.0, 4.0]];
//! let y = (x.matmul(&x)? + 0.5)?; // builds a graph
//! assert_eq!(y.to_vec::<f32>()?, [7.5, 10.5, 15.5, 22.5]); // reading evaluates it
//! assert_eq!(y.i((.., -1))?.to_vec::<f32>()?, [10.5, 22.5]); // the last column
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
//! | `mx.array([1.0, 2.0])`, `mx.array(3.0)` | [`array!`], [`Array::from`]; from a slice and a shape: [`Array::from_slice`] |
//! | `np.asarray(a)`, `a.tolist()`, `a.item()` | [`Array::to_vec`], [`Array::to_vec2`], [`Array::item`] |
//! | `for row in a` | `for row in &a`, [`Array::iter`] |
//! | `a.shape`, `a.dtype`, `mx.bfloat16` | [`Array::shape`], [`Array::dtype`], [`DType::BF16`] |
//! | `mx.zeros`, `mx.arange`, `mx.linspace` | [`zeros`], [`arange`], [`linspace`] |
//! | `a + b`, `1 - a`, `-a`, `a & b` | `(&a + &b)?`, `(1 - &a)?`, `(-&a)?` ([`operators`]), [`Array::add`] |
//! | `a @ b`, `a < b`, `a == b` | [`Array::matmul`], [`Array::lt`], [`Array::eq`] |
//! | `a.astype(mx.float16)` | [`Array::astype`] |
//! | `a[1:3]`, `a[..., -1]`, `a[::2]`, `a[ids]`, `a[mask]` | [`Array::i`]`((1..3,))`, `a.i((Ellipsis, -1))`, `a.i(`[`step`]`(.., 2))`, `a.i(&ids)` ([`indexing`]) |
//! | `a[i] = b`, `a.at[i].add(b)` | [`Array::set`], [`Array::at`] (a new array each), [`inplace`] |
//! | `mx.take`, `np.nonzero`, `mx.unique` | [`Array::take`], [`Array::nonzero`], [`Array::unique`] |
//! | `mx.where(c, a, b)` | [`where_`], [`Array::select`] of `c` |
//! | `mx.softmax(a, axis=-1)`, `mx.cumsum(a, 0, reverse=True)` | [`Array::softmax`], [`Array::cumsum_with`] |
//! | `mx.argmax(a)`, `mx.argmax(a, axis=0)` | [`Array::argmax_all`], [`Array::argmax`]`(0, false)` |
//! | `mx.sum(a, axis=-1, keepdims=True)` | [`Array::sum`]`(-1, true)`; `..` is all axes |
//! | `mx.eval`, `mx.async_eval` | [`eval()`], [`async_eval`] |
//! | `mx.grad`, `mx.value_and_grad`, `mx.vmap` | [`grad()`], [`value_and_grad()`], [`vmap()`] |
//! | `mx.compile`, `mx.checkpoint` | [`compile()`], [`transforms::Compiled`], [`transforms::checkpoint_with`] |
//! | `mx.random.seed`, `mx.random.key(0)`, `mx.random.normal` | [`random::seed`], [`random::Key`], [`random::normal`] |
//! | `mx.quantize`, `mx.quantized_matmul` | [`quantize::quantize`], [`fast::quantized_linear`] |
//! | `mx.fast.rms_norm`, `mx.fast.scaled_dot_product_attention` | [`fast`] |
//! | `mx.fast.metal_kernel`, custom kernels | [`kernel`] (Metal, CUDA, and CPU kernels in Rust) |
//! | `mx.load` | [`load`]; [`Safetensors`], [`files::Npz`] and [`gguf::Gguf`] read single arrays |
//! | `mx.save`, `mx.savez`, `mx.save_safetensors`, `mx.save_gguf` | [`save`], [`savez`], [`save_safetensors`], [`save_gguf`] |
//! | `mx.export_function`, `mx.import_function`, `mx.export_to_dot` | [`export`] |
//! | `mx.distributed` | [`distributed`] |
//! | `mx.linalg`, `mx.fft` | [`linalg`], [`fft`] |
//! | `mx.set_default_device`, `mx.stream` | [`Device`], [`Stream`] |
//! | `print(a)`, `mx.set_printoptions(precision=3)` | `println!("{a}")`, `{a:.3}`, [`set_printoptions`] ([`printing`]) |
//! | `mx.get_peak_memory`, `mx.set_memory_limit` | [`memory`] |
//!
//! Functions have MLX's names where MLX has them. A number beside an array takes the array's dtype, and is refused where that dtype
//! cannot hold it.

mod array;
mod dtype;
mod error;
mod ffi;
pub mod indexing;
mod into_shape;
mod poison;
pub mod printing;

pub mod device;
pub mod distributed;
pub mod eval;
pub mod export;
pub mod fast;
pub mod fft;
pub mod files;
mod frozen;
pub mod gguf;
pub mod inplace;
pub mod kernel;
pub mod linalg;
mod literal;
pub mod memory;
#[cfg(feature = "ndarray")]
mod nd;
pub mod operators;
pub mod ops;
pub mod profile;
pub mod python;
pub mod random;
mod replay;
mod rows;
pub mod safetensors;
pub mod settings;
pub mod stream;
pub mod transforms;

/// Euler's constant γ, Python's `mx.euler_gamma`. The other constants of Python are in [`std::f64::consts`] and [`f64`].
#[doc(alias = "euler_gamma")]
pub const EULER_GAMMA: f64 = 0.577_215_664_901_532_9;

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

pub use self::gguf::save_gguf;
pub use self::safetensors::{Safetensors, load_safetensors, save_safetensors};
pub use array::Array;
pub use dtype::{
    Complex64, DType, DTypeKind, Element, FloatInfo, IntegerInfo, can_cast, finfo, iinfo, isdtype,
    issubdtype, result_type,
};
pub use error::{Error, ErrorKind, Result};
pub use eval::{async_eval, eval, graph_size, synchronize};
pub use files::{load, save, savez, savez_compressed};
pub use frozen::Frozen;
pub use indexing::{At, Ellipsis, IntoIndex, NewAxis, Unique, step};
pub use into_shape::{IntoShape, Size};
pub use literal::{Literal, Nested};
pub use memory::{
    clear_cache, get_active_memory, get_cache_memory, get_memory_limit, get_peak_memory,
    reset_peak_memory, set_cache_limit, set_memory_limit, set_wired_limit,
};
#[cfg(feature = "ndarray")]
pub use ndarray;
pub use ops::*;
pub use printing::{PrintOptions, get_printoptions, set_printoptions};
pub use replay::{Graph, Replay};
pub use rows::Rows;
pub use stream::{
    Device, DeviceKind, Stream, ThreadLocalStream, clear_streams, default_device, default_stream,
    device_count, new_stream, set_default_device,
};
pub use transforms::{
    checkpoint, compile, custom_function, custom_vjp, grad, jvp, value_and_grad, vjp, vmap,
};
