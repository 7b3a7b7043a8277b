//! A decode loop whose stored prefixes are also in tiers: in the memory of the host, or in files.
//!
//! A request that can start from a longer prefix in a tier than in pages is held back until that
//! prefix is read and put into pages. Other requests are computed meanwhile.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use super::{Loaded, PrefixTier};
use crate::engine::decode::Decode;
use crate::engine::handle::Queue;
use crate::engine::load::EngineLoad;
use crate::engine::prefixes::{MIN_TOKENS, PrefixKind};
use crate::engine::prompt_cache::Embedding;
use crate::engine::state::Sink;
use crate::engine::worker::Worker;
use crate::model::LoadedModel;
use crate::model::checked::Checked;
use crate::model::memory::Pools;
use crate::request::cancel::CancelToken;
use crate::request::limits::Limits;

/// How long the thread waits for a file if there is nothing else to do. It must hear of commands.
const WAIT: Duration = Duration::from_millis(5);

/// A worker, and the tiers of its prefixes, the fastest first.
pub(crate) struct Tiered<'m, 's> {
    worker: Worker<'m, 's>,
    model: &'m LoadedModel,
    tiers: Vec<PrefixTier>,
    held: Vec<Held<'s>>,
}

/// A prefix of a tier.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    /// The number of the tier.
    tier: usize,
    key: u64,
}

/// A request that waits for a prefix.
struct Held<'s> {
    place: Place,
    /// The tokens that the prefix has beyond those in pages.
    gain: usize,
    checked: Checked,
    requested: Instant,
    dropped: CancelToken,
    backlog: Option<Arc<Queue>>,
    sink: Sink<'s>,
}

impl<'m, 's> Tiered<'m, 's> {
    /// A worker with the tiers that the limits name. `pools` are those of
    /// [`Worker::in_pool`].
    pub(crate) fn new(model: &'m LoadedModel, limits: Limits, pools: Option<Pools>) -> Self {
        let tiers = PrefixTier::of(model, &limits);
        Self::with(model, limits, pools, tiers)
    }

    /// A worker with tiers that are open.
    pub(crate) fn with(
        model: &'m LoadedModel,
        limits: Limits,
        pools: Option<Pools>,
        tiers: Vec<PrefixTier>,
    ) -> Self {
        let mut worker = Worker::in_pool(model, limits, pools);
        if !tiers.is_empty() {
            worker.prefixes().announce();
        }
        Self {
            worker,
            model,
            tiers,
            held: Vec::new(),
        }
    }

    pub(crate) fn worker(&self) -> &Worker<'m, 's> {
        &self.worker
    }

    /// The prefix of a tier that has the most tokens of a prompt, if they are enough more than in
    /// pages: its place, and the number of those tokens. Of two that serve equally, the one in the
    /// faster tier.
    fn longer(&mut self, ids: &[u32]) -> Option<(Place, usize)> {
        let embedding = Embedding::of(self.model, ids.len());
        let mut best: Option<(Place, usize)> = None;
        for (tier, own) in self.tiers.iter().enumerate() {
            if let Some(found) = own.find(ids, embedding)
                && best.is_none_or(|(_, len)| found.len > len)
            {
                let key = found.key;
                best = Some((Place { tier, key }, found.len));
            }
        }
        let (place, len) = best.filter(|&(_, len)| len >= MIN_TOKENS)?;
        let kind = PrefixKind {
            embedding,
            adapter: None,
        };
        let gain = len.saturating_sub(self.worker.prefixes().longest(ids, kind));
        (gain >= MIN_TOKENS).then_some((place, gain))
    }

    /// Takes a prefix that was read, and submits the requests that waited for it.
    fn take(&mut self, tier: usize, loaded: Loaded) {
        let mut is_there = false;
        if let Some((name, image)) = loaded.image
            && let Some((ids, state)) = self.tiers[tier].state(self.model, name, image)
        {
            self.worker.prefixes().put(&ids, &state);
            is_there = true;
        }
        let key = loaded.key;
        self.release(|held| held.place == Place { tier, key }, is_there);
    }

    /// Takes the prefixes that were read. Waits this long for the first that is awaited.
    fn receive(&mut self, mut wait: Duration) {
        let awaited = self.held.first().map_or(0, |held| held.place.tier);
        for at in 0..self.tiers.len() {
            let tier = (awaited + at) % self.tiers.len();
            loop {
                match self.tiers[tier].next(std::mem::take(&mut wait)) {
                    Ok(loaded) => self.take(tier, loaded),
                    Err(RecvTimeoutError::Timeout) => break,
                    // The thread that reads has panicked.
                    Err(RecvTimeoutError::Disconnected) => {
                        self.release(|held| held.place.tier == tier, false);
                        break;
                    }
                }
            }
        }
    }

    /// Submits the requests for which `is_due` holds.
    fn release(&mut self, is_due: impl Fn(&Held<'s>) -> bool, is_there: bool) {
        let due: Vec<Held<'s>> = self.held.extract_if(.., |held| is_due(held)).collect();
        for held in due {
            if is_there {
                self.tiers[held.place.tier].hit(held.gain);
            }
            let Held {
                checked,
                requested,
                dropped,
                backlog,
                sink,
                ..
            } = held;
            self.worker
                .submit(checked, requested, dropped, backlog, sink);
        }
    }

    /// Writes the prefixes that the worker has stored, and marks those that it has used.
    fn write(&mut self) {
        for prefix in self.worker.prefixes().announced() {
            for tier in &self.tiers {
                tier.keep(self.model, &prefix);
            }
        }
        // The announced states have held pages until now.
        self.worker.prefixes().trim();
    }
}

impl<'s> Decode<'s> for Tiered<'_, 's> {
    fn submit(
        &mut self,
        checked: Checked,
        requested: Instant,
        dropped: CancelToken,
        backlog: Option<Arc<Queue>>,
        sink: Sink<'s>,
    ) {
        // The tiers have prefixes of the model without adapters.
        let longer = match &checked.held {
            None => self.longer(checked.ids()),
            Some(_) => None,
        };
        if let Some((place, gain)) = longer
            && (self.held.iter().any(|held| held.place == place)
                || self.tiers[place.tier].begin(place.key))
        {
            self.held.push(Held {
                place,
                gain,
                checked,
                requested,
                dropped,
                backlog,
                sink,
            });
            return;
        }
        self.worker
            .submit(checked, requested, dropped, backlog, sink);
    }

    fn advance(&mut self) {
        if !self.held.is_empty() {
            // The worker ends a request that was cancelled.
            self.release(|held| held.dropped.is_cancelled(), false);
            let wait = match self.worker.is_idle() {
                true => WAIT,
                false => Duration::ZERO,
            };
            self.receive(wait);
        }
        if !self.worker.is_idle() {
            self.worker.advance();
            self.write();
        }
    }

    fn cancel_all(&mut self) {
        self.release(|_| true, false);
        self.worker.cancel_all();
        self.write();
    }

    fn fail_lost(&mut self) {
        self.release(|_| true, false);
        self.worker.fail_lost();
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.worker.is_idle()
    }

    fn is_stalled(&self) -> bool {
        self.worker.is_stalled()
    }

    fn load(&self) -> EngineLoad {
        let load = self.worker.load();
        let of = |survives: bool| {
            let tier = self.tiers.iter().find(|tier| tier.survives() == survives);
            tier.map(PrefixTier::load).unwrap_or_default()
        };
        EngineLoad {
            waiting: load.waiting + self.held.len(),
            prefix_dir: of(true),
            prefix_host: of(false),
            ..load
        }
    }
}
