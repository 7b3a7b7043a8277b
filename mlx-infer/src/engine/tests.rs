//! Forward passes that fail or panic: each pass of a batch in turn.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use mlx_core::kernel::{self, CpuKernel, Spec, View, ViewMut};
use mlx_core::{Array, Result};
use mlx_models::{Geometry, Model};
use mlx_nn::{Head, Module, Path as Name, Residual, Step, Visit, VisitMut};

use super::worker::Worker;
use crate::error::ErrorKind;
use crate::model::{LoadOptions, LoadedModel};
use crate::request::Request;
use crate::request::cancel::CancelToken;
use crate::request::generation::{Event, GenerateOptions};
use crate::request::limits::Limits;

/// How a forward pass goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// When it is evaluated, as when memory runs out.
    Evaluation,
    /// When its graph is built.
    Graph,
    /// By a panic.
    Panic,
}

struct Broken;

impl CpuKernel for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }
    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }
    fn eval(&self, _: &[View<'_>], _: &mut [ViewMut<'_>]) -> std::result::Result<(), String> {
        Err("no more memory".to_owned())
    }
}

/// A model of which some forward passes go wrong, by their numbers.
pub(crate) struct Faulty {
    pub(crate) model: Box<dyn Model>,
    pub(crate) fault: Fault,
    pub(crate) fails: Rc<dyn Fn(usize) -> bool>,
    pub(crate) passes: Rc<Cell<usize>>,
}

impl Module for Faulty {
    fn visit(&self, path: &mut Name, v: &mut dyn Visit) -> Result<()> {
        self.model.visit(path, v)
    }
    fn visit_mut(&mut self, path: &mut Name, v: &mut dyn VisitMut) -> Result<()> {
        self.model.visit_mut(path, v)
    }
}

impl Model for Faulty {
    fn embed(&self, tokens: &Array) -> Result<Array> {
        self.model.embed(tokens)
    }
    fn layer(&self, index: usize, x: Residual, step: &mut Step<'_>) -> Result<Residual> {
        self.model.layer(index, x, step)
    }
    fn norm(&self, x: Residual) -> Result<[Array; 2]> {
        let pass = self.passes.replace(self.passes.get() + 1);
        let [x, hidden] = self.model.norm(x)?;
        if !(self.fails)(pass) {
            return Ok([x, hidden]);
        }
        let hidden = match self.fault {
            Fault::Evaluation => kernel::apply(Broken, &[&hidden])?.remove(0),
            Fault::Graph => hidden.reshape(&[7, 7, 7])?,
            Fault::Panic => panic!("forward pass {pass}"),
        };
        Ok([x, hidden])
    }
    fn head(&self) -> Head<'_> {
        self.model.head()
    }
    fn geometry(&self) -> &Geometry {
        self.model.geometry()
    }
}

fn requests() -> Vec<Request> {
    // Prompts of several chunks, prompts of one chunk, and prompts with a common beginning.
    let prompts = [(40, 9), (3, 6), (21, 4), (3, 8), (1, 5)];
    let request = |(length, max_tokens): (u32, usize)| {
        let prompt: Vec<u32> = (0..length).map(|at| (at * 7 + 3) % 60).collect();
        let mut options = GenerateOptions {
            max_tokens,
            prefill_chunk: 16,
            ignore_eos: true,
            ..Default::default()
        };
        options.sampling.temperature = 1.0;
        options.sampling.seed = Some(u64::from(length));
        Request::new(prompt, options)
    };
    prompts.into_iter().map(request).collect()
}

/// The tokens of a request, and its error.
#[derive(Clone, Default)]
struct Outcome {
    tokens: Vec<u32>,
    error: Option<(ErrorKind, String)>,
}

/// What the requests get if forward pass `at` fails, and the number of passes. `is_split`: prompts and
/// rows have passes of their own, as on CUDA.
fn run(fault: Fault, at: usize, is_split: bool) -> (Vec<Outcome>, usize) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/llama_llama3");
    let passes = Rc::new(Cell::new(0));
    let model = LoadedModel::load(dir, LoadOptions::default()).unwrap();
    let model = model.map(|model| {
        Box::new(Faulty {
            model,
            fault,
            fails: Rc::new(move |pass| pass == at),
            passes: passes.clone(),
        })
    });
    let limits = Limits {
        rows: 3,
        ..Limits::default()
    };
    let mut worker = Worker::new(&model, limits);
    if is_split {
        worker = worker.splitting();
    }
    let outcomes: Vec<Rc<RefCell<Outcome>>> = requests()
        .into_iter()
        .map(|request| {
            let outcome = Rc::<RefCell<Outcome>>::default();
            let told = outcome.clone();
            let sink = Box::new(move |event: crate::error::Result<Event>| {
                match event {
                    Ok(Event::Token { choice, .. }) => told.borrow_mut().tokens.push(choice.id),
                    Ok(_) => {}
                    Err(error) => {
                        told.borrow_mut().error = Some((error.kind(), error.to_string()));
                    }
                }
                ControlFlow::Continue(())
            });
            let request = model.frontend().checked(request).unwrap();
            worker.submit(request, Instant::now(), CancelToken::new(), None, sink);
            outcome
        })
        .collect();
    while !worker.is_idle() {
        worker.advance();
    }
    drop(worker);
    let outcomes = outcomes.iter().map(|outcome| outcome.take()).collect();
    (outcomes, passes.get())
}

#[test]
fn a_pass_that_fails_costs_at_most_one_request() {
    for is_split in [false, true] {
        let (expected, passes) = run(Fault::Graph, usize::MAX, is_split);
        assert!(passes > 10 && expected.iter().all(|outcome| outcome.error.is_none()));
        for fault in [Fault::Evaluation, Fault::Graph] {
            let mut failures = 0;
            for at in 0..passes {
                let (outcomes, _) = run(fault, at, is_split);
                let errors: Vec<_> = outcomes.iter().map(|outcome| &outcome.error).collect();
                let failed = errors.iter().flat_map(|error| error.as_ref()).count();
                assert!(failed <= 1, "{fault:?} {at}: {errors:?}");
                failures += failed;
                for (outcome, expected) in outcomes.iter().zip(&expected) {
                    let (found, expected) = (&outcome.tokens, &expected.tokens);
                    let whole = outcome.error.is_some() || found.len() == expected.len();
                    assert!(whole && expected.starts_with(found), "{fault:?} {at}");
                }
            }
            // The chunks of the long prompt are computed alone, and so is the last row's last step.
            assert!(failures >= 2, "{fault:?}: {failures}");
        }
    }
}

#[test]
fn a_panic_ends_the_requests_under_way_as_errors() {
    for is_split in [false, true] {
        let (expected, passes) = run(Fault::Graph, usize::MAX, is_split);
        for at in [0, 2, passes / 2, passes - 1] {
            let (outcomes, _) = run(Fault::Panic, at, is_split);
            let failed: Vec<_> = outcomes
                .iter()
                .filter_map(|outcome| outcome.error.as_ref())
                .collect();
            assert!(!failed.is_empty(), "{at}");
            for (kind, message) in failed {
                assert_eq!(*kind, ErrorKind::Compute);
                assert!(message.contains("has panicked"), "{message}");
            }
            for (outcome, expected) in outcomes.iter().zip(&expected) {
                assert!(expected.tokens.starts_with(&outcome.tokens), "{at}");
            }
        }
    }
}
