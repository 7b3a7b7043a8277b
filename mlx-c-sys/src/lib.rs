//! Raw bindings to mlx-c, the C interface of Apple's MLX, and to this project's shim beside it.
//!
//! `src/bindings.rs` has the bindings, which `cargo xtask bindings` has written from the headers; with the feature
//! `bindgen` a build writes them again, which needs libclang. MLX itself comes as its published wheel. Names and
//! conventions are those of the C headers; `mlxrs_*` functions are the shim's and are documented in `shim/mlxrs.h`.
//! Nothing here is safe: use `mlx-core`.
//!
//! | concept | in C | rule |
//! |---|---|---|
//! | array | `mlx_array` | an owned handle of one pointer; `mlx_array_free` frees it once |
//! | result | the first parameter, a pointer to a handle | null before the call, a new handle after it |
//! | status | the returned `int` | 0 is success; else [`mlxrs_error_get`] has the message, on the same thread |
//! | stream | `mlx_stream` | belongs to the thread that made it |
//! | list of arrays | `mlx_vector_array` | holds references of its own |
//! | closure | `mlx_closure` | a C function with a payload and the payload's destructor |
//! | fused operation | `mlxrs_fast_*`, in `shim/mlxrs_fast.h` | a CPU kernel or MLX's operations: [`mlxrs_fast_form`] tells |
//! | kernel in Rust | [`mlxrs_kernel_apply`], in `shim/mlxrs_kernel.h` | a node of the graph whose evaluation calls back |
//! | update in place | [`mlxrs_update_in_place`] | the caller promises that nothing else reads the buffer |
//! | memory of the caller | [`mlxrs_array_from_foreign`] | read in place, and given back when the last array has gone |
//! | recovery | [`mlxrs_clear_failures`] | lets streams work again after a failed evaluation |
//!
//! On Linux a program does not link libmlxc: `src/loader.rs` opens it at the first call, or in [`load`]. Without it, every
//! function fails.
//!
//! ```
//! use mlx_c_sys::{mlx_get_memory_limit, mlxrs_error_clear};
//!
//! let mut bytes = 0;
//! // SAFETY: one function touches a thread-local string only, the other fills our variable.
//! let status = unsafe {
//!     mlxrs_error_clear();
//!     mlx_get_memory_limit(&mut bytes)
//! };
//! assert_eq!(status, 0);
//! assert!(bytes > 0);
//! ```
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(missing_docs, reason = "the documentation is mlx-c's")]
#![allow(clippy::all, rustdoc::all, reason = "generated code")]
#![allow(
    unsafe_op_in_unsafe_fn,
    unused_qualifications,
    clippy::undocumented_unsafe_blocks
)]

mod libraries;
#[cfg(target_os = "linux")]
mod loader;
#[cfg(all(target_os = "linux", feature = "mimalloc"))]
pub mod operators;
pub use libraries::{Library, libraries};
#[cfg(target_os = "linux")]
pub use loader::{load, symbol};

/// Loads libmlxc, which is linked on this platform.
///
/// # Errors
/// None here.
#[cfg(not(target_os = "linux"))]
pub fn load() -> Result<(), String> {
    Ok(())
}

#[cfg(not(feature = "bindgen"))]
include!("bindings.rs");
#[cfg(feature = "bindgen")]
include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// The MLX release that the bindings are made for.
pub const MLX_VERSION: &str = "0.32.4";
