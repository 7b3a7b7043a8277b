//! Start, drain and end of the server.

use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mlx_models::ModelInfo;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::time::timeout;

use super::settings::ServeOptions;
use super::state::{App, Loaded};
use crate::backend::BackEnd;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::request::generation::GenerateOptions;
use crate::request::sampling::SamplingParams;
use crate::serve::http::connection;
use crate::serve::http::guard::Keys;
use crate::serve::{http, routes};
use crate::text::chat::reply::ReplyFormat;

/// Most threads that handle connections. The engine has its own, which compute on all cores.
const MOST_THREADS: usize = 4;

/// How long answers may take to end after their requests were cancelled.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// An HTTP server that listens, but has no model yet.
///
/// ```no_run
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_infer::LoadedModel;
/// use mlx_infer::serve::{ServeOptions, Server};
/// let server = Server::bind(ServeOptions::default())?;
/// println!("http://{}", server.address());
/// server.run(LoadedModel::load_default)
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    settings: ServeOptions,
    stop: watch::Sender<bool>,
    keys: Arc<Keys>,
}

/// Replaces the API keys of a [`Server`] from another thread.
#[derive(Clone, Debug)]
pub struct KeyRing(Arc<Keys>);

impl KeyRing {
    /// Replaces all keys. Requests in progress continue.
    ///
    /// # Errors
    /// A key is empty, or the list is empty: it would open a server that needs keys.
    pub fn replace(&self, keys: &[String]) -> Result<()> {
        if keys.is_empty() || keys.iter().any(|key| key.trim().is_empty()) {
            return Err(Error::argument(
                "expected at least one API key, and none that is empty",
            ));
        }
        self.0.replace(keys);
        Ok(())
    }
}

/// Ends a [`Server`] from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// Makes the server refuse new requests, finish those in progress within
    /// [`ServeOptions::drain`], and end.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Listens at the address of the settings. Connections wait until [`run`](Self::run).
    ///
    /// # Errors
    /// A setting is out of range, or the address is taken.
    pub fn bind(settings: ServeOptions) -> Result<Self> {
        settings.check()?;
        let cannot = |error| {
            let message = format!("cannot listen at {}", settings.address);
            Error::new(ErrorKind::Io, message).with_source(error)
        };
        let listener = TcpListener::bind(settings.address).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Self {
            listener,
            address,
            keys: Arc::new(Keys::new(&settings.keys, settings.key_requests)),
            settings,
            stop: watch::Sender::new(false),
        })
    }

    /// The address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that ends the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// A handle that replaces the server's keys.
    pub fn key_ring(&self) -> KeyRing {
        KeyRing(self.keys.clone())
    }

    /// Serves until the [`Stopper`] ends the server. The model is loaded while the server already
    /// listens; until it is loaded, requests are refused with status 503.
    ///
    /// # Errors
    /// Those of `load`; the system refuses a thread or a socket.
    pub fn run<M: Into<BackEnd>>(
        self,
        load: impl FnOnce() -> Result<M> + Send + 'static,
    ) -> Result<()> {
        self.run_with(load, |_| ())
    }

    /// Like [`run`](Self::run), and calls `on_ready` once requests are served.
    ///
    /// # Errors
    /// The same as those of [`run`](Self::run).
    pub fn run_with<M: Into<BackEnd>>(
        self,
        load: impl FnOnce() -> Result<M> + Send + 'static,
        on_ready: impl FnOnce(&ModelInfo),
    ) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / 2).clamp(1, MOST_THREADS);
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("mlx-http")
            .enable_all()
            .build()
            .map_err(|error| failed("cannot start the server's threads", error))?;
        let result = runtime.block_on(self.serve(load, on_ready));
        // Shuts down without waiting for a model that is still loading or a connection that is
        // still open.
        runtime.shutdown_background();
        result
    }

    async fn serve<M: Into<BackEnd>>(
        self,
        load: impl FnOnce() -> Result<M> + Send + 'static,
        on_ready: impl FnOnce(&ModelInfo),
    ) -> Result<()> {
        let (drain, engine_options) = (self.settings.drain, self.settings.engine.clone());
        let app = Arc::new(App::new(self.settings, self.keys));
        let listener = tokio::net::TcpListener::from_std(self.listener)
            .map_err(|error| failed("cannot serve the socket", error))?;
        let close = watch::Sender::new(false);
        let (router, limit) = (
            http::router(routes::table(), app.clone()),
            app.settings.client_timeout,
        );
        let serving = connection::serve(listener, router, limit, close.subscribe());
        let serving = tokio::spawn(serving);
        let mut stopped = pin!(is_set(self.stop.subscribe()));
        let started = tokio::task::spawn_blocking(move || Engine::start(load, engine_options));
        let engine = tokio::select! {
            () = &mut stopped => return Ok(()),
            engine = started => engine.map_err(|error| failed("loading has panicked", error))??,
        };
        let loaded = loaded(&app, engine)?;
        let info = loaded.frontend().info().clone();
        app.set_loaded(loaded);
        on_ready(&info);
        stopped.await;
        app.drain();
        if timeout(drain, app.is_idle()).await.is_err()
            && let Some(loaded) = app.loaded()
        {
            // Requests in progress end with an error.
            loaded.engine.stop();
            let _ = timeout(LAST_WORDS, app.is_idle()).await;
        }
        close.send_replace(true);
        // A client that keeps its connection open does not delay the end.
        let _ = timeout(LAST_WORDS, serving).await;
        Ok(())
    }
}

/// The engine, with defaults for the parameters that requests do not give: flags, then
/// generation_config.json, then OpenAI's defaults.
fn loaded(app: &App, engine: Engine) -> Result<Loaded> {
    let frontend = engine.frontend();
    let openai = GenerateOptions {
        sampling: SamplingParams {
            temperature: 1.0,
            ..Default::default()
        },
        ..Default::default()
    };
    let published = frontend.generation_defaults()?.over(&openai);
    let defaults = app.settings.defaults.clone().over(&published);
    defaults.check()?;
    // A template that cannot be read is reported at the start, not only to the first conversation.
    if let Err(error) = frontend.chat_template() {
        tracing::warn!("conversations are refused: {error}");
    }
    let settings = &app.settings;
    if settings.reasoning_budget.is_some() {
        let format = ReplyFormat::detect(frontend.chat_template()?, frontend.tokenizer()?);
        if !format.has_reasoning() {
            let message = "reasoning_budget: the model has no marks of reasoning";
            return Err(Error::new(ErrorKind::Argument, message));
        }
    }
    // Computes the data that all grammars share, which takes seconds for a large vocabulary, before
    // the first request with a grammar.
    let shared = frontend.clone();
    std::thread::spawn(move || shared.prepare_grammars());
    Ok(Loaded::new(engine, defaults))
}

/// Waits until the value is true; for ever if its sender is gone.
pub(super) async fn is_set(mut value: watch::Receiver<bool>) {
    if value.wait_for(|is_set| *is_set).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn failed(message: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Io, message).with_source(error)
}
