//! What the engine's thread does: carries out the scheduler's plans on the rows.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use mlx_core::Array;

use super::handle::Backlog;
use super::prefixes::Prefixes;
use super::rows::{Queued, Rows};
use super::task::{Sink, Task, Tasks};
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::generate::{Event, FinishReason, Sequence};
use crate::model::LoadedModel;
use crate::processor;
use crate::request::Request;
use crate::sampler::Choice;
use crate::scheduler::{CacheCost, Id, Limits, Scheduler};

/// Requests, their rows, and who comes next.
pub(crate) struct Worker<'m, 's> {
    pub(super) model: &'m LoadedModel,
    pub(super) scheduler: Scheduler,
    pub(super) rows: Rows<'m>,
    pub(super) tasks: Tasks<'s>,
    pub(super) prefixes: Prefixes,
    /// The step whose tokens have not been read.
    pub(super) queued: Option<Queued>,
    /// Requests without a row whose readers are behind.
    pub(super) parked: BTreeSet<Id>,
    submitted: Id,
    pub(super) forwards: usize,
    evictions: usize,
}

impl<'m, 's> Worker<'m, 's> {
    pub(crate) fn new(model: &'m LoadedModel, limits: Limits) -> Self {
        let cost = CacheCost::new(model.state_costs(), model.cache_options().growth);
        Self {
            prefixes: Prefixes::new(limits.prefix_bytes),
            scheduler: Scheduler::new(limits, cost),
            rows: Rows::new(model),
            tasks: Tasks::new(),
            queued: None,
            parked: BTreeSet::new(),
            submitted: 0,
            forwards: 0,
            evictions: 0,
            model,
        }
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Requests under way.
    pub(crate) fn counts(&self) -> [usize; 3] {
        let [waiting, prefilling, decoding] = self.scheduler.counts();
        [waiting + self.parked.len(), prefilling, decoding]
    }

    /// Times that the model has run.
    pub(crate) fn forwards(&self) -> usize {
        self.forwards
    }

    /// Rows that were given up for want of memory.
    pub(crate) fn evictions(&self) -> usize {
        self.evictions
    }

    /// Prompts that began with what was kept, their tokens that were not computed, and the bytes that are
    /// kept.
    pub(crate) fn prefix_counts(&self) -> [usize; 3] {
        self.prefixes.counts()
    }

    /// Does a part of the work, as [`tick`](Self::tick) does. A panic ends the requests under way, each with an error, and the worker goes on
    /// with those that come after.
    pub(crate) fn advance(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.tick())).is_err() {
            self.fail_all("the engine has panicked while it computed this request");
        }
    }

    /// Takes a request in. What is wrong with it is told to its sink.
    pub(crate) fn submit(
        &mut self,
        request: Request,
        requested: Instant,
        dropped: CancelToken,
        backlog: Option<Arc<Backlog>>,
        mut sink: Sink<'s>,
    ) {
        let model = self.model;
        let sequence = || {
            let ids = model.prompt_ids(request.prompt)?;
            Sequence::new(model, ids, &request.options, requested)
        };
        let panicked = |_| {
            Err(Error::new(
                ErrorKind::Compute,
                "the request made the engine panic",
            ))
        };
        let checked = catch_unwind(AssertUnwindSafe(sequence)).unwrap_or_else(panicked);
        let checked = checked.and_then(|sequence| {
            match self.scheduler.exceeds(sequence.history().prompt_len() + 1) {
                None => Ok(sequence),
                Some(bytes) => Err(out_of_memory(bytes)),
            }
        });
        let sequence = match checked {
            Ok(sequence) => sequence,
            Err(error) => {
                let _ = sink(Err(error));
                return;
            }
        };
        self.submitted += 1;
        let task = Task {
            base: sequence.history().prompt_len(),
            sequence,
            partial: None,
            processor: request.processor,
            sink,
            backlog,
            dropped,
            abandoned: false,
        };
        self.scheduler.submit(task.job(self.submitted));
        self.tasks.insert(self.submitted, task);
    }

    /// Ends every request now, as cancelled.
    pub(crate) fn cancel_all(&mut self) {
        self.queued = None;
        for id in self.ids() {
            self.finish(id, FinishReason::Cancelled);
        }
        self.rows.reset();
        self.scheduler.set_slots(0);
    }

    /// Ends every request with an error, after something unforeseen.
    pub(crate) fn fail_all(&mut self, message: &str) {
        self.queued = None;
        self.prefixes.clear();
        for id in self.ids() {
            self.fail(id, Error::new(ErrorKind::Compute, message));
        }
        self.rows.reset();
        self.scheduler.set_slots(0);
    }

    /// Does a part of the work: at most one chunk of a long prompt, one group of short ones, and one step.
    fn tick(&mut self) {
        for id in self.ids() {
            if self.tasks[&id].is_cancelled() {
                self.finish(id, FinishReason::Cancelled);
            }
        }
        self.unpark();
        let plan = self.scheduler.plan();
        if plan.compact || !plan.evict.is_empty() || !plan.refuse.is_empty() {
            self.settle();
        }
        for (id, bytes) in plan.refuse {
            self.fail(id, out_of_memory(bytes));
        }
        if plan.compact || !plan.evict.is_empty() {
            self.evictions += plan.evict.len();
            for &id in &plan.evict {
                self.restart(id, None);
            }
            if let Err(error) = self.rows.compact() {
                self.step_failed(error);
            }
            self.scheduler.set_slots(self.rows.slots());
        }
        self.reuse();
        for pieces in self.scheduler.pieces() {
            self.prefill(&pieces);
        }
        self.decode();
        self.park();
        if self.is_idle() {
            self.queued = None;
            self.rows.reset();
            self.scheduler.set_slots(0);
        }
    }

    /// Queues a step of all rows, then reads the one before it.
    fn decode(&mut self) {
        let running: Vec<Id> = self.scheduler.running().collect();
        if running.is_empty() {
            return;
        }
        if running.iter().any(|id| self.rows.is_at_switch(*id)) {
            // The host has to see all tokens first.
            self.settle();
        }
        for id in running {
            if self.tasks.contains_key(&id) && self.rows.is_at_switch(id) {
                let all = self.tasks[&id].sequence.history().ids().len();
                self.restart(id, Some(all));
            }
        }
        let previous = self.queued.take();
        match self.rows.step(&self.tasks, previous.as_ref()) {
            Ok(stepped) => {
                for &id in &stepped.ids {
                    self.scheduler.stepped(id);
                }
                self.forwards += usize::from(stepped.queued.is_some());
                self.queued = stepped.queued;
                self.read(previous);
            }
            Err(error) => self.step_failed(error),
        }
    }

    /// Reads the step under way, so that rows may come and go.
    pub(super) fn settle(&mut self) {
        let queued = self.queued.take();
        self.read(queued);
    }

    fn read(&mut self, queued: Option<Queued>) {
        let Some(queued) = queued else { return };
        match self.rows.read(&queued) {
            Ok(choices) => {
                for (id, choice) in choices {
                    self.accept(id, choice);
                }
                for (id, logits) in self.rows.on_host(queued) {
                    self.choose_on_host(id, &logits);
                }
            }
            Err(error) => self.step_failed(error),
        }
    }

    /// Chooses the next token of a request from its `logits` `[1, V]`, with its processor.
    pub(super) fn choose_on_host(&mut self, id: Id, logits: &Array) {
        if let Some(task) = self.tasks.get_mut(&id)
            && let Some(processor) = &mut task.processor
        {
            let choice = processor::choose(processor, logits, task.sequence.row());
            self.accept(id, choice);
        }
    }

    /// Takes a token of a request.
    pub(super) fn accept(&mut self, id: Id, choice: Result<Choice>) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        match choice.and_then(|choice| task.sequence.accept(choice)) {
            Ok((event, ends)) => {
                task.tell(Ok(event));
                if let Some(reason) = ends {
                    self.finish(id, reason);
                }
            }
            Err(error) => self.fail(id, error),
        }
    }

    fn finish(&mut self, id: Id, reason: FinishReason) {
        self.keep_row(id, reason);
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let event = task.sequence.finish(reason);
        if let Ok(Event::Finish { metrics, .. }) = &event {
            self.model.set_metrics(*metrics);
        }
        task.tell(event);
        self.scheduler.recovered();
        self.forget(id);
    }

    /// Ends a request with an error.
    pub(super) fn fail(&mut self, id: Id, error: Error) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.tell(Err(error));
        }
        self.forget(id);
    }

    fn forget(&mut self, id: Id) {
        self.tasks.remove(&id);
        self.parked.remove(&id);
        self.rows.free(id);
        self.scheduler.remove(id);
    }

    /// Gives up the row of a request, which waits again; with `base` its prompt is so many tokens now.
    fn restart(&mut self, id: Id, base: Option<usize>) {
        self.rows.free(id);
        if let Some(task) = self.tasks.get_mut(&id) {
            task.partial = None;
            task.base = base.unwrap_or(task.base);
            self.scheduler.restart(id, task.base, task.replay());
        }
    }

    /// A step failed as a whole: its rows start again, fewer at a time; one that was alone fails.
    pub(super) fn step_failed(&mut self, error: Error) {
        self.queued = None;
        // The first that can go, if memory was short.
        self.prefixes.clear();
        self.rows.reset();
        self.scheduler.set_slots(0);
        let to_blame = self.scheduler.step_failed();
        for id in self.ids() {
            let task = self.tasks.get_mut(&id).expect("it is there");
            if task.partial.is_none() {
                self.scheduler.restart(id, task.base, task.replay());
            }
        }
        if let Some(id) = to_blame {
            self.fail(id, error);
        }
    }

    fn ids(&self) -> Vec<Id> {
        self.tasks.keys().copied().collect()
    }
}

fn out_of_memory(bytes: usize) -> Error {
    Error::new(
        ErrorKind::Memory,
        format!("the request's caches need {bytes} bytes, more than the engine may take"),
    )
}
