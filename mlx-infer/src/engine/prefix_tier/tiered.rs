//! A decode loop whose stored prefixes are also in tiers: in the memory of the host, or in files.
//!
//! A request that can start from a longer prefix in a tier than in pages is held back until that
//! prefix is read and put into pages. Other requests are computed meanwhile.
//!
//! Ranks that share a model keep the states of their own heads. A prefix is used if every rank has it, and put into
//! pages in the same round by all.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use mlx_nn::shard::Ranks;

use super::{Loaded, PrefixTier};
use crate::engine::decode::Decode;
use crate::engine::handle::Queue;
use crate::engine::load::EngineLoad;
use crate::engine::prefixes::{MIN_TOKENS, PrefixKind};
use crate::engine::prompt_cache::{Embedding, PromptState};
use crate::engine::ranks::gathered;
use crate::engine::state::Sink;
use crate::engine::worker::Worker;
use crate::model::LoadedModel;
use crate::model::checked::Checked;
use crate::model::memory::Pools;
use crate::request::cancel::CancelToken;
use crate::request::limits::Limits;

/// How long the thread waits for a file if there is nothing else to do. It must hear of commands.
const WAIT: Duration = Duration::from_millis(5);

/// What a rank tells of a prefix: it waits for it, has it, or cannot use it.
const WAITS: char = 'w';
const HAS: char = 'h';
const LACKS: char = 'l';

/// A worker, and the tiers of its prefixes, the fastest first.
pub(crate) struct Tiered<'m, 's> {
    worker: Worker<'m, 's>,
    model: &'m LoadedModel,
    tiers: Vec<PrefixTier>,
    held: Vec<Held<'s>>,
    /// What this rank has read of prefixes for which another rank may still wait; `None` if it cannot be used.
    read: Vec<(Place, Option<ReadPrefix>)>,
}

/// The tokens and states of a prefix that was read.
type ReadPrefix = (Vec<u32>, PromptState);

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
            read: Vec::new(),
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

    fn ranks(&self) -> Ranks {
        self.model.options().ranks
    }

    /// The prefix that [`longer`](Self::longer) has found, if every rank has found the same one.
    fn found_by_all(&self, own: Option<(Place, usize)>) -> Option<(Place, usize)> {
        if self.ranks().size() == 1 || self.tiers.is_empty() {
            return own;
        }
        let told = own.map(|(Place { tier, key }, gain)| format!("{tier} {key} {gain}"));
        let told = told.unwrap_or_default();
        // An error is also one of the next round.
        let all = gathered(self.ranks(), &told).ok()?;
        own.filter(|_| all.iter().all(|other| *other == told))
    }

    /// Takes a prefix that was read.
    fn take(&mut self, tier: usize, loaded: Loaded) {
        let key = loaded.key;
        let read = loaded
            .image
            .and_then(|(name, image)| self.tiers[tier].state(self.model, name, image));
        self.settle(Place { tier, key }, read);
    }

    /// Puts a prefix into pages and submits the requests that waited for it; on several ranks, once all have read it.
    fn settle(&mut self, place: Place, read: Option<ReadPrefix>) {
        match self.ranks().size() {
            1 => self.put(place, read),
            _ => self.read.push((place, read)),
        }
    }

    /// Puts a prefix into pages, if it can be used, and submits the requests that waited for it.
    fn put(&mut self, place: Place, read: Option<ReadPrefix>) {
        if let Some((ids, state)) = &read {
            self.worker.prefixes().put(ids, state);
        }
        self.release(|held| held.place == place, read.is_some());
    }

    /// [Puts](Self::put) the prefixes for which no rank waits any more. Those that a rank cannot use are used by none.
    fn put_what_all_have(&mut self) {
        let mut places: Vec<Place> = Vec::new();
        for held in &self.held {
            if !places.contains(&held.place) {
                places.push(held.place);
            }
        }
        let state = |place: &Place| match self.read.iter().find(|(read, _)| read == place) {
            None => WAITS,
            Some((_, Some(_))) => HAS,
            Some((_, None)) => LACKS,
        };
        let own: String = places.iter().map(state).collect();
        // An error is also one of the next round.
        let Ok(all) = gathered(self.ranks(), &own) else {
            return;
        };
        for (at, place) in places.into_iter().enumerate() {
            let states = || all.iter().map(|states| states.chars().nth(at));
            if states().any(|state| state == Some(WAITS)) {
                continue;
            }
            let found = self.read.iter().position(|(read, _)| *read == place);
            let read = found.and_then(|found| self.read.swap_remove(found).1);
            self.put(
                place,
                read.filter(|_| states().all(|state| state == Some(HAS))),
            );
        }
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
                        self.give_up(tier);
                        break;
                    }
                }
            }
        }
    }

    /// Submits the requests that wait for prefixes of a tier from which none will come.
    fn give_up(&mut self, tier: usize) {
        let places: Vec<Place> = (self.held.iter().map(|held| held.place))
            .filter(|place| place.tier == tier)
            .filter(|place| self.read.iter().all(|(read, _)| read != place))
            .collect();
        for place in places {
            self.settle(place, None);
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
            None => {
                let own = self.longer(checked.ids());
                self.found_by_all(own)
            }
            Some(_) => None,
        };
        // A rank whose tier has ended meanwhile waits with the others, and gives up with them.
        if let Some((place, gain)) = longer
            && (self.held.iter().any(|held| held.place == place)
                || self.tiers[place.tier].begin(place.key)
                || self.ranks().size() > 1)
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
            let is_alone = self.ranks().size() == 1;
            if is_alone {
                // The worker ends a request that was cancelled.
                self.release(|held| held.dropped.is_cancelled(), false);
            }
            let wait = match self.worker.is_idle() {
                true => WAIT,
                false => Duration::ZERO,
            };
            self.receive(wait);
            if !is_alone {
                self.put_what_all_have();
            }
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
