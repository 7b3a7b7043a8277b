//! Jobs: other work on the model than the rows. Each is computed in pieces, one piece between two
//! steps, and jobs take turns.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Starts a job on the engine's thread. A panic of a job ends only that job.
pub(super) type Job<M> = Box<dyn FnOnce(&M) -> Pieces<M> + Send>;

/// Computes the next piece of a job. Breaks after the last one.
pub(super) type Pieces<M> = Box<dyn FnMut(&M) -> ControlFlow<()>>;

enum JobState<M> {
    New(Job<M>),
    Begun(Pieces<M>),
}

/// Jobs in progress.
pub(super) struct Jobs<M> {
    /// Each job with the index of its model.
    queue: VecDeque<(usize, JobState<M>)>,
}

impl<M> Jobs<M> {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn push(&mut self, model: usize, job: Job<M>) {
        self.queue.push_back((model, JobState::New(job)));
    }

    /// Computes a piece of the next job.
    pub(super) fn advance(&mut self, models: &[M]) {
        let Some((place, turn)) = self.queue.pop_front() else {
            return;
        };
        // A back end in another process has no models here, so its jobs are dropped.
        let Some(model) = models.get(place) else {
            return;
        };
        let piece = || {
            let mut pieces = match turn {
                JobState::New(job) => job(model),
                JobState::Begun(pieces) => pieces,
            };
            pieces(model).is_continue().then_some(pieces)
        };
        // After a panic the caller notices that the job has ended without a result.
        if let Ok(Some(pieces)) = catch_unwind(AssertUnwindSafe(piece)) {
            self.queue.push_back((place, JobState::Begun(pieces)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn jobs_take_turns() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut jobs = Jobs::new();
        for (name, place, pieces) in [("a", 0, 3), ("b", 1, 1), ("broken", 0, 0), ("c", 0, 2)] {
            let log = log.clone();
            let job = move |model: &u32| -> Pieces<u32> {
                assert!(pieces > 0, "it panics");
                let (mut left, begun_with) = (pieces, *model);
                Box::new(move |model| {
                    assert_eq!(*model, begun_with);
                    log.lock().unwrap().push(format!("{name}{model}"));
                    left -= 1;
                    match left {
                        0 => ControlFlow::Break(()),
                        _ => ControlFlow::Continue(()),
                    }
                })
            };
            jobs.push(place, Box::new(job));
        }
        let mut counts = Vec::new();
        while !jobs.is_empty() {
            jobs.advance(&[7, 8]);
            counts.push(log.lock().unwrap().len());
        }
        assert_eq!(*log.lock().unwrap(), ["a7", "b8", "c7", "a7", "c7", "a7"]);
        // Each turn computes one piece of each job, except of the broken job.
        assert_eq!(counts, [1, 2, 2, 3, 4, 5, 6]);
    }
}
