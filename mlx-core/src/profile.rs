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
use std::{ptr, slice};

use mlx_c_sys as sys;

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::vector::VectorArray;
use crate::ffi::{self, Arg};

/// All nodes of one name.
///
/// ```
/// use mlx_core::{DType, eval, fast, ones, profile};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = ones(&[2, 2], DType::F32)?;
/// profile::start();
/// eval([&fast::soft_cap(&x, 30.0)?])?;
/// let seconds: f64 = profile::end().iter().map(|node| node.seconds).sum();
/// assert!(seconds >= 0.0);
/// # Ok(())
/// # }
/// ```
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
///
/// ```
/// use mlx_core::profile;
///
/// # fn main() -> mlx_core::Result<()> {
/// profile::start();
/// // … evaluations …
/// for node in profile::end() {
///     println!("{} × {}", node.times, node.name);
/// }
/// # Ok(())
/// # }
/// ```
pub fn start() {
    // SAFETY: takes nothing, and guards what it changes by a lock.
    unsafe { sys::mlxrs_profile_start() }
}

/// The nodes that were computed since [`start`], by name. On a GPU and with `MLX_CPU_KERNELS=off`, only
/// user kernels are timed.
///
/// ```
/// use mlx_core::profile;
///
/// # fn main() -> mlx_core::Result<()> {
/// profile::start();
/// assert!(profile::end().iter().all(|node| node.times > 0 || node.name == profile::BETWEEN));
/// # Ok(())
/// # }
/// ```
pub fn end() -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    // SAFETY: `push_node` is called during the call only, with the pointer to `nodes` that is given here.
    unsafe { sys::mlxrs_profile_end((&raw mut nodes).cast(), Some(push_node)) };
    nodes
}

/// # Safety
/// `to` is a `Vec<Node>` without another reference, `name` a C string.
unsafe extern "C" fn push_node(to: *mut c_void, name: *const c_char, times: u64, seconds: f64) {
    // SAFETY: the caller's promise.
    let (nodes, name) = unsafe { (&mut *to.cast::<Vec<Node>>(), CStr::from_ptr(name)) };
    nodes.push(Node {
        name: name.to_string_lossy().into_owned(),
        times,
        seconds,
    });
}

/// The kinds of the nodes that evaluating these arrays computes, MLX's own included, in no order. A
/// kind is listed once for each of its nodes.
///
/// ```
/// use mlx_core::{DType, ones, profile};
///
/// # fn main() -> mlx_core::Result<()> {
/// let y = ones(&[2], DType::F32)?.exp()?;
/// assert!(profile::graph([&y])?.iter().any(|name| name == "Exp"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is no memory.
pub fn graph<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<Vec<String>> {
    let outputs = VectorArray::new(arrays)?;
    let dot = written(|file| {
        // SAFETY: the stream is open, the namer is made and freed here, and the arrays live as long as `outputs`.
        ffi::call(ErrorKind::Mlx, || unsafe {
            let namer = sys::mlx_node_namer_new();
            let status = sys::mlx_export_to_dot(file, namer, outputs.c());
            sys::mlx_node_namer_free(namer);
            status
        })
    })?;
    // One line a node: `{ 12 [label ="Matmul", shape=rectangle]; }`.
    let is_node = |line: &&str| line.contains("shape=rectangle");
    let nodes = dot.lines().filter(is_node);
    let nodes = nodes.filter_map(|line| line.split('"').nth(1));
    Ok(nodes.map(str::to_owned).collect())
}

/// The text that `write` writes to a C stream.
fn written(write: impl FnOnce(*mut sys::FILE) -> Result<()>) -> Result<String> {
    let (mut text, mut length) = (ptr::null_mut(), 0);
    // SAFETY: both variables outlive the stream.
    let file = unsafe { libc::open_memstream(&raw mut text, &raw mut length) };
    if file.is_null() {
        return Err(Error::from(std::io::Error::last_os_error()));
    }
    let done = write(file.cast());
    // SAFETY: the stream is open, and closed once. Closing it sets `text` and `length`.
    unsafe { libc::fclose(file) };
    let found = match text.is_null() {
        true => String::new(),
        // SAFETY: the stream has written so many bytes there.
        false => unsafe { String::from_utf8_lossy(slice::from_raw_parts(text.cast(), length)) }
            .into_owned(),
    };
    // SAFETY: the stream's memory belongs to the caller, who frees it once.
    unsafe { libc::free(text.cast()) };
    done.map(|()| found)
}
