//! The server's state, which all handlers share.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use tokio::sync::watch;

use super::settings::ServeOptions;
use crate::engine::{Engine, EngineLoad};
use crate::model::LoadedModel;
use crate::model::frontend::Frontend;
use crate::request::generation::GenerateOptions;
use crate::serve::http::error::ApiError;
use crate::serve::http::guard::Keys;
use crate::serve::http::metrics::ServerMetrics;
use crate::serve::http::room::Room;
use crate::text::chat::reply::ReplyFormat;
use crate::text::infill::Infill;

/// The state of the server, shared by all handlers.
pub(super) type Shared = Arc<App>;

/// The state of the server.
pub(super) struct App {
    pub(super) settings: ServeOptions,
    pub(super) keys: Arc<Keys>,
    pub(super) metrics: ServerMetrics,
    pub(super) room: Room,
    loaded: OnceLock<Loaded>,
    is_draining: AtomicBool,
    /// The number of requests in progress.
    active: watch::Sender<usize>,
    /// When the server was started, in seconds since 1970.
    pub(super) created: u64,
}

/// The model that a request asks for.
#[derive(Clone, Debug)]
pub(super) struct Served {
    /// The name of the model in the answer.
    pub(super) name: String,
    pub(super) adapter: Option<String>,
}

/// The engine and its settings, once the model is loaded.
pub(super) struct Loaded {
    pub(super) engine: Engine,
    /// Options for the parameters that a request does not give.
    pub(super) defaults: GenerateOptions,
    reply_format: OnceLock<ReplyFormat>,
    infill: OnceLock<Option<Infill>>,
    /// The texts that break repetitions of the last request with such texts, and their tokens.
    breakers: Mutex<(Vec<String>, BTreeSet<u32>)>,
}

/// A step of the engine that takes longer counts as stuck.
const STUCK: Duration = Duration::from_secs(60);

impl App {
    pub(super) fn new(settings: ServeOptions, keys: Arc<Keys>) -> Self {
        Self {
            keys,
            metrics: ServerMetrics::default(),
            room: Room::default(),
            loaded: OnceLock::new(),
            is_draining: AtomicBool::new(false),
            active: watch::Sender::new(0),
            created: now(),
            settings,
        }
    }

    /// Stores the engine.
    pub(super) fn set_loaded(&self, loaded: Loaded) {
        // A server loads one model, once.
        let _ = self.loaded.set(loaded);
    }

    /// The engine, whether or not it still takes requests.
    pub(super) fn loaded(&self) -> Option<&Loaded> {
        self.loaded.get()
    }

    /// The engine, for a new request.
    ///
    /// # Errors
    /// The model is loading, the server is draining, or the engine has ended.
    pub(super) fn ready(&self) -> Result<&Loaded, ApiError> {
        if self.is_draining() {
            return Err(ApiError::later(10, "the server is shutting down"));
        }
        let Some(loaded) = self.loaded.get() else {
            return Err(ApiError::later(5, "the model is loading"));
        };
        if !loaded.engine.is_alive() {
            return Err(ApiError::later(10, "the engine has ended"));
        }
        Ok(loaded)
    }

    /// Whether the engine makes no progress although there is work.
    pub(super) fn is_stuck(&self) -> bool {
        let loaded = self.loaded.get();
        loaded.is_some_and(|loaded| is_stuck(&loaded.engine.load()))
    }

    /// Refuses new requests from now on.
    pub(super) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
    }

    /// Counts a request that has arrived.
    pub(super) fn enter(&self) {
        self.active.send_modify(|active| *active += 1);
    }

    /// Counts a request that has ended.
    pub(super) fn leave(&self) {
        self.active.send_modify(|active| *active -= 1);
    }

    /// Waits until no request is in progress.
    pub(super) async fn is_idle(&self) {
        // The sender is a field of `self`, so the wait cannot fail.
        let _ = self
            .active
            .subscribe()
            .wait_for(|active| *active == 0)
            .await;
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// The names of adapters.
    pub(super) fn adapters(&self) -> impl Iterator<Item = &str> {
        let adapters = self.settings.engine.adapters.iter();
        adapters.map(|(name, _)| name.as_str())
    }

    /// The model with the name that a request gives.
    ///
    /// # Errors
    /// Status 404; the message lists the names.
    pub(super) fn served(&self, asked: Option<&str>) -> Result<Served, ApiError> {
        let names = &self.settings.names;
        let asked = match asked {
            None | Some("" | "default") => &names[0],
            Some(asked) => asked,
        };
        let adapter = self.adapters().find(|name| *name == asked);
        if adapter.is_none() && !names.iter().any(|name| name == asked) {
            let known: Vec<&str> = names
                .iter()
                .map(String::as_str)
                .chain(self.adapters())
                .collect();
            let message = format!(
                "there is no model {asked:?} here; there is {}",
                known.join(", ")
            );
            return Err(ApiError::new(StatusCode::NOT_FOUND, message)
                .with_code("model_not_found")
                .with_param("model"));
        }
        Ok(Served {
            name: asked.to_owned(),
            adapter: adapter.map(str::to_owned),
        })
    }

    /// Runs a computation with the model between steps of the rows. `begin` returns a function that
    /// computes one piece with each call, and returns the result with the last piece. If the client
    /// disconnects, the computation ends early.
    ///
    /// # Errors
    /// The engine has ended, or the computation has panicked.
    pub(super) async fn in_pieces<T, P>(
        &self,
        served: &Served,
        begin: impl FnOnce(&LoadedModel) -> P + Send + 'static,
    ) -> Result<T, ApiError>
    where
        T: Send + 'static,
        P: FnMut(&LoadedModel) -> Option<T> + 'static,
    {
        let (send, receive) = tokio::sync::oneshot::channel();
        let adapter = served.adapter.as_deref();
        self.ready()?.engine.run_in_pieces(adapter, move |model| {
            let mut pieces = begin(model);
            let mut send = Some(send);
            move |model: &LoadedModel| {
                if send.as_ref().is_none_or(|send| send.is_closed()) {
                    return ControlFlow::Break(());
                }
                let Some(result) = pieces(model) else {
                    return ControlFlow::Continue(());
                };
                let _ = send.take().map(|send| send.send(result));
                ControlFlow::Break(())
            }
        })?;
        receive.await.map_err(|_| ApiError::internal())
    }
}

impl Loaded {
    pub(super) fn new(engine: Engine, defaults: GenerateOptions) -> Self {
        Self {
            engine,
            defaults,
            reply_format: OnceLock::new(),
            infill: OnceLock::new(),
            breakers: Mutex::default(),
        }
    }

    /// How the model writes reasoning and calls of tools.
    ///
    /// # Errors
    /// There is no tokenizer or no chat template.
    pub(super) fn reply_format(&self) -> Result<&ReplyFormat, ApiError> {
        if let Some(format) = self.reply_format.get() {
            return Ok(format);
        }
        let frontend = self.frontend();
        let format = ReplyFormat::detect(frontend.chat_template()?, frontend.tokenizer()?);
        Ok(self.reply_format.get_or_init(|| format))
    }

    /// The tokens that contain one of these texts.
    ///
    /// # Errors
    /// There is no tokenizer.
    pub(super) fn breakers(&self, texts: Vec<String>) -> Result<BTreeSet<u32>, ApiError> {
        let lock = || self.breakers.lock().unwrap_or_else(PoisonError::into_inner);
        if lock().0 == texts {
            return Ok(lock().1.clone());
        }
        let tokenizer = self.frontend().tokenizer()?;
        let contains = |bytes: &[u8], text: &str| {
            let mut windows = bytes.windows(text.len());
            windows.any(|window| window == text.as_bytes())
        };
        let vocab = self.frontend().info().vocab.unsigned_abs();
        let ids: BTreeSet<u32> = (0..vocab)
            .filter(|&id| {
                let bytes = tokenizer.token_bytes(id).unwrap_or_default();
                texts.iter().any(|text| contains(&bytes, text))
            })
            .collect();
        *lock() = (texts, ids.clone());
        Ok(ids)
    }

    /// How the model fills a gap in a text, and the tokens that end the filled text. `param` is the
    /// parameter that asks for it.
    ///
    /// # Errors
    /// There is no tokenizer, or its vocabulary has no marks of a gap.
    pub(super) fn infill(&self, param: &str) -> Result<(&Infill, &[u32]), ApiError> {
        let tokenizer = self.frontend().tokenizer()?;
        let infill = self.infill.get_or_init(|| Infill::detect(tokenizer));
        let infill = infill.as_ref().ok_or_else(|| {
            let message = format!(
                "{param}: the model's vocabulary has no marks of a gap (such as <|fim_prefix|>), so it fills none"
            );
            ApiError::bad(param, message)
        })?;
        Ok((infill, infill.ends()))
    }

    pub(super) fn frontend(&self) -> &Frontend {
        self.engine.frontend()
    }
}

fn is_stuck(load: &EngineLoad) -> bool {
    load.prefilling + load.decoding > 0 && load.since_step > STUCK
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_with_work_and_no_step_for_a_minute_is_stuck() {
        let load = |prefilling, decoding, seconds| EngineLoad {
            prefilling,
            decoding,
            since_step: Duration::from_secs(seconds),
            ..Default::default()
        };
        assert!(is_stuck(&load(1, 0, 61)) && is_stuck(&load(0, 1, 61)));
        assert!(!is_stuck(&load(0, 0, 9999)) && !is_stuck(&load(2, 2, 59)));
    }
}
