//! Admission of requests, and requests whose callers do not read their events.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::super::handle::Queue;
use super::super::task::{Sink, Task};
use super::{Worker, out_of_memory};
use crate::engine::scheduler::Id;
use crate::engine::sequence::Sequence;
use crate::error::{Error, ErrorKind};
use crate::request::Request;
use crate::request::cancel::CancelToken;

impl<'s> Worker<'_, 's> {
    /// Adds a request. If it is refused, its sink gets an error.
    pub(crate) fn submit(
        &mut self,
        request: Request,
        requested: Instant,
        dropped: CancelToken,
        backlog: Option<Arc<Queue>>,
        mut sink: Sink<'s>,
    ) {
        let model = self.model;
        let sequence = || {
            if let Some(name) = &request.adapter {
                let message = format!("adapter {name:?}: only an engine has adapters by name");
                return Err(Error::argument(message));
            }
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
        match checked {
            Ok(sequence) => {
                let id = self.enqueue(sequence, dropped, backlog, sink);
                if let Some(task) = self.tasks.get_mut(&id) {
                    task.processor = request.processor;
                }
            }
            Err(error) => {
                let _ = sink(Err(error));
            }
        }
    }

    /// Adds a request that was checked.
    pub(crate) fn enqueue(
        &mut self,
        mut sequence: Sequence,
        dropped: CancelToken,
        backlog: Option<Arc<Queue>>,
        sink: Sink<'s>,
    ) -> Id {
        self.submitted += 1;
        if let Some(row) = sequence.speculation_mut() {
            // The rates move towards the initial ones each time, so that a drafter that was bad for some texts is tried
            // with others.
            self.experience.usual.forget();
            row.expect(self.experience.usual);
        }
        let task = Task {
            base: sequence.history().prompt_len(),
            sequence,
            given: None,
            partial: None,
            processor: None,
            sink,
            backlog,
            dropped,
            abandoned: false,
        };
        self.scheduler.submit(task.job(self.submitted));
        self.tasks.insert(self.submitted, task);
        self.submitted
    }

    /// Whether there is nothing to compute until a caller reads events or cancels, or a request arrives.
    pub(crate) fn is_stalled(&self) -> bool {
        let is_paused = |id: Id| self.tasks.get(&id).is_none_or(Task::is_paused);
        !self.rows.is_busy()
            && self.scheduler.counts()[..2] == [0, 0]
            && self.scheduler.running().all(is_paused)
            && self.scheduler.parked().all(is_paused)
    }

    /// Queues those parked requests again whose callers have read their events. They come after requests that arrived
    /// meanwhile.
    pub(super) fn unpark(&mut self) {
        let parked: Vec<Id> = self.scheduler.parked().collect();
        for id in parked {
            if let Some(task) = self.tasks.get(&id)
                && !task.is_paused()
            {
                self.scheduler.remove(id);
                self.scheduler.submit(task.job(id));
            }
        }
    }

    /// Evicts paused rows while another request waits for a row or for memory. Their tokens are replayed when they
    /// return, so that they do not change.
    pub(super) fn park(&mut self) {
        let [waiting, ..] = self.scheduler.counts();
        let paused = |worker: &Self| -> Vec<Id> {
            let is_paused = |id: &Id| worker.tasks.get(id).is_some_and(Task::is_paused);
            worker.scheduler.running().filter(is_paused).collect()
        };
        if waiting == 0 || paused(self).is_empty() {
            return;
        }
        self.settle();
        for id in paused(self) {
            self.rows.free(id);
            self.scheduler.park(id);
        }
    }
}
