//! Jobs: other work on the model than the rows. Each is computed in pieces, one piece between two
//! steps, and jobs take turns. A piece is a forward pass, which jobs with few texts share.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mlx_nn::lora::{TokenAdapters, with_adapters};

use crate::model::adapters::HeldAdapter;
use crate::request::cancel::CancelToken;

/// Starts a job on the engine's thread. A panic of a job ends only that job.
pub(crate) enum Begin<M> {
    /// A job of its own.
    Alone(Box<Start<M, Pieces<M>>>),
    /// A job whose texts may be computed together with those of other jobs.
    Texts(Box<Start<M, Box<dyn Texts<M>>>>),
}

type Start<M, W> = dyn FnOnce(&M) -> W + Send;

/// Computes the next piece of a job. Breaks after the last one.
pub(crate) type Pieces<M> = Box<dyn FnMut(&M) -> ControlFlow<()>>;

/// Texts of one job, or of several that are computed together.
pub(crate) trait Texts<M>: Any {
    /// Takes the texts of another job, if those of both are one piece of the work; else returns
    /// them. Nothing of either is computed yet. `beside_rows`: rows wait for the piece, so it should be
    /// no longer than a chunk of a prompt. What is joined depends on this, the texts and their options
    /// only, because all ranks of a model must join the same jobs.
    fn join(&mut self, other: Box<dyn Texts<M>>, beside_rows: bool) -> Option<Box<dyn Texts<M>>>;

    /// Computes the next piece. Breaks after the last one. An error is the result of a text, and
    /// concerns no text of another job.
    fn advance(&mut self, model: &M) -> ControlFlow<()>;
}

impl<M: 'static> Begin<M> {
    /// Starts the job, which is not computed together with others.
    pub(crate) fn alone(self, model: &M) -> Pieces<M> {
        match self {
            Self::Alone(begin) => begin(model),
            Self::Texts(begin) => {
                let mut texts = begin(model);
                Box::new(move |model| texts.advance(model))
            }
        }
    }
}

/// A job that was asked for.
pub(super) struct Job<M> {
    pub(super) begin: Begin<M>,
    /// The adapter under which it is computed.
    pub(super) held: Option<HeldAdapter>,
    /// Cancelled when no caller waits for the job.
    pub(super) left: CancelToken,
    /// The job as plain data, which the other ranks' reader of jobs understands, if they can compute
    /// it.
    pub(super) told: Option<String>,
}

enum JobState<M> {
    New(Begin<M>),
    /// Texts of which nothing is computed.
    Waiting(Box<dyn Texts<M>>),
    Begun(Pieces<M>),
}

/// A job in progress, or several that are computed together.
struct Turn<M> {
    /// The number of the first of these jobs.
    number: u64,
    /// The index of its model.
    model: usize,
    held: Option<HeldAdapter>,
    /// Of each job.
    left: Vec<CancelToken>,
    state: JobState<M>,
}

/// Jobs in progress.
pub(super) struct Jobs<M> {
    queue: VecDeque<Turn<M>>,
    /// The number of the next job.
    next: u64,
    pieces: usize,
}

impl<M: 'static> Jobs<M> {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            next: 0,
            pieces: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The number of computed pieces.
    pub(super) fn pieces(&self) -> usize {
        self.pieces
    }

    pub(super) fn push(&mut self, model: usize, job: Job<M>) {
        self.queue.push_back(Turn {
            number: self.next,
            model,
            held: job.held,
            left: vec![job.left],
            state: JobState::New(job.begin),
        });
        self.next += 1;
    }

    /// The numbers of the jobs for which no caller waits.
    pub(super) fn left(&self) -> Vec<u64> {
        let is_left = |turn: &&Turn<M>| turn.left.iter().all(CancelToken::is_cancelled);
        let left = self.queue.iter().filter(is_left);
        left.map(|turn| turn.number).collect()
    }

    /// Ends the jobs with these numbers.
    pub(super) fn remove(&mut self, numbers: &[u64]) {
        self.queue.retain(|turn| !numbers.contains(&turn.number));
    }

    /// Computes a piece of the next job, together with other jobs that have waited for their turn.
    /// `beside_rows`: whether rows wait for it.
    pub(super) fn advance(&mut self, models: &[M], beside_rows: bool) {
        let Some(turn) = self.queue.pop_front() else {
            return;
        };
        // A back end in another process has no models here, so its jobs are dropped.
        let Some(model) = models.get(turn.model) else {
            return;
        };
        let Some(mut turn) = turn.begun(model) else {
            return;
        };
        if let JobState::Waiting(_) = turn.state {
            self.join_waiting(&mut turn, model, beside_rows);
        }
        self.pieces += 1;
        self.queue.extend(turn.advanced(model));
    }

    /// Adds to `turn` the jobs in the queue that can be computed together with it.
    fn join_waiting(&mut self, turn: &mut Turn<M>, model: &M, beside_rows: bool) {
        for other in std::mem::take(&mut self.queue) {
            let kept = match other.is_joinable(turn) {
                true => (other.begun(model)).and_then(|other| turn.join(other, beside_rows)),
                false => Some(other),
            };
            self.queue.extend(kept);
        }
    }
}

impl<M: 'static> Turn<M> {
    /// Whether these are texts that may be computed together with those of `first`.
    fn is_joinable(&self, first: &Self) -> bool {
        let adapter = |turn: &Self| turn.held.as_ref().map(HeldAdapter::row);
        let is_waiting = matches!(
            self.state,
            JobState::New(Begin::Texts(_)) | JobState::Waiting(_)
        );
        is_waiting && self.model == first.model && adapter(self) == adapter(first)
    }

    /// Starts the job, if it is new. After a panic there is none, and its caller notices that it
    /// has ended without a result.
    fn begun(self, model: &M) -> Option<Self> {
        let JobState::New(begin) = self.state else {
            return Some(self);
        };
        let start = || match begin {
            Begin::Alone(begin) => JobState::Begun(begin(model)),
            Begin::Texts(begin) => JobState::Waiting(begin(model)),
        };
        let state = under(self.held.as_ref(), start)?;
        Some(Self { state, ..self })
    }

    /// Takes another job, if both can be computed together; else returns it.
    fn join(&mut self, other: Self, beside_rows: bool) -> Option<Self> {
        let (JobState::Waiting(texts), JobState::Waiting(others)) = (&mut self.state, other.state)
        else {
            unreachable!("both jobs are texts that wait");
        };
        match texts.join(others, beside_rows) {
            None => {
                self.left.extend(other.left);
                None
            }
            Some(others) => Some(Self {
                state: JobState::Waiting(others),
                ..other
            }),
        }
    }

    /// Computes a piece. Returns the job, if it has more of them.
    fn advanced(self, model: &M) -> Option<Self> {
        let mut pieces = match self.state {
            JobState::New(begin) => begin.alone(model),
            JobState::Waiting(mut texts) => Box::new(move |model: &M| texts.advance(model)),
            JobState::Begun(pieces) => pieces,
        };
        let piece = || pieces(model).is_continue().then_some(pieces);
        let state = JobState::Begun(under(self.held.as_ref(), piece)??);
        Some(Self { state, ..self })
    }
}

/// Calls `run` under an adapter. After a panic there is no result.
fn under<T>(held: Option<&HeldAdapter>, run: impl FnOnce() -> T) -> Option<T> {
    let tokens = held.map(|held| TokenAdapters::all(held.row()));
    let run = || with_adapters(tokens.as_ref(), run);
    catch_unwind(AssertUnwindSafe(run)).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn asked(begin: Begin<u32>, left: CancelToken) -> Job<u32> {
        Job {
            begin,
            held: None,
            left,
            told: None,
        }
    }

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
            jobs.push(
                place,
                asked(Begin::Alone(Box::new(job)), CancelToken::new()),
            );
        }
        let mut counts = Vec::new();
        while !jobs.is_empty() {
            jobs.advance(&[7, 8], false);
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
            let begin = Begin::Alone(Box::new(|_: &u32| -> Pieces<u32> {
                Box::new(|_| ControlFlow::Continue(()))
            }));
            jobs.push(0, asked(begin, left.clone()));
        }
        jobs.advance(&[1], false);
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

    /// Texts with names. Four of them are a piece, and two beside rows. One that is named `broken`
    /// panics when it begins.
    struct Named {
        names: Vec<&'static str>,
        log: Arc<Mutex<Vec<Vec<&'static str>>>>,
    }

    impl Texts<u32> for Named {
        fn join(
            &mut self,
            other: Box<dyn Texts<u32>>,
            beside_rows: bool,
        ) -> Option<Box<dyn Texts<u32>>> {
            let other: Box<Self> = (other as Box<dyn Any>).downcast().unwrap();
            let most = if beside_rows { 2 } else { 4 };
            if self.names.len() + other.names.len() > most {
                return Some(other);
            }
            self.names.extend(other.names);
            None
        }

        fn advance(&mut self, _: &u32) -> ControlFlow<()> {
            let n = self.names.len().min(4);
            self.log
                .lock()
                .unwrap()
                .push(self.names.drain(..n).collect());
            match self.names.len() {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }

    #[test]
    fn texts_that_wait_are_computed_together() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut jobs = Jobs::new();
        let callers: Vec<CancelToken> = (0..8).map(|_| CancelToken::new()).collect();
        let texts: [(usize, &[&str]); 8] = [
            (0, &["a"]),
            (0, &["b1", "b2", "b3", "b4", "b5"]),
            (1, &["of another model"]),
            (0, &["left"]),
            (0, &["broken"]),
            (0, &["c1", "c2"]),
            (0, &["d"]),
            (0, &["e"]),
        ];
        for ((model, names), left) in texts.into_iter().zip(&callers) {
            let log = log.clone();
            let begin = move |_: &u32| -> Box<dyn Texts<u32>> {
                assert!(names[0] != "broken", "it panics");
                let names = names.to_vec();
                Box::new(Named { names, log })
            };
            jobs.push(model, asked(Begin::Texts(Box::new(begin)), left.clone()));
        }
        callers[3].cancel();
        let left = jobs.left();
        jobs.remove(&left);
        jobs.advance(&[7, 8], true);
        while !jobs.is_empty() {
            jobs.advance(&[7, 8], false);
        }
        let expected: [&[&str]; 5] = [
            &["a", "d"],
            &["b1", "b2", "b3", "b4"],
            &["of another model"],
            &["c1", "c2", "e"],
            &["b5"],
        ];
        assert_eq!(*log.lock().unwrap(), expected);
        assert_eq!(jobs.pieces(), 5);
    }

    #[test]
    fn joined_jobs_end_when_all_callers_have_left() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut jobs = Jobs::new();
        let callers = [(); 2].map(|()| CancelToken::new());
        for left in &callers {
            let log = log.clone();
            let begin = move |_: &u32| -> Box<dyn Texts<u32>> {
                let names = vec!["x", "y"];
                Box::new(Named { names, log })
            };
            jobs.push(0, asked(Begin::Texts(Box::new(begin)), left.clone()));
        }
        let mut turn = jobs.queue.pop_front().unwrap().begun(&7).unwrap();
        jobs.join_waiting(&mut turn, &7, false);
        jobs.queue.push_back(turn);
        callers[0].cancel();
        assert!(jobs.left().is_empty());
        callers[1].cancel();
        assert_eq!(jobs.left(), [0]);
        jobs.remove(&[0]);
        assert!(jobs.is_empty());
    }
}
