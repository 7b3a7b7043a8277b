//! The time of each kind of node on the CPU.
//!
//! ```
//! use mlx_core::{Array, eval, fast, profile};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
//! profile::start();
//! eval([&fast::rms_norm(&x, None, 1e-6)?])?;
//! for node in profile::end() {
//!     println!("{:>6} × {:<20} {:.3} ms", node.times, node.name, 1e3 * node.seconds);
//! }
//! # Ok(())
//! # }
//! ```

use std::ffi::{CStr, c_char, c_void};

use mlx_c_sys as sys;

/// All nodes of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The name that [`fast`](crate::fast) and [`CpuKernel`](crate::kernel::CpuKernel) give, or [`BETWEEN`].
    pub name: String,
    /// How many of these nodes were computed.
    pub times: u64,
    /// Wall time on the stream's thread. Other threads may have worked on the same nodes.
    pub seconds: f64,
}

/// The time between one node and the next: MLX's own operations, bookkeeping, and waiting for work.
pub const BETWEEN: &str = "";

/// Times the nodes of this library on CPU streams from now on, until [`end`]. A process has one profile: starting drops
/// earlier counts. Each node costs some hundred nanoseconds more.
pub fn start() {
    // SAFETY: takes nothing, and guards what it changes by a lock.
    unsafe { sys::mlxrs_profile_start() }
}

/// The nodes that were computed since [`start`], by name. On a GPU and with `MLX_CPU_KERNELS=off`, only
/// user kernels are timed.
pub fn end() -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    // SAFETY: `tell` is called during the call only, with the pointer to `nodes` that is given here.
    unsafe { sys::mlxrs_profile_end((&raw mut nodes).cast(), Some(tell)) };
    nodes
}

/// # Safety
/// `to` is a `Vec<Node>` without another reference, `name` a C string.
unsafe extern "C" fn tell(to: *mut c_void, name: *const c_char, times: u64, seconds: f64) {
    // SAFETY: the caller's promise.
    let (nodes, name) = unsafe { (&mut *to.cast::<Vec<Node>>(), CStr::from_ptr(name)) };
    nodes.push(Node {
        name: name.to_string_lossy().into_owned(),
        times,
        seconds,
    });
}
