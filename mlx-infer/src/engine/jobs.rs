//! Jobs: other work on the model than the rows. Each is computed in pieces, one piece between two
//! steps, and jobs take turns.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mlx_nn::lora::{TokenAdapters, with_adapters};

use crate::model::LoadedModel;
use crate::model::adapters::HeldAdapter;
use crate::request::cancel::CancelToken;

/// Starts a job on the engine's thread. A panic of a job ends only that job.
pub(crate) type Begin<M> = Box<dyn FnOnce(&M) -> Pieces<M> + Send>;

/// Computes the next piece of a job. Breaks after the last one.
pub(crate) type Pieces<M> = Box<dyn FnMut(&M) -> ControlFlow<()>>;

/// A job that was asked for.
pub(super) struct Job<M> {
    pub(super) begin: Begin<M>,
    /// Cancelled when no caller waits for the job.
    pub(super) left: CancelToken,
    /// The job for the other ranks of a model, if they can compute it.
    pub(super) told: Option<ToldJob>,
}

/// A job as plain data.
pub(super) struct ToldJob {
    /// What the ranks' reader of jobs understands.
    pub(super) work: String,
    /// The adapter of the job.
    pub(super) held: Option<HeldAdapter>,
}

/// The job under an adapter, which it holds until its end.
pub(super) fn under(held: Option<HeldAdapter>, begin: Begin<LoadedModel>) -> Begin<LoadedModel> {
    Box::new(move |model| {
        let tokens = held.as_ref().map(|held| TokenAdapters::all(held.row()));
        let mut piece = with_adapters(tokens.as_ref(), || begin(model));
        Box::new(move |model| {
            let _held = &held;
            with_adapters(tokens.as_ref(), || piece(model))
        })
    })
}

enum JobState<M> {
    New(Begin<M>),
    Begun(Pieces<M>),
}

/// A job in progress.
struct Turn<M> {
    number: u64,
    /// The index of its model.
    model: usize,
    left: CancelToken,
    state: JobState<M>,
}

/// Jobs in progress.
pub(super) struct Jobs<M> {
    queue: VecDeque<Turn<M>>,
    /// The number of the next job.
    next: u64,
}

impl<M> Jobs<M> {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            next: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn push(&mut self, model: usize, job: Job<M>) {
        self.queue.push_back(Turn {
            number: self.next,
            model,
            left: job.left,
            state: JobState::New(job.begin),
        });
        self.next += 1;
    }

    /// The numbers of the jobs for which no caller waits.
    pub(super) fn left(&self) -> Vec<u64> {
        let left = self.queue.iter().filter(|turn| turn.left.is_cancelled());
        left.map(|turn| turn.number).collect()
    }

    /// Ends the jobs with these numbers.
    pub(super) fn remove(&mut self, numbers: &[u64]) {
        self.queue.retain(|turn| !numbers.contains(&turn.number));
    }

    /// Computes a piece of the next job.
    pub(super) fn advance(&mut self, models: &[M]) {
        let Some(turn) = self.queue.pop_front() else {
            return;
        };
        // A back end in another process has no models here, so its jobs are dropped.
        let Some(model) = models.get(turn.model) else {
            return;
        };
        let state = turn.state;
        let piece = || {
            let mut pieces = match state {
                JobState::New(begin) => begin(model),
                JobState::Begun(pieces) => pieces,
            };
            pieces(model).is_continue().then_some(pieces)
        };
        // After a panic the caller notices that the job has ended without a result.
        if let Ok(Some(pieces)) = catch_unwind(AssertUnwindSafe(piece)) {
            let state = JobState::Begun(pieces);
            self.queue.push_back(Turn { state, ..turn });
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
            let job = Job {
                begin: Box::new(job),
                left: CancelToken::new(),
                told: None,
            };
            jobs.push(place, job);
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

    #[test]
    fn jobs_without_a_caller_are_removed_by_their_numbers() {
        let mut jobs: Jobs<u32> = Jobs::new();
        let callers = [(); 3].map(|()| CancelToken::new());
        for left in &callers {
            let begin: Begin<u32> = Box::new(|_| Box::new(|_| ControlFlow::Continue(())));
            let (left, told) = (left.clone(), None);
            jobs.push(0, Job { begin, left, told });
        }
        jobs.advance(&[1]);
        assert!(jobs.left().is_empty());
        callers[0].cancel();
        callers[2].cancel();
        // The first has had its turn.
        assert_eq!(jobs.left(), [2, 0]);
        jobs.remove(&[0]);
        assert_eq!(jobs.left(), [2]);
        jobs.remove(&[2, 9]);
        assert!(jobs.left().is_empty() && !jobs.is_empty());
    }
}
