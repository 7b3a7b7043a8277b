//! Many requests on one model: requests enter and leave the batch between two steps.
//!
//! An [`Engine`] is a thread that owns a model. Any thread submits requests and reads their events from a [`Handle`]. A request's tokens do not
//! depend on other requests: an error, a cancellation or an eviction of one leaves the tokens of the others as they are.

mod decode;
mod drafters;
mod handle;
mod jobs;
mod load;
mod prefixes;
mod rows;
mod task;
#[cfg(test)]
mod tests;
mod thread;
mod worker;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use mlx_models::ModelInfo;

pub(crate) use self::decode::Decode;
pub use self::handle::Handle;
pub(crate) use self::handle::Queue;
pub use self::load::EngineLoad;
pub(crate) use self::task::Sink;
pub(crate) use self::worker::Worker;

use self::handle::{Ticket, gone};
use self::jobs::Job;
use self::load::Load;
use self::thread::Command;
use crate::backend::{BackEnd, MlxLm};
use crate::error::{Error, ErrorKind, Result};
use crate::frontend::Frontend;
use crate::model::LoadedModel;
use crate::request::Request;
use crate::scheduler::Limits;

/// How an [`Engine`] runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Limits on what is computed at a time.
    pub limits: Limits,
    /// Most requests under way, waiting ones included; more are refused as [`ErrorKind::Busy`].
    pub max_requests: usize,
    /// Most unread events of a request. At this number its row pauses; it is evicted if another request waits for a
    /// row.
    pub max_events: usize,
    /// Names and folders of adapters, of which a request may choose one ([`Request::with_adapter`]). The model's arrays are shared; a step
    /// computes rows of one adapter, and each adapter's rows and prefixes have an equal part of the bytes of [`limits`](Self::limits).
    pub adapters: Vec<(String, PathBuf)>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            max_requests: 1024,
            max_events: 256,
            adapters: Vec::new(),
        }
    }
}

/// A thread that owns a model and serves requests from any other.
///
/// Dropping it ends every request at once, as [`abort`](Self::abort) does.
///
/// ```
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_infer::{Engine, EngineOptions, GenerateOptions, LoadedModel, Request};
/// let engine = Engine::start(LoadedModel::load_default, EngineOptions::default())?;
/// let options = GenerateOptions { max_tokens: 8, ..Default::default() };
/// let fox = engine.submit(Request::new("The red fox", options.clone()))?;
/// let man = engine.submit(Request::new("The old man", options))?;
/// for event in fox {
///     print!("{}", event?.text());
/// }
/// println!("\n{}", man.wait().text.unwrap_or_default());
/// engine.finish()
/// # }
/// ```
#[derive(Debug)]
pub struct Engine {
    commands: Sender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
    frontend: Arc<Frontend>,
    adapters: Vec<String>,
    max_requests: usize,
    max_events: usize,
    under_way: Arc<AtomicUsize>,
    aborted: Arc<AtomicBool>,
    load: Arc<Load>,
}

/// A back end and its adapters, on the engine's thread.
enum Ready {
    Native(Vec<LoadedModel>),
    MlxLm(Box<MlxLm>),
}

impl Engine {
    /// Starts a thread, loads a model on it, and returns when that is done. The model is a [`LoadedModel`], or one of another
    /// [`BackEnd`].
    ///
    /// # Errors
    /// Those of `load`; a limit is 0; the back end lacks what the options ask for.
    pub fn start<M: Into<BackEnd>>(
        load: impl FnOnce() -> Result<M> + Send + 'static,
        options: EngineOptions,
    ) -> Result<Self> {
        options.limits.check()?;
        for (at, (name, _)) in options.adapters.iter().enumerate() {
            if name.is_empty()
                || options.adapters[..at]
                    .iter()
                    .any(|(known, _)| known == name)
            {
                let message =
                    format!("adapter {name:?}: names must not be empty, and not be given twice");
                return Err(Error::argument(message));
            }
        }
        for (name, value) in [
            ("max_requests", options.max_requests),
            ("max_events", options.max_events),
        ] {
            if value == 0 {
                let message = format!("{name} must be at least 1, given 0");
                return Err(Error::argument(message));
            }
        }
        let (commands, inbox) = channel();
        let (ready, loaded) = channel();
        let (aborted, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Load::new()));
        let adapters = options.adapters;
        let names = adapters.iter().map(|(name, _)| name.clone()).collect();
        let (limits, flag, shown) = (options.limits, aborted.clone(), counts.clone());
        let thread = std::thread::Builder::new()
            .name("mlx-engine".to_owned())
            .spawn(move || {
                let loaded = load().and_then(|model| prepare(model.into(), &adapters, &limits));
                let model = match loaded {
                    Ok(model) => model,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return;
                    }
                };
                if ready.send(Ok(model.frontend())).is_err() {
                    return;
                }
                match model {
                    Ready::Native(models) => {
                        let workers = decode::workers(&models, limits);
                        thread::serve(workers, &models, &inbox, &flag, &shown);
                    }
                    Ready::MlxLm(model) => {
                        let session = model.into_session(limits.rows);
                        thread::serve(vec![session], &[], &inbox, &flag, &shown);
                    }
                }
            })
            .map_err(|error| {
                Error::new(ErrorKind::Io, "cannot start the engine's thread").with_source(error)
            })?;
        let frontend = loaded.recv().unwrap_or_else(|_| {
            let message = "the engine's thread has ended while it loaded the model";
            Err(Error::new(ErrorKind::Closed, message))
        })?;
        Ok(Self {
            commands,
            thread: Mutex::new(Some(thread)),
            frontend,
            adapters: names,
            max_requests: options.max_requests,
            max_events: options.max_events,
            under_way: Arc::new(AtomicUsize::new(0)),
            aborted,
            load: counts,
        })
    }

    /// Submits a request. A fault of the request comes as its first event; [`frontend`](Self::frontend) finds it before.
    ///
    /// # Errors
    /// Too many requests are under way ([`ErrorKind::Busy`]), the engine has ended ([`ErrorKind::Closed`]), or there is no adapter of the
    /// request's name.
    pub fn submit(&self, mut request: Request) -> Result<Handle> {
        let model = self.model(request.adapter.take().as_deref())?;
        if let Some(constraint) = &request.options.grammar {
            // Compiled on the caller's thread; the engine's finds it there, or its fault.
            let _ = self.frontend.compiled(constraint);
        }
        let Some(ticket) = Ticket::take(&self.under_way, self.max_requests) else {
            let message = format!(
                "{} requests are under way, as many as the engine takes",
                self.max_requests
            );
            return Err(Error::new(ErrorKind::Busy, message));
        };
        let has_text = self.frontend.tokenizer_if_any().is_some();
        let (handle, outlet) = Handle::new(self.max_events, ticket, has_text);
        let command = Command::Submit {
            model,
            request: Box::new(request),
            requested: Instant::now(),
            dropped: handle.cancel_token(),
            outlet,
        };
        self.commands.send(command).map_err(|_| gone())?;
        Ok(handle)
    }

    /// The place of a model: 0 without an adapter.
    fn model(&self, adapter: Option<&str>) -> Result<usize> {
        let Some(adapter) = adapter else { return Ok(0) };
        let found = self.adapters.iter().position(|name| name == adapter);
        found.map(|at| at + 1).ok_or_else(|| {
            let known = self.adapters.join(", ");
            Error::argument(format!(
                "there is no adapter {adapter:?}; there are: {known}"
            ))
        })
    }

    /// Calls `job` with the model, or with that of an adapter, on the engine's thread, between two steps of the rows. All rows wait for it; a
    /// long computation is for [`run_in_pieces`](Self::run_in_pieces). `job` is dropped without a call if the engine is aborted before, and a
    /// panic of `job` ends nothing else.
    ///
    /// # Errors
    /// The engine has ended ([`ErrorKind::Closed`]), there is no such adapter, or the model is of another back end
    /// ([`ErrorKind::Unsupported`]).
    pub fn run(
        &self,
        adapter: Option<&str>,
        job: impl FnOnce(&LoadedModel) + Send + 'static,
    ) -> Result<()> {
        self.run_in_pieces(adapter, move |model| {
            job(model);
            |_: &LoadedModel| ControlFlow::Break(())
        })
    }

    /// The same for a long computation: `begin` makes what computes it, a piece with each call, until it breaks. The rows take a step between two
    /// pieces, and several such computations take turns.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_in_pieces<P>(
        &self,
        adapter: Option<&str>,
        begin: impl FnOnce(&LoadedModel) -> P + Send + 'static,
    ) -> Result<()>
    where
        P: FnMut(&LoadedModel) -> ControlFlow<()> + 'static,
    {
        let model = self.model(adapter)?;
        self.frontend.check_native()?;
        let job: Job<LoadedModel> = Box::new(move |model| Box::new(begin(model)));
        let sent = self.commands.send(Command::Run(model, job));
        sent.map_err(|_| gone())
    }

    /// Whether the engine's thread takes requests. `false` after it has ended or panicked.
    pub fn is_alive(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Facts about the model.
    pub fn info(&self) -> &ModelInfo {
        self.frontend.info()
    }

    /// The model's text side. It validates and tokenises requests on the caller's thread, before they are submitted.
    pub fn frontend(&self) -> &Arc<Frontend> {
        &self.frontend
    }

    /// Counters, as of the last step.
    pub fn load(&self) -> EngineLoad {
        self.load.read()
    }

    /// Takes no more requests, and returns when those under way have ended.
    ///
    /// # Errors
    /// The engine has panicked.
    pub fn finish(self) -> Result<()> {
        let _ = self.commands.send(Command::Finish);
        self.join()
    }

    /// Ends every request at once, as cancelled, and returns when the model is gone.
    ///
    /// # Errors
    /// The engine has panicked.
    pub fn abort(self) -> Result<()> {
        self.stop();
        self.join()
    }

    /// Ends every request at once, as cancelled, and takes no more.
    pub fn stop(&self) {
        self.aborted.store(true, Ordering::Release);
        let _ = self.commands.send(Command::Wake);
    }

    fn join(&self) -> Result<()> {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match thread.map(JoinHandle::join) {
            None | Some(Ok(())) => Ok(()),
            Some(Err(_)) => Err(Error::new(
                ErrorKind::Closed,
                "the engine's thread has panicked",
            )),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
        let _ = self.join();
    }
}

impl Ready {
    fn frontend(&self) -> Arc<Frontend> {
        match self {
            Self::Native(models) => models[0].frontend().clone(),
            Self::MlxLm(model) => model.frontend().clone(),
        }
    }
}

/// The model, and behind it the model with each adapter.
fn prepare(model: BackEnd, adapters: &[(String, PathBuf)], limits: &Limits) -> Result<Ready> {
    match model {
        BackEnd::Native(model) => {
            let mut models = vec![*model];
            for (_, dir) in adapters {
                models.push(models[0].with_adapter(dir)?);
            }
            Ok(Ready::Native(models))
        }
        BackEnd::MlxLm(model) => {
            model.check_engine(adapters, limits)?;
            Ok(Ready::MlxLm(model))
        }
    }
}
