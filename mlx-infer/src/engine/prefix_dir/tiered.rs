//! A decode loop whose stored prefixes are also in files.
//!
//! A request that can start from a longer prefix in the folder than in memory is held back until
//! that prefix is read and put into memory. Other requests are computed meanwhile.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use super::{Loaded, PrefixDir};
use crate::engine::decode::Decode;
use crate::engine::handle::Queue;
use crate::engine::load::EngineLoad;
use crate::engine::prefixes::{MIN_TOKENS, PrefixKind};
use crate::engine::prompt_cache::Embedding;
use crate::engine::state::Sink;
use crate::engine::worker::Worker;
use crate::model::LoadedModel;
use crate::model::checked::Checked;
use crate::request::cancel::CancelToken;
use crate::request::limits::Limits;

/// How long the thread waits for a file if there is nothing else to do. It must hear of commands.
const WAIT: Duration = Duration::from_millis(5);

/// A worker, and the folder of its prefixes if there is one.
pub(crate) struct Tiered<'m, 's> {
    worker: Worker<'m, 's>,
    model: &'m LoadedModel,
    dir: Option<PrefixDir>,
    held: Vec<Held<'s>>,
}

/// A request that waits for a file.
struct Held<'s> {
    /// The prefix that it waits for.
    key: u64,
    /// The tokens that the prefix has beyond those in memory.
    gain: usize,
    checked: Checked,
    requested: Instant,
    dropped: CancelToken,
    backlog: Option<Arc<Queue>>,
    sink: Sink<'s>,
}

impl<'m, 's> Tiered<'m, 's> {
    /// A worker with the folder that the limits name.
    pub(crate) fn new(model: &'m LoadedModel, limits: Limits) -> Self {
        let dir = PrefixDir::of(model, &limits);
        Self::with(model, limits, dir)
    }

    /// A worker with a folder that is open.
    pub(crate) fn with(model: &'m LoadedModel, limits: Limits, dir: Option<PrefixDir>) -> Self {
        let mut worker = Worker::new(model, limits);
        if dir.is_some() {
            worker.prefixes().announce();
        }
        Self {
            worker,
            model,
            dir,
            held: Vec::new(),
        }
    }

    pub(crate) fn worker(&self) -> &Worker<'m, 's> {
        &self.worker
    }

    /// The prefix in the folder that has enough more tokens of a prompt than memory: its key, and
    /// the number of those tokens.
    fn longer(&mut self, ids: &[u32]) -> Option<(u64, usize)> {
        let dir = self.dir.as_ref()?;
        let embedding = Embedding::of(self.model, ids.len());
        let found = dir.find(ids, embedding)?;
        if found.len < MIN_TOKENS {
            return None;
        }
        let kind = PrefixKind {
            embedding,
            adapter: None,
        };
        let in_memory = self.worker.prefixes().longest(ids, kind);
        let gain = found.len.saturating_sub(in_memory);
        (gain >= MIN_TOKENS).then_some((found.key, gain))
    }

    /// Takes a prefix that was read, and submits the requests that waited for it.
    fn take(&mut self, loaded: Loaded) {
        let mut is_there = false;
        if let Some(dir) = &mut self.dir
            && let Some((name, image)) = loaded.image
            && let Some((ids, state)) = dir.state(self.model, name, image)
        {
            self.worker.prefixes().put(&ids, &state);
            is_there = true;
        }
        self.release(|held| held.key == loaded.key, is_there);
    }

    /// Takes the prefixes that were read.
    fn receive(&mut self, mut wait: Duration) {
        while let Some(dir) = &self.dir {
            match dir.next(wait) {
                Ok(loaded) => self.take(loaded),
                Err(RecvTimeoutError::Timeout) => return,
                // The thread that reads has panicked.
                Err(RecvTimeoutError::Disconnected) => return self.release(|_| true, false),
            }
            wait = Duration::ZERO;
        }
    }

    /// Submits the requests for which `is_due` holds.
    fn release(&mut self, is_due: impl Fn(&Held<'s>) -> bool, is_there: bool) {
        let due: Vec<Held<'s>> = self.held.extract_if(.., |held| is_due(held)).collect();
        for held in due {
            if let Some(dir) = &mut self.dir
                && is_there
            {
                dir.hit(held.gain);
            }
            let Held {
                checked,
                requested,
                dropped,
                backlog,
                sink,
                ..
            } = held;
            self.worker
                .submit(checked, requested, dropped, backlog, sink);
        }
    }

    /// Writes the prefixes that the worker has stored, and marks those that it has used.
    fn write(&mut self) {
        if let Some(dir) = &self.dir {
            for prefix in self.worker.prefixes().announced() {
                dir.keep(self.model, prefix);
            }
        }
    }
}

impl<'s> Decode<'s> for Tiered<'_, 's> {
    fn submit(
        &mut self,
        checked: Checked,
        requested: Instant,
        dropped: CancelToken,
        backlog: Option<Arc<Queue>>,
        sink: Sink<'s>,
    ) {
        // The folder has prefixes of the model without adapters.
        let longer = match &checked.held {
            None => self.longer(checked.ids()),
            Some(_) => None,
        };
        if let Some((key, gain)) = longer
            && let Some(dir) = &self.dir
            && (self.held.iter().any(|held| held.key == key) || dir.begin(key))
        {
            self.held.push(Held {
                key,
                gain,
                checked,
                requested,
                dropped,
                backlog,
                sink,
            });
            return;
        }
        self.worker
            .submit(checked, requested, dropped, backlog, sink);
    }

    fn advance(&mut self) {
        if !self.held.is_empty() {
            // The worker ends a request that was cancelled.
            self.release(|held| held.dropped.is_cancelled(), false);
            let wait = match self.worker.is_idle() {
                true => WAIT,
                false => Duration::ZERO,
            };
            self.receive(wait);
        }
        if !self.worker.is_idle() {
            self.worker.advance();
            self.write();
        }
    }

    fn cancel_all(&mut self) {
        self.release(|_| true, false);
        self.worker.cancel_all();
        self.write();
    }

    fn fail_lost(&mut self) {
        self.release(|_| true, false);
        self.worker.fail_lost();
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.worker.is_idle()
    }

    fn is_stalled(&self) -> bool {
        self.worker.is_stalled()
    }

    fn load(&self) -> EngineLoad {
        let load = self.worker.load();
        EngineLoad {
            waiting: load.waiting + self.held.len(),
            prefix_dir: self.dir.as_ref().map(PrefixDir::load).unwrap_or_default(),
            ..load
        }
    }
}
