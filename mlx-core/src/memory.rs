//! Memory: limits, counters, and the byte budget of a single array.
//!
//! ```
//! use mlx_core::{DType, eval, memory, ones};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let before = memory::active()?;
//! let x = ones([1000], DType::F32)?.exp()?;
//! eval([&x])?;
//! assert!(memory::active()? >= before + 4000);
//! drop(x);
//! memory::clear_cache()?;
//! # Ok(())
//! # }
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_c_sys as sys;

use crate::array::Array;
use crate::device::Property;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi;
use crate::stream::{Device, DeviceKind};

mod allocator;

pub(crate) use allocator::exhausted;
pub use allocator::{Allocator, reserve};

/// Zero stands for "not set": the machine's memory as MLX sees it.
static ARRAY_LIMIT: AtomicUsize = AtomicUsize::new(0);

/// Refuses every array of more than `bytes` before MLX is asked for them.
///
/// The limit refuses absurd shapes, as from an untrusted file, when an operation is built. If the system has no memory
/// for an array below the limit, the evaluation fails: [`ErrorKind::Memory`]. The default is [`memory_limit`]. A view
/// counts as the bytes of a dense copy.
///
/// ```
/// use mlx_core::{DType, ErrorKind, memory, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// let before = memory::array_limit();
/// memory::set_array_limit(1000);
/// let error = zeros(&[1000], DType::F32).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Budget);
/// memory::set_array_limit(before);
/// # Ok(())
/// # }
/// ```
pub fn set_array_limit(bytes: usize) {
    ARRAY_LIMIT.store(bytes.max(1), Ordering::Relaxed);
}

/// The largest array, in bytes, that may be made.
///
/// ```
/// use mlx_core::memory;
///
/// # fn main() -> mlx_core::Result<()> {
/// assert!(memory::array_limit() > 0);
/// # Ok(())
/// # }
/// ```
pub fn array_limit() -> usize {
    match ARRAY_LIMIT.load(Ordering::Relaxed) {
        0 => {
            let limit = memory_limit()
                .ok()
                .filter(|&limit| limit > 0)
                .unwrap_or(1 << 40);
            ARRAY_LIMIT.store(limit, Ordering::Relaxed);
            limit
        }
        limit => limit,
    }
}

/// The number of elements of `shape`. Overflow, negative sizes and sizes above the limit are errors.
pub(crate) fn check_shape(shape: &[i32], dtype: DType) -> Result<usize> {
    let mut size = 1usize;
    for &dim in shape {
        let dim = usize::try_from(dim).map_err(|_| {
            Error::new(
                ErrorKind::Shape,
                format!("shape {shape:?} has a negative dimension"),
            )
        })?;
        size = size
            .checked_mul(dim)
            .ok_or_else(|| over_budget(shape, dtype))?;
    }
    match size.checked_mul(dtype.size()) {
        Some(bytes) if bytes <= array_limit() => Ok(size),
        _ => Err(over_budget(shape, dtype)),
    }
}

/// Fails for a lazy array that exceeds the limit. Nothing has been allocated for it yet.
pub(crate) fn check_array(array: &Array) -> Result<()> {
    check_shape(array.shape(), array.dtype()).map(drop)
}

fn over_budget(shape: &[i32], dtype: DType) -> Error {
    let limit = array_limit();
    Error::new(
        ErrorKind::Budget,
        format!("an array of shape {shape:?} and dtype {dtype} exceeds the limit of {limit} bytes"),
    )
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// MLX cannot report the number.
        pub fn $name() -> Result<usize> {
            let mut bytes = 0;
            // SAFETY: fills a local variable.
            ffi::call(ErrorKind::Mlx, || unsafe { sys::$c(&mut bytes) })?;
            Ok(bytes)
        }
    )* };
}

counters! {
    /// Bytes in use by arrays.
    #[doc(alias = "get_active_memory")]
    active = mlx_get_active_memory;
    /// Highest [`active`] since the start or [`reset_peak`].
    #[doc(alias = "get_peak_memory")]
    peak = mlx_get_peak_memory;
    /// Bytes of freed buffers that MLX keeps for reuse.
    #[doc(alias = "get_cache_memory")]
    cached = mlx_get_cache_memory;
    /// Bytes from which on MLX waits for running work before it allocates more.
    #[doc(alias = "get_memory_limit")]
    memory_limit = mlx_get_memory_limit;
}

// The names of Python's MLX.
pub use self::{
    active as get_active_memory, cached as get_cache_memory, memory_limit as get_memory_limit,
    peak as get_peak_memory, reset_peak as reset_peak_memory,
};

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident = $c:ident;)*) => { $(
        $(#[$doc])*
        /// Returns the previous value.
        ///
        /// # Errors
        /// The back end refuses the value.
        pub fn $name(bytes: usize) -> Result<usize> {
            let mut before = 0;
            // SAFETY: fills a local variable.
            ffi::call(ErrorKind::Mlx, || unsafe { sys::$c(&mut before, bytes) })?;
            Ok(before)
        }
    )* };
}

limits! {
    /// Sets [`memory_limit`]. Above it MLX waits for running work; it is not an error.
    set_memory_limit = mlx_set_memory_limit;
    /// Sets how many bytes of freed buffers MLX keeps.
    set_cache_limit = mlx_set_cache_limit;
    /// Sets how many bytes Metal may wire down (macOS 15 and later).
    set_wired_limit = mlx_set_wired_limit;
}

/// The memory of a GPU, in bytes.
///
/// ```
/// use mlx_core::memory;
///
/// # fn main() -> mlx_core::Result<()> {
/// if let Some(memory) = memory::of_device()? {
///     assert!(memory.free <= memory.total);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// All memory of the GPU.
    pub total: usize,
    /// The memory that no process uses, and freed memory that the driver keeps for this process. Free
    /// buffers that MLX keeps ([`cached`]) count as used.
    pub free: usize,
}

/// The memory of the default device, if it is a GPU with memory of its own (CUDA). `None` for CPUs, and for Apple's GPUs,
/// which share the machine's memory.
///
/// ```
/// use mlx_core::memory;
///
/// # fn main() -> mlx_core::Result<()> {
/// match memory::of_device()? {
///     Some(gpu) => println!("{} of {} bytes are free", gpu.free, gpu.total),
///     None => println!("the memory is the machine's"),
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// MLX cannot report the numbers.
pub fn of_device() -> Result<Option<DeviceMemory>> {
    let device = Device::default_device()?;
    if device.kind != DeviceKind::Gpu {
        return Ok(None);
    }
    let info = device.info()?;
    let size = |key: &str| match info.get(key)? {
        Property::Number(bytes) => Some(*bytes),
        Property::Text(_) => None,
    };
    let mut kept = 0;
    // SAFETY: fills a local variable.
    ffi::call(ErrorKind::Mlx, || unsafe {
        sys::mlxrs_memory_kept(&mut kept)
    })?;
    let sizes = size("total_memory").zip(size("free_memory"));
    Ok(sizes.map(|(total, free)| DeviceMemory {
        total,
        free: free + kept,
    }))
}

/// Resets [`peak`].
///
/// ```
/// use mlx_core::{DType, eval, memory, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// memory::reset_peak()?;
/// eval([ones(&[1000], DType::F32)?.exp()?])?;
/// assert!(memory::peak()? >= 4000);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// MLX refuses.
#[doc(alias = "reset_peak_memory")]
pub fn reset_peak() -> Result<()> {
    // SAFETY: takes nothing.
    ffi::call(ErrorKind::Mlx, || unsafe { sys::mlx_reset_peak_memory() })
}

/// Makes all C++ code of the program, MLX in the first place, allocate its small objects by mimalloc. This works on
/// Linux, in a process whose address space is not limited. Returns whether it does. For programs only: `main` calls it.
///
/// The call links the allocator, which C++ uses from the start of the program. Memory of arrays and of Rust is not
/// affected.
#[cfg(feature = "mimalloc")]
pub fn use_mimalloc() -> bool {
    #[cfg(target_os = "linux")]
    return sys::operators::mlxrs_operators_are_mimalloc();
    #[cfg(not(target_os = "linux"))]
    false
}

/// Gives the cached buffers back to the system, after the work that this thread has queued. Work of other
/// threads is not waited for.
///
/// ```
/// use mlx_core::memory;
///
/// # fn main() -> mlx_core::Result<()> {
/// memory::clear_cache()?;
/// assert_eq!(memory::cached()?, 0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// MLX refuses.
pub fn clear_cache() -> Result<()> {
    // SAFETY: takes nothing.
    ffi::call(ErrorKind::Mlx, || unsafe { sys::mlx_clear_cache() })
}
