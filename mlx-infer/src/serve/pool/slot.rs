//! The state of one model of a pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::About;
use crate::serve::http::error::ApiError;
use crate::serve::keep_alive::KeepAlive;
use crate::serve::state::Loaded;

/// Whether a model is in memory.
pub(in super::super) enum Phase {
    Unloaded,
    Loading,
    Ready(Arc<Loaded>),
    Unloading,
}

/// The number of parameters that were read, and their total.
#[derive(Debug, Default)]
pub(in super::super) struct LoadProgress([AtomicUsize; 2]);

impl LoadProgress {
    pub(super) fn set(&self, done: usize, total: usize) {
        self.0[1].store(total, Ordering::Release);
        self.0[0].store(done, Ordering::Release);
    }

    /// From 0 to 1.
    fn share(&self) -> f64 {
        let [done, total] = self.0.each_ref().map(|n| n.load(Ordering::Acquire));
        match total {
            0 => 0.0,
            total => (done as f64 / total as f64).min(1.0),
        }
    }
}

/// The state of one model.
pub(in super::super) struct Slot {
    pub(super) phase: Phase,
    /// Requests in progress, and those that wait for the model.
    pub(super) leases: usize,
    pub(super) waiting: usize,
    pub(super) used: Instant,
    /// That of the last request that gave one.
    pub(super) keep_alive: Option<KeepAlive>,
    /// The bytes of its weights, once it was loaded.
    pub(super) bytes: Option<usize>,
    /// The number of times that it began to load.
    pub(super) loads: u64,
    /// The last attempt to load it that failed, and why.
    pub(super) failure: Option<(u64, ApiError)>,
    pub(super) progress: Arc<LoadProgress>,
    pub(super) about: Option<Arc<About>>,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            phase: Phase::Unloaded,
            leases: 0,
            waiting: 0,
            used: Instant::now(),
            keep_alive: None,
            bytes: None,
            loads: 0,
            failure: None,
            progress: Arc::default(),
            about: None,
        }
    }
}

/// What lists say about a model.
#[derive(Clone, Debug)]
pub(in super::super) struct ModelStatus {
    pub(in super::super) state: &'static str,
    /// From 0 to 1, while it loads.
    pub(in super::super) progress: Option<f64>,
    pub(in super::super) bytes: usize,
    pub(in super::super) is_pinned: bool,
    pub(in super::super) requests: usize,
    pub(in super::super) loads: u64,
    /// Why it could not be loaded.
    pub(in super::super) error: Option<String>,
    /// The time after which it is unloaded, if no request comes.
    pub(in super::super) left: Option<Duration>,
}

impl Slot {
    /// Whether it is in memory, and no request has it or waits for it.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Ready(_)) && self.leases == 0 && self.waiting == 0
    }

    /// When its time without requests is over; `None` if it has no end.
    pub(super) fn kept_until(&self, default: KeepAlive) -> Option<Instant> {
        match self.keep_alive.unwrap_or(default) {
            KeepAlive::For(time) => self.used.checked_add(time),
            KeepAlive::Forever => None,
        }
    }

    pub(super) fn status(&self, default: KeepAlive) -> ModelStatus {
        let (state, error) = match (&self.phase, &self.failure) {
            (Phase::Loading, _) => ("loading", None),
            (Phase::Ready(_), _) => ("loaded", None),
            (Phase::Unloading, _) => ("unloading", None),
            (Phase::Unloaded, None) => ("unloaded", None),
            (Phase::Unloaded, Some((_, error))) => ("failed", Some(error.message.clone())),
        };
        let until = match self.phase {
            Phase::Ready(_) => self.kept_until(default),
            _ => None,
        };
        ModelStatus {
            state,
            progress: matches!(self.phase, Phase::Loading).then(|| self.progress.share()),
            bytes: 0,
            is_pinned: false,
            requests: self.leases + self.waiting,
            loads: self.loads,
            error,
            left: until.map(|until| until.saturating_duration_since(Instant::now())),
        }
    }
}
