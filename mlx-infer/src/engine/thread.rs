//! The main loop of an engine's thread, after its models have been loaded: the model and the model
//! with each adapter, or one model of another back end.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use mlx_nn::shard::Ranks;

use super::decode::Decode;
use super::handle::Outlet;
use super::jobs::{Job, Jobs};
use super::load::LoadCounters;
use super::rounds::{BEAT, Round};
use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;
use crate::model::adapters::{AdapterTable, LoadedAdapter};
use crate::model::checked::Checked;
use crate::request::cancel::CancelToken;

pub(super) enum EngineCommand {
    Submit {
        /// The index of the request's model.
        model: usize,
        request: Box<Checked>,
        requested: Instant,
        dropped: CancelToken,
        outlet: Outlet,
    },
    /// Work on the model with this index.
    Run(usize, Job<LoadedModel>),
    /// Reads an adapter of the model.
    LoadAdapter {
        dir: PathBuf,
        done: Sender<Result<Arc<LoadedAdapter>>>,
    },
    /// Frees the adapter with this index, when no request holds it.
    UnloadAdapter { number: usize, done: Sender<()> },
    /// Ends the engine when all earlier requests have ended.
    Finish,
    /// Makes the thread check the stop flag.
    Wake,
}

/// The work of the thread.
struct Work<D> {
    /// One worker for each model.
    workers: Vec<D>,
    jobs: Jobs<LoadedModel>,
    /// Adapters to read.
    arriving: VecDeque<(PathBuf, Sender<Result<Arc<LoadedAdapter>>>)>,
    /// Adapters that requests may still hold.
    leaving: Vec<(usize, Sender<()>)>,
    is_finishing: bool,
}

/// The engine's side of the channel with its callers: their commands, and the counters that they
/// read.
pub(crate) struct Inbox {
    pub(super) commands: Receiver<EngineCommand>,
    pub(super) aborted: Arc<AtomicBool>,
    pub(super) load: Arc<LoadCounters>,
}

impl Inbox {
    /// Serves requests until the engine is finished or aborted. Each round computes one part of the work of every model
    /// that has some. A back end in another process has no `models`, and its jobs are dropped.
    pub(crate) fn serve<D: Decode<'static>>(
        &self,
        workers: Vec<D>,
        models: &[LoadedModel],
        mut table: AdapterTable,
    ) {
        let Self {
            commands: inbox,
            aborted,
            load,
        } = self;
        let mut work = Work {
            workers,
            jobs: Jobs::new(),
            arriving: VecDeque::new(),
            leaving: Vec::new(),
            is_finishing: false,
        };
        let ranks = models
            .first()
            .map_or(Ranks::ALONE, |model| model.options().ranks);
        let is_shared = ranks.size() > 1;
        // The other ranks end when this one does, or because it does.
        let end = || is_shared.then(|| Round::end(ranks));
        loop {
            if aborted.load(Ordering::Acquire) {
                // Requests that were just submitted are cancelled too.
                inbox.try_iter().for_each(|command| work.take(command));
                work.workers.iter_mut().for_each(D::cancel_all);
                end();
                return;
            }
            let Some(wait) = work.wait() else {
                end();
                return;
            };
            let wait = if is_shared { wait.min(BEAT) } else { wait };
            let mut command = match inbox.recv_timeout(wait) {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    work.is_finishing = true;
                    None
                }
            };
            let mut taken = Vec::new();
            while let Some(next) = command {
                taken.push(next);
                command = inbox.try_recv().ok();
            }
            // An error is also one of the work that follows, which ends the requests.
            let is_idle = work.is_idle();
            if is_shared && Round::of(&mut taken).tell(ranks, is_idle).is_err() {
                taken.into_iter().for_each(|command| work.take(command));
                work.workers.iter_mut().for_each(D::fail_lost);
                load.set(work.workers.iter().map(D::load));
                return;
            }
            taken.into_iter().for_each(|command| work.take(command));
            let busy = work.workers.iter_mut().filter(|worker| !worker.is_idle());
            busy.for_each(D::advance);
            work.jobs.advance(models);
            if let Some(model) = models.first() {
                work.change_adapters(model, &mut table);
            }
            load.set(work.workers.iter().map(D::load));
        }
    }
}

impl<D: Decode<'static>> Work<D> {
    fn take(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::Submit {
                model,
                request,
                requested,
                dropped,
                mut outlet,
            } => {
                let backlog = Some(outlet.queue());
                let sink = Box::new(move |event| outlet.put(event));
                self.workers[model].submit(*request, requested, dropped, backlog, sink);
            }
            EngineCommand::Run(model, job) => self.jobs.push(model, job),
            EngineCommand::LoadAdapter { dir, done } => self.arriving.push_back((dir, done)),
            EngineCommand::UnloadAdapter { number, done } => self.leaving.push((number, done)),
            EngineCommand::Finish => self.is_finishing = true,
            EngineCommand::Wake => {}
        }
    }

    /// Reads the next adapter, and frees those that no request holds any more.
    fn change_adapters(&mut self, model: &LoadedModel, table: &mut AdapterTable) {
        self.leaving.retain(|(number, done)| {
            let is_gone = table.remove(model, *number);
            if is_gone {
                let _ = done.send(());
            }
            !is_gone
        });
        if let Some((dir, done)) = self.arriving.pop_front() {
            let load = AssertUnwindSafe(|| table.load(model, &dir));
            let loaded = catch_unwind(load).unwrap_or_else(|_| {
                let message = "the engine has panicked while it loaded the adapter";
                Err(Error::new(ErrorKind::Compute, message))
            });
            let _ = done.send(loaded);
        }
    }

    /// Whether no request is in progress.
    fn is_idle(&self) -> bool {
        self.workers.iter().all(D::is_idle)
    }

    /// How long to wait for a command; `None` if the thread has finished its work. It waits without
    /// a limit only when there is nothing to compute.
    fn wait(&self) -> Option<Duration> {
        let mut busy = self.workers.iter().filter(|worker| !worker.is_idle());
        match self.is_idle() {
            _ if !self.jobs.is_empty() || !self.arriving.is_empty() => Some(Duration::ZERO),
            true if self.is_finishing => None,
            true => Some(Duration::from_secs(60)),
            // A caller that reads events or cancels sends no command.
            false if busy.all(D::is_stalled) => Some(Duration::from_millis(5)),
            false => Some(Duration::ZERO),
        }
    }
}
