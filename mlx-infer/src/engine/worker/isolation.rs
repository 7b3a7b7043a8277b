//! A panic in the grammar, the drafts or the tokens of one request ends that request and no other.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;

use super::*;
use crate::engine::speculate::drafters::Drafts;
use crate::model::LoadOptions;
use crate::request::Request;
use crate::request::cancel::CancelToken;
use crate::request::generation::GenerateOptions;
use crate::request::grammar::Grammar;
use crate::request::speculative::Speculative;

fn model() -> LoadedModel {
    let options = LoadOptions {
        max_draft: 4,
        ..Default::default()
    };
    LoadedModel::load_files(
        crate::model::default_model::files(),
        options,
        &mut |_, _| (),
    )
    .unwrap()
}

fn options(regex: Option<&str>, speculative: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: 24,
        ignore_eos: true,
        grammar: regex.map(|regex| Grammar::Regex(regex.to_owned()).into()),
        speculative: match speculative {
            0 => Speculative::Off,
            tokens => Speculative::Tokens(tokens),
        },
        ..Default::default()
    }
}

type Told = Rc<RefCell<(Vec<u32>, Option<String>)>>;

fn submit<'s>(worker: &mut Worker<'_, 's>, options: &GenerateOptions) -> Told {
    let told = Told::default();
    let to = told.clone();
    let sink = Box::new(move |event: Result<Event>| {
        match event {
            Ok(Event::Token { choice, .. }) => to.borrow_mut().0.push(choice.id),
            Ok(_) => {}
            Err(error) => to.borrow_mut().1 = Some(error.to_string()),
        }
        ControlFlow::Continue(())
    });
    let request = Request::new("The red fox eats a berry. The red fox", options.clone());
    let request = worker.model.frontend().checked(request).unwrap();
    worker.submit(request, Instant::now(), CancelToken::new(), None, sink);
    told
}

fn run(worker: &mut Worker<'_, '_>) {
    while !worker.is_idle() {
        worker.advance();
    }
}

fn alone(model: &LoadedModel, options: &GenerateOptions) -> Vec<u32> {
    let mut worker = Worker::new(model, Limits::default());
    let told = submit(&mut worker, options);
    run(&mut worker);
    let (tokens, error) = told.take();
    assert_eq!(error, None);
    tokens
}

#[test]
fn a_mask_that_panics_ends_its_own_request() {
    let model = model();
    for drafts in [0, 3] {
        let all = [
            options(None, drafts),
            options(Some("[a-z ]{40}"), drafts),
            options(Some("[a-z .]{60}"), drafts),
        ];
        let expected: Vec<_> = all.iter().map(|options| alone(&model, options)).collect();
        let mut worker = Worker::new(&model, Limits::default());
        let told: Vec<Told> = all
            .iter()
            .map(|options| submit(&mut worker, options))
            .collect();
        // The second request has some tokens when its mask panics.
        while told[1].borrow().0.len() < 3 {
            worker.advance();
        }
        let request = worker.task_mut(2).unwrap();
        request.sequence.guide_mut().unwrap().panic_next();
        run(&mut worker);
        for (at, (told, expected)) in told.iter().zip(&expected).enumerate() {
            let (tokens, error) = told.take();
            if at == 1 {
                assert!(expected.starts_with(&tokens) && tokens.len() < 24);
                assert_eq!(
                    error.as_deref(),
                    Some("regex: the grammar's compiler has panicked")
                );
            } else {
                assert_eq!((&tokens, error), (expected, None), "{drafts}: row {at}");
            }
        }
    }
}

/// Drafts nothing, and panics when it drafts for the given request.
struct Panics(Id);

impl Drafter for Panics {
    fn draft(
        &mut self,
        _rows: &mut Rows<'_>,
        _tasks: &mut Requests<'_>,
        wanted: &BTreeMap<Id, usize>,
        drafts: &mut Drafts,
    ) -> Result<()> {
        assert!(!wanted.contains_key(&self.0), "a test has asked for it");
        for &id in wanted.keys() {
            drafts.add(id, vec![5]);
        }
        Ok(())
    }
}

#[test]
fn a_draft_that_panics_ends_its_own_request() {
    let model = model();
    let all = [options(None, 2), options(None, 2), options(None, 0)];
    let expected = alone(&model, &all[0]);
    let mut worker = Worker::new(&model, Limits::default());
    worker.drafter = Some(Box::new(Panics(2)));
    let told: Vec<Told> = all
        .iter()
        .map(|options| submit(&mut worker, options))
        .collect();
    run(&mut worker);
    for (at, told) in told.iter().enumerate() {
        let (tokens, error) = told.take();
        if at == 1 {
            let error = error.unwrap();
            assert!(error.contains("panicked while it drafted"), "{error}");
        } else {
            assert_eq!((&tokens, error), (&expected, None), "row {at}");
        }
    }
}
