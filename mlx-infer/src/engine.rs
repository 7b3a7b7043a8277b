//! Many requests on one model: requests enter and leave the batch between two steps.
//!
//! An [`Engine`] is a thread that owns a model. Any thread submits requests and reads their events from a [`Handle`]. A request's tokens do not
//! depend on other requests: an error, a cancellation or an eviction of one leaves the tokens of the others as they are.

mod handle;
mod load;
mod prefixes;
mod rows;
mod task;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mlx_models::ModelInfo;

pub use self::handle::Handle;
pub use self::load::EngineLoad;
pub(crate) use self::worker::Worker;

use self::handle::{Outlet, Ticket, gone};
use self::load::Load;
use crate::cancel::CancelToken;
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
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            max_requests: 1024,
            max_events: 256,
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
    max_requests: usize,
    max_events: usize,
    under_way: Arc<AtomicUsize>,
    aborted: Arc<AtomicBool>,
    load: Arc<Load>,
}

/// Work on the model between two steps.
type Job = Box<dyn FnOnce(&LoadedModel) + Send>;

enum Command {
    Submit {
        request: Box<Request>,
        requested: Instant,
        dropped: CancelToken,
        outlet: Outlet,
    },
    Run(Job),
    /// Ends the engine when all requests before it have ended.
    Finish,
    /// Makes the thread look at the flag.
    Wake,
}

impl Engine {
    /// Starts a thread, loads a model on it, and returns when that is done.
    ///
    /// # Errors
    /// Those of `load`; a limit is 0.
    pub fn start(
        load: impl FnOnce() -> Result<LoadedModel> + Send + 'static,
        options: EngineOptions,
    ) -> Result<Self> {
        options.limits.check()?;
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
        let (limits, flag, shown) = (options.limits, aborted.clone(), counts.clone());
        let thread = std::thread::Builder::new()
            .name("mlx-engine".to_owned())
            .spawn(move || {
                let model = match load() {
                    Ok(model) => model,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return;
                    }
                };
                if ready.send(Ok(model.frontend().clone())).is_ok() {
                    serve(&model, &limits, &inbox, &flag, &shown);
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
    /// Too many requests are under way ([`ErrorKind::Busy`]), or the engine has ended
    /// ([`ErrorKind::Closed`]).
    pub fn submit(&self, request: Request) -> Result<Handle> {
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
            request: Box::new(request),
            requested: Instant::now(),
            dropped: handle.cancel_token(),
            outlet,
        };
        self.commands.send(command).map_err(|_| gone())?;
        Ok(handle)
    }

    /// Calls `job` with the model on the engine's thread, between two steps of the rows. All rows wait for it, so a long computation is to be
    /// split into several jobs, which run one between two steps. `job` is dropped without a call if the engine is aborted before, and a panic of
    /// `job` ends nothing else.
    ///
    /// # Errors
    /// The engine has ended ([`ErrorKind::Closed`]).
    pub fn run(&self, job: impl FnOnce(&LoadedModel) + Send + 'static) -> Result<()> {
        let sent = self.commands.send(Command::Run(Box::new(job)));
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

/// The loop of the engine's thread after the model has loaded.
fn serve(
    model: &LoadedModel,
    limits: &Limits,
    inbox: &Receiver<Command>,
    aborted: &AtomicBool,
    load: &Load,
) {
    let mut worker = Worker::new(model, limits.clone());
    let mut is_finishing = false;
    let mut jobs = VecDeque::new();
    let take = |command, worker: &mut Worker<'_, '_>, jobs: &mut VecDeque<Job>| match command {
        Command::Submit {
            request,
            requested,
            dropped,
            mut outlet,
        } => {
            let backlog = Some(outlet.queue());
            let sink = Box::new(move |event| outlet.put(event));
            worker.submit(*request, requested, dropped, backlog, sink);
            false
        }
        Command::Run(job) => {
            jobs.push_back(job);
            false
        }
        Command::Finish => true,
        Command::Wake => false,
    };
    loop {
        if aborted.load(Ordering::Acquire) {
            // Requests that were just submitted too.
            inbox.try_iter().for_each(|command| {
                take(command, &mut worker, &mut jobs);
            });
            worker.cancel_all();
            return;
        }
        // Blocks only when there is nothing to compute.
        let wait = match worker.is_idle() {
            _ if !jobs.is_empty() => Duration::ZERO,
            true if is_finishing => return,
            true => Duration::from_secs(60),
            // A caller that reads events or cancels sends no command.
            false if worker.is_stalled() => Duration::from_millis(5),
            false => Duration::ZERO,
        };
        let mut command = match inbox.recv_timeout(wait) {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                is_finishing = true;
                None
            }
        };
        while let Some(next) = command {
            is_finishing |= take(next, &mut worker, &mut jobs);
            command = inbox.try_recv().ok();
        }
        worker.advance();
        if let Some(job) = jobs.pop_front() {
            // The caller sees that its job has ended without a result.
            let _ = catch_unwind(AssertUnwindSafe(|| job(model)));
        }
        load.set(&worker);
    }
}
