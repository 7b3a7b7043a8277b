//! The server's state, which all handlers share.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use tokio::sync::watch;

use super::keep_alive::KeepAlive;
use super::pool::{Lease, Pool};
use super::settings::{DEFAULT, ServeOptions};
use crate::backend::rank_here;
use crate::engine::{Begin, Engine, EngineLoad};
use crate::model::LoadedModel;
use crate::model::frontend::Frontend;
use crate::request::cancel::CancelToken;
use crate::request::generation::GenerateOptions;
use crate::serve::batches::drive::Batches;
use crate::serve::http::background::Background;
use crate::serve::http::error::ApiError;
use crate::serve::http::guard::Keys;
use crate::serve::http::metrics::ServerMetrics;
use crate::serve::http::room::Room;
#[cfg(feature = "otel")]
use crate::serve::http::spans::SpanExporter;
use crate::tasks::work::TextWork;
use crate::text::chat::reply::ReplyFormat;
use crate::text::infill::Infill;

/// The state of the server, shared by all handlers.
pub(super) type Shared = Arc<App>;

/// The state of the server.
pub(super) struct App {
    pub(super) settings: ServeOptions,
    pub(super) keys: Arc<Keys>,
    /// Files and batches, if the server keeps them.
    pub(super) batches: Option<Arc<Batches>>,
    /// The counters of the server; those of requests are with their models.
    pub(super) metrics: ServerMetrics,
    /// Sends traces of requests, if there is a collector.
    #[cfg(feature = "otel")]
    pub(super) spans: Option<SpanExporter>,
    pub(super) room: Room,
    pub(super) pool: Arc<Pool>,
    /// The answers that are generated in the background.
    pub(super) background: Background,
    is_draining: AtomicBool,
    /// The number of requests in progress.
    active: watch::Sender<usize>,
    /// When the server was started, in seconds since 1970.
    pub(super) created: u64,
}

/// The name that a request gives.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// The index of its model in the pool.
    pub(super) index: usize,
    /// The name of the model in the answer.
    pub(super) name: String,
    pub(super) adapter: Option<String>,
    pub(super) adapter_scale: f32,
}

/// The model that a request asks for, which is in memory.
#[derive(Clone, Debug)]
pub(super) struct Served {
    /// The name of the model in the answer.
    pub(super) name: String,
    pub(super) adapter: Option<String>,
    pub(super) adapter_scale: f32,
    pub(super) model: Lease,
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
    pub(super) fn new(
        settings: ServeOptions,
        keys: Arc<Keys>,
        pool: Arc<Pool>,
        batches: Option<Arc<Batches>>,
    ) -> Self {
        Self {
            keys,
            batches,
            metrics: ServerMetrics::default(),
            #[cfg(feature = "otel")]
            spans: (settings.otlp_endpoint.as_deref())
                .map(|endpoint| SpanExporter::start(endpoint, &settings.names[0])),
            room: Room::default(),
            pool,
            background: Background::default(),
            is_draining: AtomicBool::new(false),
            active: watch::Sender::new(0),
            created: now(),
            settings,
        }
    }

    /// The first model, for a request that names none.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub(super) async fn first(&self) -> Result<Served, ApiError> {
        let asked = self.asked(None)?;
        match self.try_acquire(&asked, None)? {
            Some(served) => Ok(served),
            None => self.acquire(&asked, None).await,
        }
    }

    /// The model of a new request, if it is in memory.
    ///
    /// # Errors
    /// The server is draining or asleep; its only model is loading, or its engine has ended.
    pub(super) fn try_acquire(
        &self,
        asked: &Asked,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Option<Served>, ApiError> {
        self.accepts()?;
        let lease = self.pool.try_acquire(asked.index, keep_alive)?;
        Ok(lease.map(|model| asked.with(model)))
    }

    /// The model of a new request, which waits until the model is in memory.
    ///
    /// # Errors
    /// The server is draining or asleep, or the model cannot be loaded.
    pub(super) async fn acquire(
        &self,
        asked: &Asked,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Served, ApiError> {
        self.accepts()?;
        let model = self.pool.acquire(asked.index, keep_alive).await?;
        self.accepts()?;
        Ok(asked.with(model))
    }

    /// # Errors
    /// The server is draining.
    pub(super) fn accepts(&self) -> Result<(), ApiError> {
        match self.is_draining() {
            true => Err(ApiError::later(10, "the server is shutting down")),
            false => Ok(()),
        }
    }

    /// Whether an engine makes no progress although there is work.
    pub(super) fn is_stuck(&self) -> bool {
        let mut loads =
            (0..self.pool.len()).filter_map(|index| self.pool.with_engine(index, Engine::load));
        loads.any(|load| is_stuck(&load))
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

    /// All names that requests may give: those of models, and those of adapters.
    pub(super) fn names(&self) -> Vec<String> {
        let names = self.pool.names().map(|(name, _)| name.to_owned());
        names.chain(self.pool.adapters().names()).collect()
    }

    /// The name of a model without the tag `:latest`, which Ollama's programs add to names.
    pub(super) fn without_tag<'n>(&self, name: &'n str) -> &'n str {
        match name.strip_suffix(":latest") {
            Some(short) if self.names().iter().all(|known| known != name) => short,
            _ => name,
        }
    }

    /// The model with the name that a request gives.
    ///
    /// # Errors
    /// Status 404; the message lists the names.
    pub(super) fn asked(&self, asked: Option<&str>) -> Result<Asked, ApiError> {
        let model_of = |asked: &str| self.pool.names().find(|(name, _)| *name == asked);
        let asked = match asked {
            None | Some("") => &self.pool.names_of(0)[0],
            Some(DEFAULT) if model_of(DEFAULT).is_none() => &self.pool.names_of(0)[0],
            Some(asked) => asked,
        };
        let adapters = self.pool.adapters().names();
        let adapter = adapters.into_iter().find(|name| name == asked);
        let named = model_of(asked);
        let index = match (named, &adapter) {
            (Some((_, index)), _) => index,
            // Adapters are those of the only model.
            (None, Some(_)) => 0,
            (None, None) => {
                let known = self.names();
                let message = format!(
                    "there is no model {asked:?} here; there is {}",
                    known.join(", ")
                );
                return Err(ApiError::new(StatusCode::NOT_FOUND, message)
                    .with_code("model_not_found")
                    .with_param("model"));
            }
        };
        Ok(Asked {
            index,
            name: asked.to_owned(),
            adapter,
            adapter_scale: 1.0,
        })
    }

    /// Runs a computation with the model between steps of the rows. `begin` returns a function that
    /// computes one piece with each call, and returns the result with the last piece. If the client
    /// disconnects, the computation ends early. `work` is the computation for the other ranks of a model.
    ///
    /// # Errors
    /// The engine has ended, or the computation has panicked.
    pub(super) async fn in_pieces<T, P>(
        &self,
        served: &Served,
        work: Option<TextWork>,
        begin: impl FnOnce(&LoadedModel) -> P + Send + 'static,
    ) -> Result<T, ApiError>
    where
        T: Send + 'static,
        P: FnMut(&LoadedModel) -> Option<T> + 'static,
    {
        let begin = |on_end: Box<dyn FnOnce(T) + Send>| {
            Begin::Alone(Box::new(move |model: &LoadedModel| {
                let mut pieces = begin(model);
                let mut on_end = Some(on_end);
                Box::new(move |model: &LoadedModel| {
                    let Some(result) = pieces(model) else {
                        return ControlFlow::Continue(());
                    };
                    if let Some(on_end) = on_end.take() {
                        on_end(result);
                    }
                    ControlFlow::Break(())
                })
            }))
        };
        self.on_engine(served, work, begin).await
    }

    /// Runs a job of the engine between steps of the rows. `begin` makes the job from the function
    /// that takes its result. If the client disconnects, the job ends early. `work` is the job for the
    /// other ranks of a model.
    ///
    /// # Errors
    /// The engine has ended, or the job has panicked.
    pub(super) async fn on_engine<T: Send + 'static>(
        &self,
        served: &Served,
        work: Option<TextWork>,
        begin: impl FnOnce(Box<dyn FnOnce(T) + Send>) -> Begin<LoadedModel>,
    ) -> Result<T, ApiError> {
        let (send, receive) = tokio::sync::oneshot::channel();
        let adapter = (served.adapter.as_deref(), served.adapter_scale);
        let told = work.map(|work| work.told());
        let waiting = Waiting(CancelToken::new());
        let left = waiting.0.clone();
        let job = begin(Box::new(move |result| {
            let _ = send.send(result);
        }));
        served.model.engine.run_told(adapter, told, left, job)?;
        receive.await.map_err(|_| ApiError::internal())
    }

    /// Work for the other ranks of the model, if there are any.
    pub(super) fn for_ranks(&self, work: impl FnOnce() -> TextWork) -> Option<TextWork> {
        rank_here().map(|_| work())
    }
}

/// Tells that nobody waits for a result any more.
struct Waiting(CancelToken);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Asked {
    fn with(&self, model: Lease) -> Served {
        Served {
            name: self.name.clone(),
            adapter: self.adapter.clone(),
            adapter_scale: self.adapter_scale,
            model,
        }
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
