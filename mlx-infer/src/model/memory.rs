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

    /// The part of the bytes for pages that a model takes with `weights` bytes of weights, if the models in
    /// memory have up to `all` bytes of them: as much of the pages as of the weights. So the parts of all
    /// models that are in memory at a time fit, whatever the order in which they are loaded.
    fn share(self, weights: usize, all: usize, limits: &Limits) -> usize {
        let all = all.max(weights).max(1);
        let pages = self.pages(all, limits) as u128;
        usize::try_from(pages * weights as u128 / all as u128).unwrap_or(usize::MAX)
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
/// device is a GPU with memory of its own: what is free beside the weights, prefixes and work, or the
/// model's part of that if other models share the device. Stored prefixes then take at most a quarter of
/// the part. The limits are those of `models` models, this one and copies of it, each of which gets an
/// equal part.
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
        let weights = model.info().weight_bytes + draft;
        // Weights that are not computed yet will be.
        let active = limits.models_bytes.unwrap_or(active).max(weights);
        let room = match limits.models_bytes {
            Some(all) => bounds.share(weights, all, &limits),
            None => bounds.pages(active, &limits),
        };
        if limits.models_bytes.is_some() {
            limits.prefix_bytes = limits.prefix_bytes.min(room / 4);
        }
        let cost = CacheCost::of(model);
        limits.cache_bytes = Some(planned(&limits, &cost, models, bounds, active, room)?);
    }
    Ok(limits)
}

/// The bytes for the caches of rows of `models` models, of `room` bytes for pages. `active`: the bytes of
/// weights.
fn planned(
    limits: &Limits,
    cost: &CacheCost,
    models: usize,
    bounds: Bounds,
    active: usize,
    room: usize,
) -> Result<usize> {
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

/// The pages that are reserved for the rows of a model, and for those of its draft model. The caches have
/// no rows.
#[derive(Debug)]
pub(crate) struct Pools {
    pub(crate) own: ModelCache,
    pub(crate) draft: Option<ModelCache>,
}

/// The pages that are reserved for rows within `limits`, if the device is a GPU with memory of its own.
///
/// # Errors
/// There is no memory for the pages.
pub(crate) fn reserve(model: &LoadedModel, limits: &Limits) -> Result<Option<Pools>> {
    match (limits.cache_bytes, memory::of_device()?) {
        (Some(bytes), Some(device)) => {
            let free = device.free + memory::cached()?;
            reserved(model, limits, bytes, free).map(Some)
        }
        _ => Ok(None),
    }
}

/// The pages that are reserved for rows that take `cache_bytes`. `free` bytes of memory are free.
///
/// # Errors
/// There is no memory for the pages; the message has their size and what is free.
pub(crate) fn reserved(
    model: &LoadedModel,
    limits: &Limits,
    cache_bytes: usize,
    free: usize,
) -> Result<Pools> {
    let cost = CacheCost::of(model);
    let [own, of_draft] = cost.pools(limits, cache_bytes);
    let needed = cost.pool_bytes(&[&own[..], &of_draft].concat());
    let refused = |why: String| {
        let of_draft = match of_draft.is_empty() {
            true => "",
            false => ", those of the draft model among them",
        };
        let message = format!(
            "the pages of keys and values need {needed} bytes (cache_bytes {cache_bytes}, prefix_bytes {}){of_draft}, and \
             {free} are free{why}",
            limits.prefix_bytes
        );
        Error::new(ErrorKind::Memory, message)
    };
    if needed > free {
        return Err(refused(String::new()));
    }
    let reserved = |model: &LoadedModel, pages: &[usize]| {
        let mut cache = model.new_cache(0);
        match cache.reserve(&model.row_parts()?, pages) {
            Ok(()) => Ok(cache),
            Err(error) => Err(refused(format!(": {error}"))),
        }
    };
    let draft = model.draft_model();
    Ok(Pools {
        own: reserved(model, &own)?,
        draft: draft.map(|draft| reserved(draft, &of_draft)).transpose()?,
    })
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
                    let room = bounds.pages(active, &limits);
                    let caches = planned(&limits, &cost, 1, bounds, active, room).unwrap();
                    let pages = cost.pool_bytes(&cost.pools(&limits, caches)[0]);
                    let rest = bounds.limit - active;
                    assert!(
                        caches <= pages && pages <= rest / 8 * 7,
                        "{total} {weights} {rows}"
                    );
                    // The rest is for what rows hold whatever their lengths.
                    assert!(room - pages <= GB / 32, "{total} {weights} {rows}");
                    assert!(bounds.limit + bounds.free_buffers < memory.free + active);
                }
            }
        }
    }

    #[test]
    fn models_that_share_a_gpu_fit_in_every_order() {
        let memory = DeviceMemory {
            total: 80 * GB,
            free: 79 * GB,
        };
        let bounds = Bounds::new(memory, 0);
        let limits = Limits::default();
        // Models of these sizes, and a limit of all that are in memory at a time.
        for (weights, all) in [
            (vec![16 * GB, GB], 17 * GB),
            (vec![GB / 4; 4], GB),
            (vec![20 * GB, 20 * GB, 15 * GB], 55 * GB),
        ] {
            let parts = weights.iter().map(|&own| bounds.share(own, all, &limits));
            let parts: Vec<usize> = parts.collect();
            let taken = weights.iter().chain(&parts).sum::<usize>();
            // An eighth of the rest, and little that is lost by rounding, is left for work.
            let rest = bounds.limit - all;
            assert!(taken <= bounds.limit - rest / 8, "{weights:?}");
            assert!(taken >= bounds.limit - rest / 8 - GB, "{weights:?}");
            for (own, part) in weights.iter().zip(parts) {
                let limits = Limits {
                    prefix_bytes: limits.prefix_bytes.min(part / 4),
                    ..limits.clone()
                };
                let caches = planned(&limits, &whole(), 1, bounds, *own, part).unwrap();
                assert!(whole().pool_bytes(&whole().pools(&limits, caches)[0]) <= part);
            }
        }
    }

    #[test]
    fn a_draft_model_has_pages_of_its_own_in_the_plan() {
        let memory = DeviceMemory {
            total: 80 * GB,
            free: 70 * GB,
        };
        let bounds = Bounds::new(memory, 9 * GB);
        let limits = Limits::default();
        let layer = StateCost {
            row_bytes: 0,
            position_bytes: 2048,
            limit: None,
        };
        let cost = whole().with_draft(vec![layer; 10]);
        let room = bounds.pages(9 * GB, &limits);
        let caches = planned(&limits, &cost, 1, bounds, 9 * GB, room).unwrap();
        let [own, draft] = cost.pools(&limits, caches);
        assert_eq!((own.len(), draft.len()), (1, 1));
        let bytes = cost.pool_bytes(&[own[0], draft[0]]);
        assert!(bytes <= room && bytes >= room - GB, "{bytes} of {room}");
        // Both hold the same positions, and only the model has stored prefixes.
        let prefixes = limits.prefix_bytes / (PAGE * 28 * 4096);
        assert_eq!(own[0] - prefixes, draft[0]);
    }

    #[test]
    fn memory_of_other_processes_is_not_counted() {
        let memory = DeviceMemory {
            total: 80 * GB,
            free: 30 * GB,
        };
        let bounds = Bounds::new(memory, 10 * GB);
        assert!(bounds.limit < 40 * GB);
        let limits = Limits::default();
        let room = bounds.pages(10 * GB, &limits);
        assert!(planned(&limits, &whole(), 1, bounds, 10 * GB, room).unwrap() < 27 * GB);
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
        let room = bounds.pages(6 * GB, &limits);
        let error = planned(&limits, &whole(), 2, bounds, 6 * GB, room).unwrap_err();
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
