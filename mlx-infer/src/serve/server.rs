//! Start, drain and end of the server.

use std::net::SocketAddr;
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
use crate::serve::batches::drive::Batches;
use crate::serve::http::connection;
use crate::serve::http::guard::Keys;
use crate::serve::http::listener::Bound;
use crate::serve::http::prefix;
use crate::serve::http::tls::Certificate;
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
    bound: Bound,
    address: SocketAddr,
    settings: ServeOptions,
    stop: watch::Sender<bool>,
    keys: Arc<Keys>,
    certificate: Option<Arc<Certificate>>,
    batches: Option<Arc<Batches>>,
}

/// Reads the certificate of a [`Server`] again, from another thread.
#[derive(Clone, Debug)]
pub struct CertificateReader(Arc<Certificate>);

impl CertificateReader {
    /// Reads the files of [`ServeOptions::tls`] again. New connections get the certificate that they
    /// have now.
    ///
    /// # Errors
    /// The files have no certificate with its key. The server keeps the certificate that it has.
    pub fn read_again(&self) -> Result<()> {
        self.0.reload()
    }
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
    /// Listens at the address or the unix socket of the settings. Connections wait until [`run`](Self::run).
    ///
    /// # Errors
    /// A setting is out of range, the address is taken, or the certificate cannot be read.
    pub fn bind(settings: ServeOptions) -> Result<Self> {
        settings.check()?;
        let certificate = settings.tls.clone().map(Certificate::read).transpose()?;
        let stop = watch::Sender::new(false);
        let batches = settings.batch_dir.as_deref();
        let batches = batches.map(|folder| Batches::open(folder, stop.subscribe()));
        let batches = batches.transpose()?.map(Arc::new);
        let (bound, address) = match &settings.unix_socket {
            Some(path) => (Bound::unix(path)?, settings.address),
            None => Bound::tcp(settings.address)?,
        };
        Ok(Self {
            bound,
            address,
            certificate: certificate.map(Arc::new),
            keys: Arc::new(Keys::new(&settings.keys, settings.key_requests)),
            settings,
            stop,
            batches,
        })
    }

    /// The address at which the server listens, with the port that it took; that of the settings if
    /// it listens at a unix socket.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients find the server: a URL, or `unix:` and the path of the socket, with the path
    /// prefix after a colon.
    pub fn url(&self) -> String {
        let prefix = &self.settings.path_prefix;
        match (&self.settings.unix_socket, &self.certificate) {
            (Some(path), _) if prefix.is_empty() => format!("unix:{}", path.display()),
            (Some(path), _) => format!("unix:{}:{prefix}", path.display()),
            (None, None) => format!("http://{}{prefix}", self.address),
            (None, Some(_)) => format!("https://{}{prefix}", self.address),
        }
    }

    /// A handle that reads the certificate again; `None` without one.
    pub fn certificate_reader(&self) -> Option<CertificateReader> {
        self.certificate.clone().map(CertificateReader)
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
        let app = Arc::new(App::new(self.settings, self.keys, pool, self.batches));
        let listener =
            (self.bound.serve()).map_err(|error| failed("cannot serve the socket", error))?;
        let close = watch::Sender::new(false);
        let limit = app.settings.client_timeout;
        let router = http::router(routes::table(), app.clone());
        let router = match app.settings.path_prefix.clone() {
            prefix if prefix.is_empty() => router,
            prefix => prefix::below(prefix, router),
        };
        let serving =
            connection::serve(listener, self.certificate, router, limit, close.subscribe());
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
        if let Some(batches) = &app.batches {
            batches.resume(&app);
        }
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
        #[cfg(feature = "otel")]
        if let Some(spans) = &app.spans {
            tokio::task::block_in_place(|| spans.finish());
        }
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
