//! Other work on the model beside the rows, in pieces: one piece between two steps. Jobs take turns.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Starts a job on the engine's thread. A panic of a job ends only that job.
pub(super) type Job<M> = Box<dyn FnOnce(&M) -> Pieces<M> + Send>;

/// Computes the next piece of a job. Breaks after the last one.
pub(super) type Pieces<M> = Box<dyn FnMut(&M) -> ControlFlow<()>>;

enum Turn<M> {
    New(Job<M>),
    Begun(Pieces<M>),
}

/// Jobs in progress.
pub(super) struct Jobs<M> {
    /// Each job with the index of its model.
    queue: VecDeque<(usize, Turn<M>)>,
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
        self.queue.push_back((model, Turn::New(job)));
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
                Turn::New(job) => job(model),
                Turn::Begun(pieces) => pieces,
            };
            pieces(model).is_continue().then_some(pieces)
        };
        // The caller notices that a job which panicked has ended without a result.
        if let Ok(Some(pieces)) = catch_unwind(AssertUnwindSafe(piece)) {
            self.queue.push_back((place, Turn::Begun(pieces)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::engine::{Engine, EngineOptions};
    use crate::model::{LoadOptions, LoadedModel};
    use crate::request::Request;
    use crate::tasks::classify::{ClassifyOptions, Run};
    use crate::tasks::generate::{GenerateOptions, Prompt};
    use crate::tasks::score::{ScoreOptions, Scoring};

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
        // Each turn is one piece; the broken job has none.
        assert_eq!(counts, [1, 2, 2, 3, 4, 5, 6]);
    }

    fn model() -> LoadedModel {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/llama_llama3");
        LoadedModel::load(dir, LoadOptions::default()).unwrap()
    }

    fn ids(len: u32, seed: u32) -> Vec<u32> {
        (0..len).map(|at| (at * 7 + seed) % 60).collect()
    }

    /// Long scores and classifications are computed in pieces, with at least one step of the rows between two of them, and are what they are
    /// alone.
    #[test]
    fn rows_go_on_between_the_pieces() {
        let engine = Engine::start(|| Ok(model()), EngineOptions::default()).unwrap();
        let engine = Arc::new(engine);
        let options = GenerateOptions {
            max_tokens: 200,
            ignore_eos: true,
            ..Default::default()
        };
        let expected = engine.submit(Request::new(ids(5, 1), options.clone()));
        let expected = expected.unwrap().wait().tokens;

        let scored = ScoreOptions {
            chunk: 8,
            ..Default::default()
        };
        let classified = ClassifyOptions {
            batch_tokens: 32,
            ..Default::default()
        };
        let texts = || {
            (0..20u32)
                .map(|n| Prompt::Tokens(ids(12, n)))
                .collect::<Vec<_>>()
        };
        let alone = model();
        let score = alone.score(ids(160, 2), &scored).unwrap();
        let labels = alone.classify(texts(), &classified).unwrap();
        let labels: Vec<u32> = labels
            .into_iter()
            .map(|label| label.unwrap().token)
            .collect();

        let row = engine.submit(Request::new(ids(5, 1), options)).unwrap();
        while engine.load().decoding == 0 {
            std::thread::yield_now();
        }
        // The forward passes of the rows before each piece.
        let (send, seen) = std::sync::mpsc::channel();
        let (look, sender) = (engine.clone(), send.clone());
        engine
            .run_in_pieces(None, move |model| {
                let mut scoring = Scoring::begin(model, ids(160, 2).into(), &scored).unwrap();
                move |model: &LoadedModel| {
                    let found = scoring.advance(model).unwrap();
                    let _ = sender.send(("score", look.load().forwards));
                    match found {
                        None => ControlFlow::Continue(()),
                        Some(found) => {
                            assert_eq!(found, score);
                            ControlFlow::Break(())
                        }
                    }
                }
            })
            .unwrap();
        let look = engine.clone();
        engine
            .run_in_pieces(None, move |model| {
                let encoded = model
                    .frontend()
                    .encode(texts().into_iter().map(Ok).collect(), &classified)
                    .unwrap();
                let mut run = Run::begin(model, encoded, &classified);
                let mut tokens = vec![0; 20];
                move |model: &LoadedModel| {
                    let mut take = |index: usize, result: crate::Result<crate::ClassifyResult>| {
                        tokens[index] = result.unwrap().token;
                    };
                    let goes_on = run.advance(model, &mut take);
                    let _ = send.send(("classify", look.load().forwards));
                    if goes_on {
                        return ControlFlow::Continue(());
                    }
                    assert_eq!(tokens, labels);
                    ControlFlow::Break(())
                }
            })
            .unwrap();
        let seen: Vec<(&str, usize)> = seen.iter().collect();
        let count = |name: &str| seen.iter().filter(|(seen, _)| *seen == name).count();
        assert_eq!(count("score"), 20);
        assert!(count("classify") >= 8, "{seen:?}");
        assert!(seen.windows(2).all(|two| two[0].1 < two[1].1), "{seen:?}");
        assert_eq!(row.wait().tokens, expected);
    }
}
