//! Loads and unloads the models of a pool, on threads of their own. Sleep and waking.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;

use super::slot::LoadProgress;
use super::{About, Phase, Pool, PoolEvent, State};
use crate::backend::rank_here;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result as Outcome};
use crate::request::generation::GenerateOptions;
use crate::request::sampling::SamplingParams;
use crate::serve::http::error::{ApiError, NOT_LOADED};
use crate::serve::keep_alive::KeepAlive;
use crate::serve::state::Loaded;
use crate::text::chat::reply::ReplyFormat;

impl Pool {
    /// Marks a model as loading, and loads it on another thread.
    pub(super) fn begin_load(self: &Arc<Self>, state: &mut State, index: usize) {
        self.mark_loading(state, index);
        let pool = self.clone();
        tokio::spawn(async move {
            let (loader, begun) = (pool.clone(), Instant::now());
            let loaded = tokio::task::spawn_blocking(move || loader.load(index)).await;
            let loaded = loaded.unwrap_or_else(|error| Err(failed("loading has panicked", error)));
            // Its failure is kept in the slot, for the requests that wait.
            let _ = pool.end_load(index, loaded, begun.elapsed());
        });
    }

    fn mark_loading(&self, state: &mut State, index: usize) {
        let slot = &mut state.slots[index];
        slot.phase = Phase::Loading;
        slot.loads += 1;
        slot.failure = None;
        slot.keep_alive = None;
        slot.progress = Arc::default();
        let name = self.name(index);
        let bytes = self.bytes(state, index);
        self.tell(&PoolEvent::Loading { name, bytes });
    }

    /// Loads a model at the start of the server.
    ///
    /// # Errors
    /// Those of loading it.
    pub(in super::super) async fn load_at_start(self: &Arc<Self>, index: usize) -> Outcome<()> {
        self.mark_loading(&mut self.state(), index);
        let (loader, begun) = (self.clone(), Instant::now());
        let loaded = tokio::task::spawn_blocking(move || loader.load(index)).await;
        let loaded = loaded.map_err(|error| failed("loading has panicked", error))?;
        self.end_load(index, loaded, begun.elapsed())
    }

    /// The models to load at the start.
    pub(in super::super) fn at_start(&self) -> Vec<usize> {
        (0..self.len())
            .filter(|&index| self.models[index].is_pinned || !self.options.on_demand)
            .collect()
    }

    /// Loads a model and starts its engine.
    fn load(&self, index: usize) -> Outcome<Loaded> {
        self.read(index).inspect_err(|_| free_buffers())
    }

    /// The model is read on the engine's thread.
    fn read(&self, index: usize) -> Outcome<Loaded> {
        let progress: Arc<LoadProgress> = self.state().slots[index].progress.clone();
        let load = self.models[index].loader()?;
        let mut options = self.settings.engine.clone();
        options.adapters = self.adapters.folders();
        // Models that come later need memory too.
        options.limits.models_bytes = self.options.bytes.map(|limit| {
            let state = self.state();
            let all = (0..self.len()).map(|at| self.bytes(&state, at));
            limit.min(all.sum())
        });
        let load = move || load(&mut |done, total| progress.set(done, total));
        let engine = Engine::start(load, options)?;
        let bytes = engine.info().weight_bytes;
        self.state().slots[index].bytes = Some(bytes);
        match self.options.bytes {
            Some(limit) if bytes > limit => Err(Error::new(
                ErrorKind::Argument,
                format!("it has {bytes} bytes of weights, and at most {limit} may be in memory"),
            )),
            _ => self.loaded(engine),
        }
    }

    /// The engine, with defaults for the parameters that requests do not give: flags, then
    /// generation_config.json, then OpenAI's defaults.
    fn loaded(&self, engine: Engine) -> Outcome<Loaded> {
        let frontend = engine.frontend();
        let openai = GenerateOptions {
            sampling: SamplingParams {
                temperature: 1.0,
                ..Default::default()
            },
            ..Default::default()
        };
        let published = frontend.generation_defaults()?.over(&openai);
        let defaults = self.settings.defaults.clone().over(&published);
        defaults.check()?;
        // A template that cannot be read is reported at the start, not only to the first
        // conversation. Conversations with an encoder are not expected.
        if frontend.check_generates().is_ok()
            && let Err(error) = frontend.chat_template()
        {
            tracing::warn!("conversations are refused: {error}");
        }
        // Of several models some may reason.
        if self.settings.reasoning_budget.is_some() && !self.options.on_demand {
            let format = ReplyFormat::detect(frontend.chat_template()?, frontend.tokenizer()?);
            if !format.has_reasoning() {
                let message = "reasoning_budget: the model has no marks of reasoning";
                return Err(Error::new(ErrorKind::Argument, message));
            }
        }
        // Computes the data that all grammars share, which takes seconds for a large vocabulary,
        // before the first request with a grammar.
        let shared = frontend.clone();
        std::thread::spawn(move || shared.prepare_grammars());
        Ok(Loaded::new(engine, defaults))
    }

    /// Stores a model that was loaded, or why it could not be.
    fn end_load(
        self: &Arc<Self>,
        index: usize,
        loaded: Outcome<Loaded>,
        time: Duration,
    ) -> Outcome<()> {
        let name = self.name(index);
        let ended = match loaded {
            Ok(loaded) => {
                let about = Arc::new(About::of_loaded(&loaded));
                let info = loaded.frontend().info().clone();
                let limits = loaded.engine.limits().clone();
                let mut state = self.state();
                let slot = &mut state.slots[index];
                slot.about = Some(about);
                slot.used = Instant::now();
                slot.phase = Phase::Ready(Arc::new(loaded));
                self.unload_beyond_limit(&mut state, index);
                drop(state);
                self.tell(&PoolEvent::Ready {
                    name,
                    info: &info,
                    limits: &limits,
                    time,
                });
                Ok(())
            }
            Err(error) => {
                self.tell(&PoolEvent::Failed {
                    name,
                    error: &error,
                });
                let refused = self.refusal(index, &error);
                let mut state = self.state();
                let slot = &mut state.slots[index];
                slot.phase = Phase::Unloaded;
                slot.failure = Some((slot.loads, refused));
                Err(error)
            }
        };
        self.has_changed();
        ended
    }

    /// The error of requests whose model cannot be loaded. It does not say where the server's files
    /// are.
    fn refusal(&self, index: usize, error: &Error) -> ApiError {
        let model = &self.models[index];
        let refused = ApiError::from(error.copy());
        let message = model.without_folder(&error.to_string());
        let message = format!("model {:?} cannot be loaded: {message}", self.name(index));
        ApiError {
            message,
            ..refused.with_code(NOT_LOADED).with_param("model")
        }
    }

    /// Unloads idle models while all together exceed the limit, because a model is larger in memory
    /// than its files.
    fn unload_beyond_limit(self: &Arc<Self>, state: &mut State, index: usize) {
        let Some(limit) = self.options.bytes else {
            return;
        };
        let mut used = self.bytes_without(state, index) + self.bytes(state, index);
        for at in self.idle(state) {
            if used > limit && at != index {
                used -= self.bytes(state, at);
                self.begin_unload(state, at, "another model needs its memory");
            }
        }
    }

    /// Marks a model without requests as unloading, and unloads it on another thread.
    pub(super) fn begin_unload(
        self: &Arc<Self>,
        state: &mut State,
        index: usize,
        why: &'static str,
    ) {
        let slot = &mut state.slots[index];
        let loaded = match std::mem::replace(&mut slot.phase, Phase::Unloading) {
            Phase::Ready(loaded) => loaded,
            other => {
                slot.phase = other;
                return;
            }
        };
        let pool = self.clone();
        tokio::task::spawn_blocking(move || {
            unload(loaded);
            let name = pool.name(index);
            pool.tell(&PoolEvent::Unloaded { name, why });
            pool.state().slots[index].phase = Phase::Unloaded;
            pool.has_changed();
        });
    }

    /// Unloads a model, and waits until its memory is free. Does nothing if it is not in memory.
    ///
    /// # Errors
    /// It is pinned, the only model of the server, or has requests in progress.
    pub(in super::super) async fn unload(self: &Arc<Self>, index: usize) -> Result<(), ApiError> {
        self.may_unload(index)?;
        let name = self.name(index);
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            {
                let mut state = self.state();
                let slot = &state.slots[index];
                let busy = slot.leases + slot.waiting;
                match slot.phase {
                    Phase::Unloaded => return Ok(()),
                    Phase::Unloading => {}
                    _ if busy > 0 => {
                        let message = format!("model {name:?} has {busy} requests in progress");
                        return Err(ApiError::new(StatusCode::CONFLICT, message));
                    }
                    Phase::Loading => {}
                    Phase::Ready(_) => {
                        self.begin_unload(&mut state, index, "a request asked for it")
                    }
                }
            }
            // The sender is a field of `self`, so the wait cannot fail.
            let _ = changed.changed().await;
        }
    }

    /// Unloads a model as soon as it has no requests: its time without them is over.
    ///
    /// # Errors
    /// It is pinned, or the only model of the server.
    pub(in super::super) fn let_go(self: &Arc<Self>, index: usize) -> Result<(), ApiError> {
        self.may_unload(index)?;
        let now = KeepAlive::For(Duration::ZERO);
        self.state().slots[index].keep_alive = Some(now);
        self.has_changed();
        Ok(())
    }

    fn may_unload(&self, index: usize) -> Result<(), ApiError> {
        let message = match () {
            () if !self.options.on_demand => {
                "the server keeps its only model in memory; POST /sleep frees it".to_owned()
            }
            () if self.models[index].is_pinned => format!(
                "model {:?} is pinned; POST /sleep frees its memory",
                self.name(index)
            ),
            () => return Ok(()),
        };
        Err(ApiError::bad("model", message))
    }

    /// Refuses new requests, waits for those in progress, and frees the memory of all models, the
    /// pinned ones too.
    ///
    /// # Errors
    /// A model could not be loaded again.
    pub(in super::super) async fn sleep(self: &Arc<Self>) -> Result<(), ApiError> {
        if rank_here().is_some() || self.models.iter().any(|model| !model.is_loadable()) {
            let message = "the server cannot sleep, because it cannot load its model again";
            return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, message));
        }
        {
            let mut state = self.state();
            let awake = |slot: &super::Slot| matches!(slot.phase, Phase::Ready(_) | Phase::Loading);
            let awake: Vec<usize> = (0..self.len())
                .filter(|&at| awake(&state.slots[at]))
                .collect();
            state.asleep.get_or_insert(awake);
        }
        self.has_changed();
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            {
                let mut state = self.state();
                // Another request has woken the server.
                if state.asleep.is_none() {
                    return Err(ApiError::new(StatusCode::CONFLICT, "the server was woken"));
                }
                for at in 0..self.len() {
                    if state.slots[at].is_idle() {
                        self.begin_unload(&mut state, at, "the server sleeps");
                    }
                }
                let is_free = |slot: &super::Slot| matches!(slot.phase, Phase::Unloaded);
                if state.slots.iter().all(is_free) {
                    return Ok(());
                }
            }
            let _ = changed.changed().await;
        }
    }

    pub(in super::super) fn is_asleep(&self) -> bool {
        self.state().asleep.is_some()
    }

    /// Accepts requests again, and loads the models that were in memory before the sleep.
    ///
    /// # Errors
    /// One cannot be loaded.
    pub(in super::super) async fn wake_up(self: &Arc<Self>) -> Result<(), ApiError> {
        let models = self.state().asleep.take();
        let models = models.unwrap_or_else(|| self.at_start());
        self.has_changed();
        let mut result = Ok(());
        for index in models {
            let brought = self.acquire(index, None).await;
            result = result.and(brought.map(drop));
        }
        result
    }
}

/// Frees a model's memory. Whoever still reads its counters ends within moments.
fn unload(mut loaded: Arc<Loaded>) {
    loop {
        match Arc::try_unwrap(loaded) {
            Ok(whole) => {
                drop(whole);
                break;
            }
            Err(shared) => loaded = shared,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    free_buffers();
}

/// Gives back the memory of arrays that are gone.
fn free_buffers() {
    if let Err(error) = mlx_core::memory::clear_cache() {
        tracing::warn!("free buffers stay allocated: {error}");
    }
}

fn failed(message: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Io, message).with_source(error)
}
