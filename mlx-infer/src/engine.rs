//! Many requests on one model: requests enter and leave the batch between two steps.
//!
//! An [`Engine`] is a thread that owns a model. Any thread submits requests and reads their events
//! from a [`Handle`]. The tokens of a request do not depend on other requests: if one fails, is
//! cancelled or is preempted, the tokens of the others stay the same.

pub(crate) mod prefix_tier;
pub(crate) mod prefix_tree;
pub(crate) mod prompt_cache;
pub(crate) mod scheduler;
pub(crate) mod sequence;
pub(crate) mod speculate;

mod decode;
mod handle;
mod jobs;
mod load;
mod names;
mod prefixes;
mod processor;
pub(crate) mod ranks;
pub(crate) mod rounds;
mod rows;
mod state;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod thread;
pub(crate) mod watchdog;
mod worker;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use mlx_models::ModelInfo;
use mlx_nn::shard::Ranks;

pub(crate) use self::decode::{Decode, EngineModel, Native};
pub use self::handle::Handle;
pub(crate) use self::handle::Queue;
pub(crate) use self::jobs::{Begin, Texts};
pub use self::load::{EngineLoad, PageLoad, PrefixDirLoad};
pub(crate) use self::prefix_tier::tiered::Tiered;
pub(crate) use self::state::Sink;
pub(crate) use self::worker::Worker;

use self::handle::{Outlet, Ticket, gone};
use self::jobs::Job;
use self::load::LoadCounters;
use self::names::AdapterNames;
#[cfg(feature = "serve")]
pub(crate) use self::names::listed;
use self::thread::{EngineCommand, Inbox};
use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;
use crate::model::checked::Checked;
use crate::model::frontend::Frontend;
use crate::request::Request;
use crate::request::cancel::CancelToken;
use crate::request::limits::Limits;

/// The stack of the engine's thread. Its pages take memory when they are used.
const STACK_BYTES: usize = 16 << 20;

/// Options of an [`Engine`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Limits on what is computed at a time.
    pub limits: Limits,
    /// The most requests in progress, including waiting ones. Further requests are refused with [`ErrorKind::Busy`].
    pub max_requests: usize,
    /// The most unread events of a request. At this number its row pauses, and is preempted if another request waits for
    /// a row.
    pub max_events: usize,
    /// Names and folders of adapters, one of which a request may choose ([`Request::with_adapter`]). The model's arrays
    /// are shared, and rows of different adapters are computed in one step. Those with the model's own parameters
    /// (`fine_tune_type: full`), those of encoders, and those of layers that the model computes in a form without
    /// adapters by request have steps of their own, and an equal part of the bytes of [`limits`](Self::limits).
    /// [`Engine::load_adapter`] adds others later.
    pub adapters: Vec<(String, PathBuf)>,
}

impl EngineOptions {
    /// Checks the numbers and the names of adapters.
    ///
    /// # Errors
    /// A number is 0, or two adapters have the same name.
    pub(crate) fn check(&self) -> Result<()> {
        self.limits.check()?;
        for (at, (name, _)) in self.adapters.iter().enumerate() {
            if name.is_empty() || self.adapters[..at].iter().any(|(known, _)| known == name) {
                let message =
                    format!("adapter {name:?}: names must not be empty, and not be given twice");
                return Err(Error::argument(message));
            }
        }
        for (name, value) in [
            ("max_requests", self.max_requests),
            ("max_events", self.max_events),
        ] {
            if value == 0 {
                let message = format!("{name} must be at least 1, given 0");
                return Err(Error::argument(message));
            }
        }
        Ok(())
    }
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

/// A thread that owns a model and serves requests from any other thread.
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
    commands: Sender<EngineCommand>,
    thread: Mutex<Option<JoinHandle<()>>>,
    frontend: Arc<Frontend>,
    limits: Limits,
    ranks: Ranks,
    adapters: AdapterNames,
    max_requests: usize,
    max_events: usize,
    under_way: Arc<AtomicUsize>,
    aborted: Arc<AtomicBool>,
    load: Arc<LoadCounters>,
}

impl Engine {
    /// Starts a thread, calls `load` on it with the adapters and limits of the options, and returns when the model is
    /// loaded.
    ///
    /// # Errors
    /// The errors of `load`; a limit is 0.
    pub(crate) fn begin(
        load: impl FnOnce(&[(String, PathBuf)], &Limits) -> Result<Box<dyn EngineModel>>
        + Send
        + 'static,
        options: EngineOptions,
    ) -> Result<Self> {
        options.check()?;
        let (commands, inbox) = channel();
        let (ready, loaded) = channel();
        let (aborted, counts) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(LoadCounters::new()),
        );
        let adapters = options.adapters;
        let names: Vec<String> = adapters.iter().map(|(name, _)| name.clone()).collect();
        let (limits, flag, shown) = (options.limits, aborted.clone(), counts.clone());
        let thread = std::thread::Builder::new()
            .name("mlx-engine".to_owned())
            // Grammar compilers and tokenizers of other crates run on it.
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let loaded = load(&adapters, &limits).and_then(|model| {
                    let limits = model.limits(&limits)?;
                    Ok((model, limits))
                });
                let (model, limits) = match loaded {
                    Ok(loaded) => loaded,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return;
                    }
                };
                let parts = (model.frontend().clone(), model.ranks());
                let told = (parts, limits.clone(), model.adapters());
                if ready.send(Ok(told)).is_ok() {
                    let inbox = Inbox {
                        commands: inbox,
                        aborted: flag,
                        load: shown,
                    };
                    model.serve(limits, &inbox);
                }
            })
            .map_err(|error| {
                Error::new(ErrorKind::Io, "cannot start the engine's thread").with_source(error)
            })?;
        let ((frontend, ranks), limits, adapters) = loaded.recv().unwrap_or_else(|_| {
            let message = "the engine's thread has ended while it loaded the model";
            Err(Error::new(ErrorKind::Closed, message))
        })?;
        Ok(Self {
            commands,
            thread: Mutex::new(Some(thread)),
            frontend,
            limits,
            ranks,
            adapters: AdapterNames::new(names.into_iter().zip(adapters).collect()),
            max_requests: options.max_requests,
            max_events: options.max_events,
            under_way: Arc::new(AtomicUsize::new(0)),
            aborted,
            load: counts,
        })
    }

    /// Checks a request on the caller's thread ([`Frontend::checked`]) and submits it. An error of the request comes as
    /// its first event.
    ///
    /// # Errors
    /// Too many requests are in progress ([`ErrorKind::Busy`]), the engine has ended ([`ErrorKind::Closed`]), or no
    /// adapter has the request's name.
    pub fn submit(&self, mut request: Request) -> Result<Handle> {
        let requested = Instant::now();
        let scale = request.adapter_scale;
        let (model, held) = (self.adapters).find(request.adapter.take().as_deref(), scale)?;
        let (handle, mut outlet) = self.open()?;
        match self.frontend.checked(request) {
            Ok(mut checked) => {
                checked.held = held;
                self.send(model, checked, requested, handle, outlet)
            }
            Err(error) => {
                let _ = outlet.put(Err(error));
                Ok(handle)
            }
        }
    }

    /// Submits a request that was checked.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), or the front end of another model has checked the request.
    pub fn submit_checked(&self, mut checked: Checked) -> Result<Handle> {
        let requested = Instant::now();
        self.frontend.check_origin(&checked)?;
        let scale = checked.adapter_scale;
        let (model, held) = (self.adapters).find(checked.adapter.take().as_deref(), scale)?;
        checked.held = held;
        let (handle, outlet) = self.open()?;
        self.send(model, checked, requested, handle, outlet)
    }

    /// Takes a place among the requests in progress.
    fn open(&self) -> Result<(Handle, Outlet)> {
        let Some(ticket) = Ticket::take(&self.under_way, self.max_requests) else {
            let message = format!(
                "{} requests are under way, as many as the engine takes",
                self.max_requests
            );
            return Err(Error::new(ErrorKind::Busy, message));
        };
        let has_text = self.frontend.tokenizer_if_any().is_some();
        Ok(Handle::new(self.max_events, ticket, has_text))
    }

    /// Sends a request to the engine's thread.
    fn send(
        &self,
        model: usize,
        checked: Checked,
        requested: Instant,
        handle: Handle,
        outlet: Outlet,
    ) -> Result<Handle> {
        let command = EngineCommand::Submit {
            model,
            request: Box::new(checked),
            requested,
            dropped: handle.cancel_token(),
            outlet,
        };
        self.commands.send(command).map_err(|_| gone())?;
        Ok(handle)
    }

    /// Calls `job` with the model, or with that of an adapter, on the engine's thread, between two steps of the rows.
    /// All rows wait for it, so a long computation should use [`run_in_pieces`](Self::run_in_pieces). If the engine is
    /// aborted first, `job` is dropped without a call. A panic of `job` affects nothing else.
    ///
    /// # Errors
    /// The engine has ended ([`ErrorKind::Closed`]), there is no such adapter, or the model is of another back end or
    /// shared by several ranks ([`ErrorKind::Unsupported`]).
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

    /// Like [`run`](Self::run), for a long computation: `begin` returns a function that computes
    /// one piece with each call, until it breaks. The rows take a step between two pieces, and
    /// several such computations take turns.
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
        let begin = Begin::Alone(Box::new(move |model| Box::new(begin(model))));
        self.run_told((adapter, 1.0), None, CancelToken::new(), begin)
    }

    /// [`run_in_pieces`](Self::run_in_pieces) with a scale of the adapter, until `left` is cancelled. From
    /// `told` the other ranks of the model make the same pieces.
    ///
    /// # Errors
    /// As [`run`](Self::run), or the adapter does not support the scale.
    pub(crate) fn run_told(
        &self,
        (adapter, scale): (Option<&str>, f32),
        told: Option<String>,
        left: CancelToken,
        begin: Begin<LoadedModel>,
    ) -> Result<()> {
        let (model, held) = self.adapters.find(adapter, scale)?;
        self.frontend.check_native()?;
        if self.ranks.size() > 1 && told.is_none() {
            return Err(Error::unsupported(
                "this computation cannot run on a model that several ranks share, because the other ranks do not know it",
            ));
        }
        let job = Job {
            begin,
            held,
            left,
            told,
        };
        let sent = self.commands.send(EngineCommand::Run(model, job));
        sent.map_err(|_| gone())
    }

    /// Whether the engine's thread accepts requests; `false` after it has ended or panicked.
    pub fn is_alive(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Information about the model.
    pub fn info(&self) -> &ModelInfo {
        self.frontend.info()
    }

    /// The model's tokenizer and chat template. It checks and tokenises requests on the caller's
    /// thread, before they are submitted.
    pub fn frontend(&self) -> &Arc<Frontend> {
        &self.frontend
    }

    /// The limits in force: those of the options, with [`Limits::cache_bytes`] filled in on GPUs with memory of their
    /// own.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The counters after the last step.
    pub fn load(&self) -> EngineLoad {
        self.load.read()
    }

    /// Accepts no more requests, and returns when those in progress have ended.
    ///
    /// # Errors
    /// The engine has panicked.
    pub fn finish(self) -> Result<()> {
        let _ = self.commands.send(EngineCommand::Finish);
        self.join()
    }

    /// Cancels every request now, and returns when the model is dropped.
    ///
    /// # Errors
    /// The engine has panicked.
    pub fn abort(self) -> Result<()> {
        self.stop();
        self.join()
    }

    /// Cancels every request now, and accepts no more.
    pub fn stop(&self) {
        self.aborted.store(true, Ordering::Release);
        let _ = self.commands.send(EngineCommand::Wake);
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
