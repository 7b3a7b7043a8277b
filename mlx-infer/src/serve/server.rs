//! Start, drain and end of the server.

use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mlx_models::ModelInfo;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::time::timeout;

use super::pool::{Pool, PoolEvent, PoolOptions, PooledModel};
use super::settings::ServeOptions;
use super::state::App;
use crate::backend::BackEnd;
use crate::error::{Error, ErrorKind, Result};
use crate::serve::http::connection;
use crate::serve::http::guard::Keys;
use crate::serve::{http, routes};

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
        let model = PooledModel::once(self.settings.names.clone(), load);
        let options = PoolOptions {
            on_demand: false,
            ..Default::default()
        };
        let on_ready = |infos: &[ModelInfo]| infos.first().map_or((), on_ready);
        self.run_models(vec![model], options, Box::new(|_| ()), on_ready)
    }

    /// Like [`run`](Self::run), with several models. Those that are pinned are loaded while the
    /// server already listens. With [`PoolOptions::on_demand`], the others are loaded when requests
    /// name them, and these requests wait. The models have their own names in place of
    /// [`ServeOptions::names`]. `on_event` is told what happens to them.
    ///
    /// # Errors
    /// Two models have the same name, the pinned ones exceed the limit or cannot be loaded, or the
    /// system refuses a thread or a socket.
    pub fn run_pool(
        self,
        models: Vec<PooledModel>,
        options: PoolOptions,
        on_event: impl Fn(&PoolEvent<'_>) + Send + Sync + 'static,
    ) -> Result<()> {
        self.run_models(models, options, Box::new(on_event), |_| ())
    }

    fn run_models(
        self,
        models: Vec<PooledModel>,
        options: PoolOptions,
        on_event: Box<dyn Fn(&PoolEvent<'_>) + Send + Sync>,
        on_ready: impl FnOnce(&[ModelInfo]),
    ) -> Result<()> {
        let pool = Pool::new(models, options, self.settings.clone(), on_event)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / 2).clamp(1, MOST_THREADS);
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("mlx-http")
            .enable_all()
            .build()
            .map_err(|error| failed("cannot start the server's threads", error))?;
        let result = runtime.block_on(self.serve(pool, on_ready));
        // Shuts down without waiting for a model that is still loading or a connection that is
        // still open.
        runtime.shutdown_background();
        result
    }

    async fn serve(self, pool: Arc<Pool>, on_ready: impl FnOnce(&[ModelInfo])) -> Result<()> {
        let drain = self.settings.drain;
        let app = Arc::new(App::new(self.settings, self.keys, pool));
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
        let pool = &app.pool;
        for index in pool.at_start() {
            tokio::select! {
                () = &mut stopped => return Ok(()),
                loaded = pool.load_at_start(index) => loaded?,
            }
        }
        let infos = (0..pool.len()).filter_map(|at| pool.with_engine(at, |e| e.info().clone()));
        on_ready(&infos.collect::<Vec<_>>());
        let expiring = tokio::spawn(pool.clone().expire_always());
        stopped.await;
        app.drain();
        if timeout(drain, app.is_idle()).await.is_err() {
            // Requests in progress end with an error.
            app.pool.stop();
            let _ = timeout(LAST_WORDS, app.is_idle()).await;
        }
        expiring.abort();
        close.send_replace(true);
        // A client that keeps its connection open does not delay the end.
        let _ = timeout(LAST_WORDS, serving).await;
        Ok(())
    }
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
