//! The interfaces of an engine's thread to a decode loop and to a loaded model: those of this program, or those of another
//! back end.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use mlx_models::adapter;
use mlx_nn::PageUse;
use mlx_nn::shard::Ranks;

use super::handle::Queue;
use super::load::{EngineLoad, PageLoad};
use super::names::NamedAdapter;
use super::prefix_tier::PrefixTier;
use super::prefix_tier::tiered::Tiered;
use super::ranks::{agreed, ranks_lost};
use super::rounds::{ReadJob, follow};
use super::state::Sink;
use super::thread::Inbox;
use super::watchdog::Watchdog;
use super::worker::Worker;
use crate::error::{ErrorKind, Result};
use crate::model::LoadedModel;
use crate::model::adapters::AdapterTable;
use crate::model::checked::Checked;
use crate::model::frontend::Frontend;
use crate::model::memory::{self, Pools};
use crate::request::cancel::CancelToken;
use crate::request::limits::Limits;

/// Computes many requests on one model, a part of the work at a time. Errors of requests go to their sinks.
pub(crate) trait Decode<'s> {
    /// Adds a request. If there is no memory for it, its sink gets an error.
    fn submit(
        &mut self,
        request: Checked,
        requested: Instant,
        dropped: CancelToken,
        backlog: Option<Arc<Queue>>,
        sink: Sink<'s>,
    );

    /// Does a part of the work.
    fn advance(&mut self);

    /// Cancels every request now.
    fn cancel_all(&mut self);

    /// Ends every request with an error, because another rank of the model is lost.
    fn fail_lost(&mut self) {
        self.cancel_all();
    }

    /// Whether there is nothing to do.
    fn is_idle(&self) -> bool;

    /// Whether there is nothing to do until a caller reads events or cancels, or a request arrives.
    fn is_stalled(&self) -> bool;

    /// Counters.
    fn load(&self) -> EngineLoad;
}

impl<'s> Decode<'s> for Worker<'_, 's> {
    fn submit(
        &mut self,
        request: Checked,
        requested: Instant,
        dropped: CancelToken,
        backlog: Option<Arc<Queue>>,
        sink: Sink<'s>,
    ) {
        Worker::submit(self, request, requested, dropped, backlog, sink);
    }

    fn advance(&mut self) {
        Worker::advance(self);
    }

    fn cancel_all(&mut self) {
        Worker::cancel_all(self);
    }

    fn fail_lost(&mut self) {
        self.fail_all(ranks_lost().unwrap_or("another rank of the model is lost"));
    }

    fn is_idle(&self) -> bool {
        Worker::is_idle(self)
    }

    fn is_stalled(&self) -> bool {
        Worker::is_stalled(self)
    }

    fn load(&self) -> EngineLoad {
        let [waiting, prefilling, decoding] = self.counts();
        let prefixes = self.prefix_counts();
        let (masks, mask_time) = self.masks();
        let groups = self.page_use();
        let sum = |of: fn(&PageUse) -> usize| groups.iter().map(of).sum();
        EngineLoad {
            waiting,
            prefilling,
            decoding,
            forwards: self.forwards(),
            preemptions: self.preemptions(),
            masks,
            mask_time,
            prefix_hits: prefixes.hits,
            prefix_tokens: prefixes.tokens,
            prefix_bytes: prefixes.bytes,
            resumed_tokens: prefixes.resumed,
            cache_bytes: self.cache_bytes(),
            pool_bytes: self.pool().0,
            pool_moves: self.pool().1 as usize,
            pages: PageLoad {
                by_rows: sum(|group| group.by_rows),
                shared: sum(|group| group.shared),
                by_prefixes: sum(|group| group.by_prefixes),
                evicted: prefixes.evicted,
            },
            ..Default::default()
        }
    }
}

/// A model that an engine's thread serves, of any back end, with its adapters.
pub(crate) trait EngineModel {
    /// The model's tokenizer, chat template and checks of requests.
    fn frontend(&self) -> &Arc<Frontend>;

    /// The limits in force, given those of the options. Called once, before the model is served.
    ///
    /// # Errors
    /// The memory of the device cannot be read, or there is none for the pages.
    fn limits(&self, limits: &Limits) -> Result<Limits>;

    /// What each name of [`EngineOptions::adapters`](super::EngineOptions::adapters) stands for, in their order.
    fn adapters(&self) -> Vec<NamedAdapter> {
        Vec::new()
    }

    /// The ranks that share the model.
    fn ranks(&self) -> Ranks {
        Ranks::ALONE
    }

    /// Serves the messages of the inbox until the engine ends.
    fn serve(self: Box<Self>, limits: Limits, inbox: &Inbox);
}

/// A model of this process, with its adapters.
pub(crate) struct Native {
    /// The model, followed by copies of it with an adapter that has steps of its own.
    models: Vec<LoadedModel>,
    /// The adapters of the model that requests may choose.
    table: AdapterTable,
    /// What their names stand for.
    named: Vec<NamedAdapter>,
    /// The tiers of each model's prefixes, until the model is served.
    tiers: Cell<Vec<Vec<PrefixTier>>>,
    /// The pages that are reserved for each model, if they are, until the model is served.
    pools: Cell<Vec<Option<Pools>>>,
}

impl Native {
    /// A model with its adapters.
    ///
    /// # Errors
    /// An adapter does not fit the model.
    pub(crate) fn new(model: LoadedModel, adapters: &[(String, PathBuf)]) -> Result<Self> {
        let (mut models, mut table) = (vec![model], AdapterTable::default());
        let mut named = Vec::new();
        for (name, dir) in adapters {
            let is_apart = models[0].model().encoder().is_some() || adapter::is_full(dir)?;
            let loaded = match is_apart {
                true => None,
                false => match table.load(&models[0], dir) {
                    Ok(adapter) => Some(adapter),
                    Err(error) if error.kind() == ErrorKind::Unsupported => {
                        tracing::warn!("adapter {name:?} has steps of its own: {error}");
                        None
                    }
                    Err(error) => return Err(error),
                },
            };
            named.push(match loaded {
                Some(adapter) => NamedAdapter::Rows(adapter),
                None => {
                    models.push(models[0].with_adapter(dir)?);
                    NamedAdapter::Model(models.len() - 1)
                }
            });
        }
        let (tiers, pools) = (Cell::default(), Cell::default());
        Ok(Self {
            models,
            table,
            named,
            tiers,
            pools,
        })
    }

    /// The limits of each model. Those on bytes are divided among all.
    fn divided(&self, limits: Limits) -> Limits {
        let models = self.models.len();
        Limits {
            cache_bytes: limits.cache_bytes.map(|bytes| bytes / models),
            prefix_bytes: limits.prefix_bytes / models,
            prefix_host_bytes: limits.prefix_host_bytes / models,
            ..limits
        }
    }
}

impl Native {
    /// Computes what the first rank computes, until it ends.
    ///
    /// # Errors
    /// Another rank has died, or this rank cannot compute what the first one computes.
    pub(crate) fn follow(mut self, limits: &Limits, read: ReadJob) -> Result<()> {
        let limits = self.limits(limits)?;
        let ranks = self.ranks();
        let table = self.taken_table();
        follow(self.workers(limits), &self.models, table, (ranks, read))
    }

    /// The adapters of the first model. From now on only names and rows hold them.
    fn taken_table(&mut self) -> AdapterTable {
        self.named.clear();
        std::mem::take(&mut self.table)
    }

    /// A worker for each model.
    fn workers(&self, limits: Limits) -> Vec<Tiered<'_, 'static>> {
        let limits = self.divided(limits);
        let parts = self.tiers.take().into_iter().zip(self.pools.take());
        let models = self.models.iter().zip(parts);
        let workers =
            models.map(|(model, (tiers, pool))| Tiered::with(model, limits.clone(), pool, tiers));
        workers.collect()
    }
}

impl EngineModel for Native {
    fn frontend(&self) -> &Arc<Frontend> {
        self.models[0].frontend()
    }

    /// Also opens the tiers of prefixes and reserves pages, so that the model is ready when the engine says so.
    fn limits(&self, limits: &Limits) -> Result<Limits> {
        let own = self.divided(limits.clone());
        let tiers = |model| PrefixTier::of(model, &own);
        self.tiers.set(self.models.iter().map(tiers).collect());
        // Copies with an adapter have caches of the same sizes.
        let limits = memory::resolve(limits, &self.models[0], self.models.len())?;
        // They may follow from the memory of a machine, and must be the same on all ranks.
        let own = (limits.cache_bytes, limits.prefix_bytes);
        let (cache_bytes, prefix_bytes) = agreed(self.models[0].options().ranks, own)?;
        let limits = Limits {
            cache_bytes,
            prefix_bytes,
            ..limits
        };
        let own = self.divided(limits.clone());
        let pools = self.models.iter().map(|model| memory::reserve(model, &own));
        self.pools.set(pools.collect::<Result<_>>()?);
        Ok(limits)
    }

    fn adapters(&self) -> Vec<NamedAdapter> {
        self.named.clone()
    }

    fn ranks(&self) -> Ranks {
        self.models[0].options().ranks
    }

    fn serve(mut self: Box<Self>, limits: Limits, inbox: &Inbox) {
        let table = self.taken_table();
        let workers = self.workers(limits);
        let passes = workers
            .iter()
            .map(|tiered| tiered.worker().passes().clone());
        let _watchdog = Watchdog::start(passes.collect(), |late| tracing::warn!("{late}"));
        inbox.serve(workers, &self.models, table);
    }
}
