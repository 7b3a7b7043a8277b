//! The main loop of an engine's thread, after its models have been loaded: the model and the model
//! with each adapter, or one model of another back end.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use mlx_nn::shard::Ranks;

use super::decode::Decode;
use super::handle::{Outlet, Queue};
use super::jobs::{Job, Jobs};
use super::load::LoadCounters;
use super::ranks::{agreed, gathered};
use super::rounds::{BEAT, Round};
use super::state::Sink;
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

impl EngineCommand {
    /// Whether this is a job for which no caller waits.
    fn is_left(&self) -> bool {
        matches!(self, Self::Run(_, job) if job.left.is_cancelled())
    }
}

/// The work of the thread.
pub(super) struct Work<D> {
    /// One worker for each model.
    workers: Vec<D>,
    jobs: Jobs<LoadedModel>,
    /// The adapters of the first model.
    table: AdapterTable,
    ranks: Ranks,
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
        table: AdapterTable,
    ) {
        let Self {
            commands: inbox,
            aborted,
            load,
        } = self;
        let ranks = models
            .first()
            .map_or(Ranks::ALONE, |model| model.options().ranks);
        let mut work = Work::new(workers, table, ranks);
        let is_shared = ranks.size() > 1;
        // The other ranks end when this one does, or because it does.
        let end = || is_shared.then(|| Round::end(ranks));
        loop {
            if aborted.load(Ordering::Acquire) {
                // Requests that were just submitted are cancelled too. Those that the other ranks do not know end with an
                // error when the inbox is dropped.
                if !is_shared {
                    inbox.try_iter().for_each(|command| work.take(command));
                }
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
            // A job whose caller has left before it was taken does not begin.
            taken.retain(|command| !command.is_left());
            let left = work.jobs.left();
            // An error is also one of the work that follows, which ends the requests.
            let is_idle = work.is_idle();
            if is_shared
                && Round::of(&mut taken, left.clone())
                    .tell(ranks, is_idle)
                    .is_err()
            {
                taken.into_iter().for_each(|command| work.take(command));
                work.workers.iter_mut().for_each(D::fail_lost);
                load.set(work.workers.iter().map(D::load), work.jobs.pieces());
                return;
            }
            taken.into_iter().for_each(|command| work.take(command));
            work.jobs.remove(&left);
            work.advance(models);
            load.set(work.workers.iter().map(D::load), work.jobs.pieces());
        }
    }
}

impl<D: Decode<'static>> Work<D> {
    pub(super) fn new(workers: Vec<D>, table: AdapterTable, ranks: Ranks) -> Self {
        Self {
            workers,
            jobs: Jobs::new(),
            table,
            ranks,
            arriving: VecDeque::new(),
            leaving: Vec::new(),
            is_finishing: false,
        }
    }

    pub(super) fn jobs(&mut self) -> &mut Jobs<LoadedModel> {
        &mut self.jobs
    }

    pub(super) fn table(&self) -> &AdapterTable {
        &self.table
    }

    pub(super) fn take(&mut self, command: EngineCommand) {
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
                self.submit(model, *request, (requested, dropped), backlog, sink);
            }
            EngineCommand::Run(model, job) => self.jobs.push(model, job),
            EngineCommand::LoadAdapter { dir, done } => self.arriving.push_back((dir, done)),
            EngineCommand::UnloadAdapter { number, done } => self.leaving.push((number, done)),
            EngineCommand::Finish => self.is_finishing = true,
            EngineCommand::Wake => {}
        }
    }

    /// Gives a request to the worker of a model.
    pub(super) fn submit(
        &mut self,
        model: usize,
        request: Checked,
        (requested, dropped): (Instant, CancelToken),
        backlog: Option<Arc<Queue>>,
        sink: Sink<'static>,
    ) {
        self.workers[model].submit(request, requested, dropped, backlog, sink);
    }

    /// Computes a part of each worker's work, and a piece of a job; loads and frees adapters.
    pub(super) fn advance(&mut self, models: &[LoadedModel]) {
        let busy = self.workers.iter_mut().filter(|worker| !worker.is_idle());
        busy.for_each(D::advance);
        let beside_rows = self.workers.iter().any(|worker| !worker.is_idle());
        self.jobs.advance(models, beside_rows);
        if let Some(model) = models.first() {
            self.free_adapters(model);
            self.load_adapter(model);
        }
    }

    /// Frees adapters that no request holds any more. Requests of the first rank are those of all.
    fn free_adapters(&mut self, model: &LoadedModel) {
        if self.leaving.is_empty() {
            return;
        }
        let numbers = self.leaving.iter().map(|(number, _)| *number);
        let free = numbers.filter(|&number| self.table.is_free(number));
        // An error is also one of the next round.
        let Ok(free) = agreed(self.ranks, free.collect::<Vec<_>>()) else {
            return;
        };
        let is_free = |leaving: &mut (usize, _)| free.contains(&leaving.0);
        for (number, done) in self.leaving.extract_if(.., is_free) {
            self.table.remove(model, number);
            let _ = done.send(());
        }
    }

    /// Reads the next adapter.
    fn load_adapter(&mut self, model: &LoadedModel) {
        let Some((dir, done)) = self.arriving.pop_front() else {
            return;
        };
        let load = AssertUnwindSafe(|| self.table.load(model, &dir));
        let loaded = catch_unwind(load).unwrap_or_else(|_| {
            let message = "the engine has panicked while it loaded the adapter";
            Err(Error::new(ErrorKind::Compute, message))
        });
        let number = loaded.as_ref().ok().map(|adapter| adapter.number());
        let loaded = same_adapter(self.ranks, &dir, loaded);
        if let (Err(_), Some(number)) = (&loaded, number) {
            self.table.remove(model, number);
        }
        let _ = done.send(loaded);
    }

    /// Whether there is nothing to compute, to load or to free.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
            && self.arriving.is_empty()
            && self.leaving.is_empty()
            && self.workers.iter().all(|worker| worker.is_idle())
    }

    /// How long to wait for a command; `None` if the thread has finished its work. It waits without
    /// a limit only when there is nothing to compute.
    fn wait(&self) -> Option<Duration> {
        let mut busy = self.workers.iter().filter(|worker| !worker.is_idle());
        let is_idle = busy.clone().next().is_none();
        match is_idle {
            _ if !self.jobs.is_empty() || !self.arriving.is_empty() => Some(Duration::ZERO),
            true if self.is_finishing => None,
            true => Some(Duration::from_secs(60)),
            // A caller that reads events or cancels sends no command.
            false if busy.all(D::is_stalled) => Some(Duration::from_millis(5)),
            false => Some(Duration::ZERO),
        }
    }
}

/// The adapter that this rank has read, if every rank has read the same files.
///
/// # Errors
/// A rank could not read the adapter, or has read another one.
fn same_adapter(
    ranks: Ranks,
    dir: &Path,
    loaded: Result<Arc<LoadedAdapter>>,
) -> Result<Arc<LoadedAdapter>> {
    if ranks.size() == 1 {
        return loaded;
    }
    let own = match &loaded {
        Ok(_) => Ok(files_digest(dir)),
        Err(error) => Err(error.to_string()),
    };
    let own = serde_json::to_string(&own).unwrap_or_default();
    let all = gathered(ranks, &own)?;
    let adapter = loaded?;
    let mut others = all.iter().enumerate();
    let Some((rank, other)) = others.find(|(_, other)| **other != own) else {
        return Ok(adapter);
    };
    let why = match serde_json::from_str::<std::result::Result<u64, String>>(other) {
        Ok(Err(message)) => message,
        Ok(Ok(_)) | Err(_) => "its files are not those of rank 0".to_owned(),
    };
    let message = format!("{}, rank {rank}: {why}", dir.display());
    Err(Error::new(ErrorKind::Format, message))
}

/// A digest of the names and sizes of an adapter's files, and of its settings.
fn files_digest(dir: &Path) -> u64 {
    let mut files: Vec<(String, u64)> = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") || name.ends_with(".json") {
            files.push((name, entry.metadata().map_or(0, |about| about.len())));
        }
    }
    files.sort();
    let settings = std::fs::read(dir.join("adapter_config.json")).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    (files, settings).hash(&mut hasher);
    hasher.finish()
}
