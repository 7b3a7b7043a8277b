//! Divides the memory of a GPU among weights, the caches of rows, work in progress, and free
//! buffers.
//!
//! Without these bounds a GPU fills up. The host queues prompts ahead of the GPU, and the arrays of
//! queued kernels already take memory. MLX keeps freed buffers, most of which have a size that no
//! later array has. So the pages of keys and values are reserved at the start, and what is left
//! bounds the work. On a full GPU the driver moves memory to the host and back with each kernel,
//! and a step takes minutes.

use mlx_core::memory::{self, DeviceMemory};
use mlx_nn::ModelCache;

use super::LoadedModel;
use super::cost::CacheCost;
use crate::error::{Error, ErrorKind, Result};
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

    /// The bytes that the caches of rows may take beside `active` bytes of weights if they grow: two
    /// fifths of the rest, because caches that grow need their size a second time for a moment.
    /// The last fifth is for stored prefixes and the work of prompts.
    #[cfg(feature = "serve")]
    fn growing_caches(self, active: usize) -> usize {
        self.limit.saturating_sub(active) / 5 * 2
    }

    /// The bytes for pages that are reserved, beside `active` bytes of weights. What is left bounds
    /// the arrays of work that the host queues ahead: an eighth of the rest, and at least a GiB if
    /// that is at most a third. With tiers, as many bytes as prefixes in pages may take wait to be
    /// copied to them.
    fn pages(self, active: usize, limits: &Limits) -> usize {
        let rest = self.limit.saturating_sub(active);
        let work = (rest / 8).max((1 << 30).min(rest / 3));
        let has_tiers = limits.prefix_dir.is_some() || limits.prefix_host_bytes > 0;
        let queued = if has_tiers { limits.prefix_bytes } else { 0 };
        rest.saturating_sub(work).saturating_sub(queued)
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
/// device is a GPU with memory of its own: what is free beside the weights, prefixes and work. The
/// limits are those of `models` models, this one and copies of it, each of which gets an equal part.
///
/// # Errors
/// The memory of the device cannot be read, or nothing is left for the caches.
pub(crate) fn resolve(limits: &Limits, model: &LoadedModel, models: usize) -> Result<Limits> {
    let mut limits = limits.clone();
    if limits.cache_bytes.is_none()
        && let Some(device) = memory::of_device()?
    {
        let active = memory::active()?;
        let bounds = Bounds {
            limit: memory::memory_limit()?,
            ..Bounds::new(device, active)
        };
        let draft = model
            .draft_model()
            .map_or(0, |draft| draft.info().weight_bytes);
        // Weights that are not computed yet will be.
        let active = active.max(model.info().weight_bytes + draft);
        limits.cache_bytes = Some(planned(
            &limits,
            &CacheCost::of(model),
            models,
            bounds,
            active,
        )?);
    }
    Ok(limits)
}

fn planned(
    limits: &Limits,
    cost: &CacheCost,
    models: usize,
    bounds: Bounds,
    active: usize,
) -> Result<usize> {
    let room = bounds.pages(active, limits);
    let own = Limits {
        prefix_bytes: limits.prefix_bytes / models,
        ..limits.clone()
    };
    let caches = cost.fitting(&own, room / models);
    caches.map(|bytes| bytes * models).ok_or_else(|| {
        Error::new(
            ErrorKind::Memory,
            format!(
                "no memory for the caches of rows: of the {} bytes that may be used, weights take {active}, and {room} \
                 are left for pages, among them {} of stored prefixes (prefix_bytes) and those of {} rows (rows)",
                bounds.limit, limits.prefix_bytes, limits.rows
            ),
        )
    })
}

/// A cache without rows whose pages are reserved for rows within `limits`, if the device is a GPU
/// with memory of its own and the limits do not say that pages grow.
///
/// # Errors
/// There is no memory for the pages.
pub(crate) fn reserve(model: &LoadedModel, limits: &Limits) -> Result<Option<ModelCache>> {
    match (limits.cache_bytes, memory::of_device()?) {
        (Some(bytes), Some(device)) if !limits.pages_grow => {
            let free = device.free + memory::cached()?;
            reserved(model, limits, bytes, free).map(Some)
        }
        _ => Ok(None),
    }
}

/// A cache without rows whose pages are reserved for rows that take `cache_bytes`. `free` bytes of
/// memory are free.
///
/// # Errors
/// There is no memory for the pages; the message has their size and what is free.
pub(crate) fn reserved(
    model: &LoadedModel,
    limits: &Limits,
    cache_bytes: usize,
    free: usize,
) -> Result<ModelCache> {
    let cost = CacheCost::of(model);
    let pages = cost.pool(limits, cache_bytes);
    let mut cache = model.new_cache(0);
    let needed = cost.pool_bytes(&pages);
    let refused = |why: String| {
        let message = format!(
            "the pages of keys and values need {needed} bytes (cache_bytes {cache_bytes}, prefix_bytes {}), and {free} \
             are free{why}",
            limits.prefix_bytes
        );
        Error::new(ErrorKind::Memory, message)
    };
    if needed > free {
        return Err(refused(String::new()));
    }
    match cache.reserve(&model.row_parts()?, &pages) {
        Ok(()) => Ok(cache),
        Err(error) => Err(refused(format!(": {error}"))),
    }
}

/// The bytes that the caches of a model's rows may take beside `weights` bytes of weights of all
/// models, if they grow; `None` if the device has no memory of its own.
///
/// # Errors
/// The memory of the device cannot be read.
#[cfg(feature = "serve")]
pub(crate) fn caches_beside(weights: usize) -> Result<Option<usize>> {
    let Some(device) = memory::of_device()? else {
        return Ok(None);
    };
    let bounds = Bounds::new(device, memory::active()? + memory::cached()?);
    Ok(Some(bounds.growing_caches(weights)))
}

#[cfg(test)]
mod tests {
    use mlx_nn::{PAGE, StateCost};

    use super::*;
    use crate::model::LoadOptions;

    const GB: usize = 1 << 30;

    /// Layers like those of Gemma 3 1B: some that keep all positions, most that keep 512.
    fn windows() -> CacheCost {
        let layer = |limit| StateCost {
            row_bytes: 0,
            position_bytes: 1024,
            limit,
        };
        let layers = (0..26).map(|at| layer((at % 6 != 5).then_some(512)));
        CacheCost::new(layers.collect(), PAGE)
    }

    fn whole() -> CacheCost {
        let layer = StateCost {
            row_bytes: 3000,
            position_bytes: 4096,
            limit: None,
        };
        CacheCost::new(vec![layer; 28], PAGE)
    }

    #[test]
    fn weights_pages_and_work_fit_into_a_gpu_and_little_is_left() {
        for (total, cost) in [8, 24, 80, 140]
            .into_iter()
            .flat_map(|n| [(n, whole()), (n, windows())])
        {
            for weights in [0, 1, 4] {
                for rows in [1, 64, 256] {
                    let memory = DeviceMemory {
                        total: total * GB,
                        free: total * GB - GB / 2 - weights * GB,
                    };
                    let active = weights * GB;
                    let bounds = Bounds::new(memory, active);
                    let limits = Limits {
                        rows,
                        ..Limits::default()
                    };
                    let caches = planned(&limits, &cost, 1, bounds, active).unwrap();
                    let pages = cost.pool_bytes(&cost.pool(&limits, caches));
                    let rest = bounds.limit - active;
                    assert!(
                        caches <= pages && pages <= rest / 8 * 7,
                        "{total} {weights} {rows}"
                    );
                    // The rest is for what rows hold whatever their lengths.
                    let room = bounds.pages(active, &limits);
                    assert!(room - pages <= GB / 32, "{total} {weights} {rows}");
                    assert!(bounds.limit + bounds.free_buffers < memory.free + active);
                }
            }
        }
    }

    #[test]
    fn caches_that_grow_fit_twice() {
        for weights in [0, 1, 4] {
            let memory = DeviceMemory {
                total: 8 * GB,
                free: 7 * GB,
            };
            let bounds = Bounds::new(memory, 0);
            let caches = bounds.growing_caches(weights * GB);
            assert!(weights * GB + 2 * caches <= bounds.limit);
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
        assert!(planned(&Limits::default(), &whole(), 1, bounds, 10 * GB).unwrap() < 27 * GB);
    }

    #[test]
    fn what_leaves_no_room_is_refused_with_its_numbers() {
        let memory = DeviceMemory {
            total: 8 * GB,
            free: 2 * GB,
        };
        let limits = Limits {
            prefix_bytes: 4 * GB,
            ..Limits::default()
        };
        let bounds = Bounds::new(memory, 6 * GB);
        let error = planned(&limits, &whole(), 2, bounds, 6 * GB).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory);
        let wanted = [bounds.limit, 6 * GB, 4 * GB].map(|n| n.to_string());
        assert!(
            wanted.iter().all(|n| error.to_string().contains(n)),
            "{error}"
        );
    }

    #[test]
    fn on_a_cpu_limits_stay() {
        let dir = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../testdata/models/llama_llama3"
        );
        let model = LoadedModel::load(dir, LoadOptions::default()).unwrap();
        if memory::of_device().unwrap().is_none() {
            let limits = Limits {
                cache_bytes: Some(1 << 20),
                ..Limits::default()
            };
            for limits in [limits, Limits::default()] {
                assert_eq!(resolve(&limits, &model, 1).unwrap(), limits);
                assert!(reserve(&model, &limits).unwrap().is_none());
            }
        }
    }
}
