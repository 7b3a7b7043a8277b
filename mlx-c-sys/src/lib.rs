//! Raw bindings to mlx-c, the C interface of Apple's MLX, and to this project's shim beside it.
//!
//! The bindings are generated at build time from the headers that the build installs; MLX itself comes as its
//! published wheel. Names and conventions are those of the C headers; `mlxrs_*` functions are the shim's and are
//! documented in `shim/mlxrs.h`. Nothing here is safe: use `mlx-core`.
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

#[cfg(target_os = "linux")]
mod loader;
#[cfg(target_os = "linux")]
pub use loader::symbol;

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// The MLX release that the bindings are made for.
pub const MLX_VERSION: &str = "0.32.4";
