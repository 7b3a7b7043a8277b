//! The models of a server: which of them are in memory, and which requests wait for one.
//!
//! Each model in memory has an [`Engine`](crate::Engine) with a thread of its own, which also loads
//! it. A request holds a [`Lease`] of its model from its arrival to the end of its answer, and a
//! model with leases stays in memory.

mod about;
mod lease;
mod slot;
mod source;
mod work;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::http::StatusCode;
use tokio::sync::watch;

pub(super) use self::about::About;
pub(super) use self::lease::{Lease, Waiting};
pub(super) use self::slot::{ModelStatus, Phase, Slot};
pub use self::source::{PoolEvent, PoolOptions, PooledModel};

use self::source::{OnPoolEvent, PoolModel};
use super::adapters::ServedAdapters;
use super::keep_alive::KeepAlive;
use super::settings::ServeOptions;
use crate::engine::Engine;
use crate::error::{Error, Result as Outcome};
use crate::serve::http::error::ApiError;

/// The models of a server.
pub(super) struct Pool {
    models: Vec<PoolModel>,
    state: Mutex<State>,
    /// Changes with each change of the state for which a request may wait.
    changed: watch::Sender<()>,
    options: PoolOptions,
    settings: ServeOptions,
    /// The adapters of the only model.
    adapters: ServedAdapters,
    on_event: Box<OnPoolEvent>,
}

struct State {
    /// One for each model.
    slots: Vec<Slot>,
    /// The models that were in memory when the server fell asleep.
    asleep: Option<Vec<usize>>,
    /// Whether the server has ended the requests in progress.
    has_ended: bool,
}

/// What a request for a model has to do next.
enum Next {
    Take(Lease),
    Wait,
}

impl Pool {
    /// # Errors
    /// There is no model, a name is empty or given twice, or several models are not loaded on
    /// demand.
    pub(super) fn new(
        models: Vec<PooledModel>,
        options: PoolOptions,
        settings: ServeOptions,
        on_event: Box<OnPoolEvent>,
    ) -> Outcome<Arc<Self>> {
        let models = source::merged(models)?;
        if models.len() != 1 && !options.on_demand {
            return Err(Error::argument("several models are loaded on demand only"));
        }
        let has_adapters = !settings.engine.adapters.is_empty() || settings.adapters_dir.is_some();
        if models.len() != 1 && has_adapters {
            return Err(Error::argument("adapters are for a server with one model"));
        }
        let slots = models.iter().map(|_| Slot::default()).collect();
        let pool = Self {
            models,
            state: Mutex::new(State {
                slots,
                asleep: None,
                has_ended: false,
            }),
            changed: watch::Sender::new(()),
            options,
            adapters: ServedAdapters::new(&settings.engine.adapters),
            settings,
            on_event,
        };
        let pinned: usize = (0..pool.models.len())
            .filter(|&index| pool.models[index].is_pinned)
            .map(|index| pool.models[index].file_bytes())
            .sum();
        match pool.options.bytes {
            Some(limit) if pinned > limit => Err(Error::argument(format!(
                "the pinned models have {pinned} bytes of weights, and at most {limit} may be in memory"
            ))),
            _ => Ok(Arc::new(pool)),
        }
    }

    /// The adapters of the only model.
    pub(super) fn adapters(&self) -> &ServedAdapters {
        &self.adapters
    }

    /// Whether models are loaded when requests name them.
    pub(super) fn is_on_demand(&self) -> bool {
        self.options.on_demand
    }

    /// The number of models.
    pub(super) fn len(&self) -> usize {
        self.models.len()
    }

    /// The names of a model.
    pub(super) fn names_of(&self, index: usize) -> &[String] {
        &self.models[index].names
    }

    /// All names, each with the index of its model.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, usize)> {
        let models = self.models.iter().enumerate();
        models.flat_map(|(index, model)| model.names.iter().map(move |name| (name.as_str(), index)))
    }

    /// The counters of a model's requests.
    pub(super) fn model(&self, index: usize) -> &PoolModel {
        &self.models[index]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets waiting requests look again.
    fn has_changed(&self) {
        self.changed.send_replace(());
    }

    fn tell(&self, event: &PoolEvent<'_>) {
        (self.on_event)(event);
    }

    fn name(&self, index: usize) -> &str {
        &self.models[index].names[0]
    }

    /// A lease of a model that is in memory; `None` if a request has to wait for it.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). A server with one model lets no request wait.
    pub(super) fn try_acquire(
        self: &Arc<Self>,
        index: usize,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Option<Lease>, ApiError> {
        let mut state = self.state();
        self.check(&state, index)?;
        Ok(self.take(&mut state, index, keep_alive))
    }

    /// Whether a request for a model may be answered or wait.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire).
    pub(super) fn accepts(&self, index: usize) -> Result<(), ApiError> {
        self.check(&self.state(), index)
    }

    fn check(&self, state: &State, index: usize) -> Result<(), ApiError> {
        if state.has_ended {
            return Err(ApiError::later(10, "the server is shutting down"));
        }
        if state.asleep.is_some() {
            let message = "the server is asleep; POST /wake_up wakes it";
            return Err(ApiError::later(10, message));
        }
        let slot = &state.slots[index];
        if self.options.on_demand {
            return Ok(());
        }
        Err(match (&slot.phase, &slot.failure) {
            (Phase::Ready(loaded), _) if loaded.engine.is_alive() => return Ok(()),
            (Phase::Ready(_), _) => ApiError::later(10, "the engine has ended"),
            (Phase::Unloaded, Some((_, error))) => error.clone(),
            _ => ApiError::later(5, "the model is loading"),
        })
    }

    /// A lease of a model whose engine takes requests.
    fn take(
        self: &Arc<Self>,
        state: &mut State,
        index: usize,
        keep_alive: Option<KeepAlive>,
    ) -> Option<Lease> {
        let slot = &mut state.slots[index];
        match &slot.phase {
            Phase::Ready(loaded) if loaded.engine.is_alive() => {
                let loaded = loaded.clone();
                slot.leases += 1;
                slot.used = Instant::now();
                // The only model of a server stays.
                if self.options.on_demand {
                    slot.keep_alive = keep_alive.or(slot.keep_alive);
                }
                Some(Lease::new(self, index, loaded))
            }
            _ => None,
        }
    }

    /// A lease of a model. If the model is not in memory, it is loaded, after others are unloaded
    /// that have no requests in progress, the least recently used first.
    ///
    /// # Errors
    /// The model cannot be loaded, the server is asleep, or other models leave no room for long.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        index: usize,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Lease, ApiError> {
        let most = self.settings.engine.max_requests;
        let waiting = Waiting::enter(self, index, most)?;
        let until = tokio::time::Instant::now() + self.options.patience;
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            if let Next::Take(lease) = self.look(&waiting, keep_alive)? {
                return Ok(lease);
            }
            let timed = tokio::time::timeout_at(until, changed.changed()).await;
            // A model that is being loaded has its room.
            if timed.is_err() {
                if !self.is_on_its_way(index) {
                    return Err(self.no_room(index));
                }
                let _ = changed.changed().await;
            }
        }
    }

    /// Whether a model is being loaded.
    fn is_on_its_way(&self, index: usize) -> bool {
        matches!(self.state().slots[index].phase, Phase::Loading)
    }

    /// The error of a request that has waited long for other models to be unloaded.
    fn no_room(&self, index: usize) -> ApiError {
        let state = self.state();
        let busy = (0..self.models.len()).filter(|&at| state.slots[at].leases > 0);
        let busy: Vec<&str> = busy.map(|at| self.name(at)).collect();
        let message = format!(
            "{} needs {} bytes, at most {} may be in memory, and {} have requests in progress",
            self.name(index),
            self.bytes(&state, index),
            self.options.bytes.unwrap_or(usize::MAX),
            busy.join(", ")
        );
        ApiError::later(30, message)
    }

    /// The bytes of a model's weights: those of its files until it is loaded for the first time.
    fn bytes(&self, state: &State, index: usize) -> usize {
        let known = state.slots[index].bytes;
        known.unwrap_or_else(|| self.models[index].file_bytes())
    }

    /// The bytes of the models that are in memory or on their way, without one.
    fn bytes_without(&self, state: &State, index: usize) -> usize {
        let slots = state.slots.iter().enumerate();
        let others =
            slots.filter(|(at, slot)| *at != index && !matches!(slot.phase, Phase::Unloaded));
        others.map(|(at, _)| self.bytes(state, at)).sum()
    }

    /// Looks after a waiting request: takes the model, or begins what brings it into memory.
    fn look(
        self: &Arc<Self>,
        waiting: &Waiting,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Next, ApiError> {
        let index = waiting.index;
        let mut state = self.state();
        if self.options.on_demand {
            self.check(&state, index)?;
        }
        if let Some(lease) = self.take(&mut state, index, keep_alive) {
            return Ok(Next::Take(lease));
        }
        let slot = &mut state.slots[index];
        if let Some((attempt, error)) = &slot.failure
            && *attempt >= waiting.attempt
        {
            return Err(error.clone());
        }
        match slot.phase {
            Phase::Loading | Phase::Unloading => return Ok(Next::Wait),
            Phase::Ready(_) if slot.leases > 0 => {
                return Err(ApiError::later(10, "the engine has ended"));
            }
            Phase::Ready(_) => {
                self.begin_unload(&mut state, index, "its engine has ended");
                return Ok(Next::Wait);
            }
            Phase::Unloaded => {}
        }
        if self.has_room(&mut state, index)? {
            self.begin_load(&mut state, index);
        }
        Ok(Next::Wait)
    }

    /// Whether there is room for a model. If not, models without requests begin to be unloaded, if
    /// that makes room.
    ///
    /// # Errors
    /// The model is larger than the limit, or than what pinned models leave of it.
    fn has_room(self: &Arc<Self>, state: &mut State, index: usize) -> Result<bool, ApiError> {
        let Some(limit) = self.options.bytes else {
            return Ok(true);
        };
        let needed = self.bytes(state, index);
        let pinned: usize = (0..self.models.len())
            .filter(|&at| at != index && self.models[at].is_pinned)
            .map(|at| self.bytes(state, at))
            .sum();
        if needed + pinned > limit {
            let of_pinned = match pinned {
                0 => String::new(),
                bytes => format!(", of which pinned models take {bytes}"),
            };
            let message = format!(
                "model {:?} has {needed} bytes of weights, and at most {limit} may be in memory{of_pinned}",
                self.name(index)
            );
            return Err(ApiError::new(StatusCode::BAD_REQUEST, message)
                .with_code("model_too_large")
                .with_param("model"));
        }
        let used = self.bytes_without(state, index);
        if used + needed <= limit {
            return Ok(true);
        }
        let slots = state.slots.iter().enumerate();
        let leaving = slots.filter(|(_, slot)| matches!(slot.phase, Phase::Unloading));
        let leaving: usize = leaving.map(|(at, _)| self.bytes(state, at)).sum();
        let mut too_many = (used + needed).saturating_sub(limit + leaving);
        let mut chosen = Vec::new();
        for at in self.idle(state) {
            if too_many == 0 {
                break;
            }
            if at != index {
                too_many = too_many.saturating_sub(self.bytes(state, at));
                chosen.push(at);
            }
        }
        if too_many == 0 {
            for at in chosen {
                self.begin_unload(state, at, "another model needs its memory");
            }
        }
        Ok(false)
    }

    /// The models that can be unloaded, the least recently used first.
    fn idle(&self, state: &State) -> Vec<usize> {
        let mut idle: Vec<usize> = (0..self.models.len())
            .filter(|&at| !self.models[at].is_pinned && state.slots[at].is_idle())
            .collect();
        idle.sort_by_key(|&at| state.slots[at].used);
        idle
    }

    /// Unloads models whose time is over. Returns when the next one's is.
    pub(super) fn expire(self: &Arc<Self>) -> Option<Instant> {
        let mut state = self.state();
        let now = Instant::now();
        let mut next = None::<Instant>;
        for at in self.idle(&state) {
            let slot = &state.slots[at];
            match slot.kept_until(self.options.keep_alive) {
                Some(until) if until <= now => {
                    self.begin_unload(&mut state, at, "no request has come for its time");
                }
                Some(until) => next = Some(next.map_or(until, |next| next.min(until))),
                None => {}
            }
        }
        next
    }

    /// Unloads models whose time is over, until the server ends.
    pub(super) async fn expire_always(self: Arc<Self>) {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let next = self.expire();
            let sleep = async {
                match next {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => {}
                _ = changed.changed() => {}
            }
        }
    }

    /// What lists say about a model.
    pub(super) fn status(&self, index: usize) -> ModelStatus {
        let state = self.state();
        let mut status = state.slots[index].status(self.options.keep_alive);
        status.bytes = self.bytes(&state, index);
        status.is_pinned = self.models[index].is_pinned;
        status
    }

    /// The facts about a model: those of its files until it is loaded for the first time.
    pub(super) fn about(&self, index: usize) -> Arc<About> {
        let known = self.state().slots[index].about.clone();
        known.unwrap_or_else(|| self.models[index].about())
    }

    /// Calls `read` with the engine of a model that is in memory.
    pub(super) fn with_engine<T>(
        &self,
        index: usize,
        read: impl FnOnce(&Engine) -> T,
    ) -> Option<T> {
        match &self.state().slots[index].phase {
            Phase::Ready(loaded) => Some(read(&loaded.engine)),
            _ => None,
        }
    }

    /// Whether an engine has ended that cannot be replaced.
    pub(super) fn has_ended(&self) -> bool {
        let ended = self.with_engine(0, |engine| !engine.is_alive());
        !self.options.on_demand && ended.unwrap_or(false)
    }

    /// Whether the models are in memory that are loaded at the start.
    pub(super) fn is_started(&self) -> bool {
        let state = self.state();
        let mut pinned = self.at_start().into_iter();
        pinned.all(|at| matches!(state.slots[at].phase, Phase::Ready(_)))
    }

    /// Cancels the requests in progress of all models, and those that wait.
    pub(super) fn stop(&self) {
        self.state().has_ended = true;
        self.has_changed();
        for index in 0..self.models.len() {
            self.with_engine(index, Engine::stop);
        }
    }
}
