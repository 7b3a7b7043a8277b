//! The events of requests without a thread for each request: polled, awaited, and with requests
//! that are checked before they are submitted.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};

use futures_core::Stream;
use mlx_infer::{
    Choice, Constraint, Engine, EngineOptions, ErrorKind, Event, Frontend, Grammar, Handle, Limits,
    LoadedModel, Message, Prompt, Request,
};

use crate::checkpoint::{dir, load};
use crate::independence::{alone, greedy, prompt, sampled};

fn start(case: &'static str) -> Engine {
    Engine::start(move || Ok(load(dir(case))), EngineOptions::default()).unwrap()
}

/// A waker that sends the number of its task.
struct Woken(usize, Sender<usize>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let _ = self.1.send(self.0);
    }
}

/// Polls futures on this thread, each one when it is woken.
fn run<T>(mut tasks: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
    let (wake, woken): (Sender<usize>, Receiver<usize>) = channel();
    let mut results: Vec<Option<T>> = tasks.iter().map(|_| None).collect();
    (0..tasks.len()).for_each(|task| wake.send(task).unwrap());
    while results.iter().any(Option::is_none) {
        let task = woken.recv().unwrap();
        let waker = Waker::from(Arc::new(Woken(task, wake.clone())));
        if results[task].is_none()
            && let Poll::Ready(result) = tasks[task].as_mut().poll(&mut Context::from_waker(&waker))
        {
            results[task] = Some(result);
        }
    }
    results.into_iter().flatten().collect()
}

async fn tokens(mut handle: Handle) -> Vec<Choice> {
    let mut tokens = Vec::new();
    while let Some(event) = poll_fn(|context| Pin::new(&mut handle).poll_next(context)).await {
        if let Event::Token { choice, .. } = event.unwrap() {
            tokens.push(choice);
        }
    }
    tokens
}

#[test]
fn one_thread_awaits_the_events_of_many_requests() {
    let model = load(dir("gemma3_text"));
    let engine = start("gemma3_text");
    let ask = |n| {
        let request = Request::new(prompt(5, n), sampled(12, n));
        engine.submit(request).unwrap()
    };
    let tasks = (0..6).map(|n| Box::pin(tokens(ask(n))) as Pin<Box<dyn Future<Output = _>>>);
    let found = run(tasks.collect());
    for (n, found) in found.into_iter().enumerate() {
        let n = n as u64;
        assert_eq!(found, alone(&model, &prompt(5, n), &sampled(12, n)), "{n}");
    }
    engine.finish().unwrap();
}

#[test]
fn nothing_yet_the_end_and_an_engine_that_has_gone_differ() {
    let options = EngineOptions {
        limits: Limits {
            rows: 1,
            ..Limits::default()
        },
        ..EngineOptions::default()
    };
    let engine = Engine::start(|| Ok(load(dir("qwen3"))), options).unwrap();
    let first = engine.submit(Request::new(prompt(5, 1), greedy(400)));
    let mut second = engine
        .submit(Request::new(prompt(5, 2), greedy(3)))
        .unwrap();
    // The only row is in use.
    assert!(second.try_next().is_pending());
    drop(first);
    let mut tokens = 0;
    loop {
        match second.try_next() {
            Poll::Pending => std::thread::yield_now(),
            Poll::Ready(Some(event)) => match event.unwrap() {
                Event::Token { .. } => tokens += 1,
                Event::Finish { .. } => break,
            },
            Poll::Ready(None) => panic!("the end comes first"),
        }
    }
    assert_eq!(tokens, 3);
    assert!(matches!(second.try_next(), Poll::Ready(None)));
    engine.finish().unwrap();
    assert!(matches!(second.try_next(), Poll::Ready(None)));
}

#[test]
fn requests_are_validated_and_tokenised_before_they_are_submitted() {
    fn shared<T: Send + Sync>(value: T) -> T {
        value
    }
    let engine = Engine::start(LoadedModel::load_default, EngineOptions::default()).unwrap();
    let frontend: Arc<Frontend> = shared(engine.frontend().clone());
    let (ids, refusals) = std::thread::spawn(move || {
        let question = [Message::new("user", "What is 20 + 22?")];
        let ids = frontend.chat_ids(&question, &Default::default()).unwrap();
        frontend.check(&ids, &greedy(8)).unwrap();
        let mut biased = greedy(3);
        biased.sampling.logit_bias.insert(5000, 1.0);
        let refusals = [
            frontend.check(&[5000], &greedy(3)),
            frontend.check(&[5; 512], &greedy(3)),
            frontend.check(&[5], &greedy(0)),
            frontend.check(&[5], &biased),
            frontend.prompt_ids(Prompt::Tokens(Vec::new())).map(drop),
        ];
        (ids, refusals.map(Result::unwrap_err))
    })
    .join()
    .unwrap();
    for (refusal, text) in refusals.iter().zip([
        "token id 5000 at index 0",
        "513 tokens",
        "max_tokens must be at least 1",
        "token id 5000",
        "the prompt is empty",
    ]) {
        assert_eq!(refusal.kind(), ErrorKind::Argument, "{refusal}");
        assert!(refusal.to_string().contains(text), "{refusal}");
    }
    let mut options = greedy(8);
    options.ignore_eos = false;
    let answer = engine.submit(Request::new(ids, options)).unwrap().wait();
    assert_eq!(answer.text.as_deref(), Some("42"));
    engine.finish().unwrap();
}

/// A request is checked once, on any thread, by the front end of the model that computes it.
#[test]
fn a_checked_request_belongs_to_its_model() {
    let engine = Engine::start(LoadedModel::load_default, EngineOptions::default()).unwrap();
    let other = Engine::start(LoadedModel::load_default, EngineOptions::default()).unwrap();
    let frontend = engine.frontend().clone();
    let make = move || frontend.checked(Request::new("The red fox", greedy(8)));
    let checked = std::thread::spawn(make.clone()).join().unwrap().unwrap();
    let ids = engine.frontend().prompt_ids("The red fox".into()).unwrap();
    assert_eq!((checked.ids(), checked.options().max_tokens), (&ids[..], 8));
    let expected = engine.submit(Request::new(ids, greedy(8))).unwrap().wait();
    let found = engine.submit_checked(checked).unwrap().wait();
    assert_eq!(found.tokens, expected.tokens);

    let refused = |result: mlx_infer::Result<Handle>| result.unwrap_err().to_string();
    let foreign = refused(other.submit_checked(make().unwrap()));
    assert!(foreign.contains("front end of another model"), "{foreign}");
    let adapted = Request::new("The red fox", greedy(8)).with_adapter("one");
    let adapted = engine.frontend().checked(adapted).unwrap();
    let unknown = refused(engine.submit_checked(adapted));
    assert!(unknown.contains("there is no adapter \"one\""), "{unknown}");

    let schema = serde_json::json!({"type": "array", "maxItems": 2, "uniqueItems": true});
    let lenient = Constraint {
        strict: false,
        ..Grammar::JsonSchema(schema).into()
    };
    let mut options = greedy(8);
    options.grammar = Some(lenient.clone());
    let checked = engine
        .frontend()
        .checked(Request::new("a", options))
        .unwrap();
    let ignored = engine.frontend().ignored_keywords(&lenient).unwrap();
    assert_eq!(ignored, ["uniqueItems"]);
    assert_eq!(checked.ignored_keywords(), ignored);
}
