//! Divides the memory of a GPU among weights, the caches of rows, work in progress, and free
//! buffers.
//!
//! Without these bounds a GPU fills up. The host queues prompts ahead of the GPU, and the arrays of
//! queued kernels already take memory. MLX keeps freed buffers, most of which have a size that no
//! later array has. On a full GPU the driver moves memory to the host and back with each kernel,
//! and a step takes minutes.

use mlx_core::memory::{self, DeviceMemory};

use crate::error::Result;
use crate::request::limits::Limits;

/// The bounds for one device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    /// Arrays and free buffers together. At this size the host waits for queued kernels before it queues others.
    limit: usize,
    /// Free buffers.
    free_buffers: usize,
}

impl Bounds {
    /// `active` bytes are already used by arrays. A tenth of the memory stays free for libraries'
    /// workspaces, captured graphs, and fragments of the driver's pool that no array fits into.
    fn new(memory: DeviceMemory, active: usize) -> Self {
        let usable = (memory.free + active).min(memory.total);
        Self {
            limit: usable / 10 * 9,
            free_buffers: usable / 16,
        }
    }

    /// The bytes that the caches of rows may take beside `active` bytes of weights: two fifths of
    /// the rest. Caches that grow need their size a second time for a moment, because all layers
    /// are copied in one step. The last fifth is for stored prefixes and the work of prompts.
    fn caches(self, active: usize) -> usize {
        self.limit.saturating_sub(active) / 5 * 2
    }
}

/// Bounds the memory of the default device, if it is a GPU with memory of its own. Called before
/// weights are loaded. A lower limit that a program has set with [`memory::set_memory_limit`]
/// stays.
pub(super) fn bound() -> Result<()> {
    if let Some(device) = memory::of_device()? {
        let bounds = Bounds::new(device, memory::active()? + memory::cached()?);
        if memory::memory_limit()? > bounds.limit {
            memory::set_memory_limit(bounds.limit)?;
        }
        memory::set_cache_limit(bounds.free_buffers)?;
    }
    Ok(())
}

/// The limits, with a number of bytes for the caches of rows if the caller gives none and the
/// device is a GPU with memory of its own.
pub(crate) fn resolve(limits: &Limits) -> Result<Limits> {
    let mut limits = limits.clone();
    if limits.cache_bytes.is_none()
        && let Some(device) = memory::of_device()?
    {
        let active = memory::active()?;
        let bounds = Bounds {
            limit: memory::memory_limit()?,
            ..Bounds::new(device, active)
        };
        limits.cache_bytes = Some(bounds.caches(active));
    }
    Ok(limits)
}

/// The bytes that the caches of a model's rows may take beside `weights` bytes of weights of all
/// models; `None` if the device has no memory of its own.
///
/// # Errors
/// The memory of the device cannot be read.
#[cfg(feature = "serve")]
pub(crate) fn caches_beside(weights: usize) -> Result<Option<usize>> {
    let Some(device) = memory::of_device()? else {
        return Ok(None);
    };
    let bounds = Bounds::new(device, memory::active()? + memory::cached()?);
    Ok(Some(bounds.caches(weights)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: usize = 1 << 30;

    #[test]
    fn weights_caches_work_and_free_buffers_fit_into_a_gpu() {
        for total in [8, 24, 80, 140] {
            for weights in [0, 1, 4, 7] {
                let memory = DeviceMemory {
                    total: total * GB,
                    free: total * GB - GB / 2,
                };
                let bounds = Bounds::new(memory, 0);
                let caches = bounds.caches(weights * GB);
                // The caches take their size twice while they grow.
                assert!(weights * GB > bounds.limit || weights * GB + 2 * caches <= bounds.limit);
                assert!(bounds.limit + bounds.free_buffers < memory.free);
            }
        }
    }

    #[test]
    fn memory_of_other_processes_is_not_counted() {
        let memory = DeviceMemory {
            total: 80 * GB,
            free: 30 * GB,
        };
        let bounds = Bounds::new(memory, 10 * GB);
        assert!(bounds.limit < 40 * GB);
        assert!(bounds.caches(10 * GB) < 15 * GB);
    }

    #[test]
    fn on_a_cpu_limits_stay() {
        if memory::of_device().unwrap().is_none() {
            assert_eq!(resolve(&Limits::default()).unwrap(), Limits::default());
        }
    }
}
