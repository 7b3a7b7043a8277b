//! The engine: requests from many threads, and requests that are cancelled, refused or fail.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::checkpoint::{dir, load};
use crate::independence::{alone, greedy, prompt, sampled};
use mlx_infer::{
    Choice, Engine, EngineOptions, Error, ErrorKind, Event, FinishReason, GenerateOptions, Limits,
    LoadOptions, LoadedModel, Request,
};
use mlx_nn::LayerKind;

fn start(case: &'static str, options: EngineOptions) -> Engine {
    Engine::start(move || Ok(load(dir(case))), options).unwrap()
}

fn tokens(events: impl Iterator<Item = Result<Event, Error>>) -> (Vec<Choice>, FinishReason) {
    let mut tokens = Vec::new();
    for event in events {
        match event.unwrap() {
            Event::Token { choice, .. } => tokens.push(choice),
            Event::Finish { reason, .. } => return (tokens, reason),
        }
    }
    panic!("no end after {} tokens", tokens.len());
}

#[test]
fn threads_get_their_own_tokens() {
    let model = load(dir("gemma3_text"));
    let engine = start("gemma3_text", EngineOptions::default());
    let expected = |n: u64| alone(&model, &prompt(n as usize % 9 + 1, n), &options(n));
    fn options(n: u64) -> GenerateOptions {
        match n % 2 {
            0 => greedy(n as usize % 13 + 3),
            _ => sampled(n as usize % 13 + 3, n),
        }
    }
    let found = std::thread::scope(|scope| {
        let ask = |thread: u64| {
            let engine = &engine;
            scope.spawn(move || {
                let ask = |n: u64| {
                    let request = Request::new(prompt(n as usize % 9 + 1, n), options(n));
                    (n, engine.submit(request).unwrap())
                };
                let handles: Vec<_> = (thread * 5..thread * 5 + 5).map(ask).collect();
                let wait = |(n, handle)| (n, tokens(handle));
                handles.into_iter().map(wait).collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..4).map(ask).collect();
        let join = threads.into_iter().map(|thread| thread.join().unwrap());
        join.flatten().collect::<Vec<_>>()
    });
    assert_eq!(found.len(), 20);
    for (n, (tokens, reason)) in found {
        assert_eq!(tokens, expected(n), "request {n}");
        assert_eq!(reason, FinishReason::Length);
    }
    engine.finish().unwrap();
}

#[test]
fn log_probabilities_take_no_pass_of_their_own() {
    let run = |logprobs: Option<usize>| {
        let engine = start("gemma3_text", EngineOptions::default());
        let mut options = greedy(12);
        options.logprobs = logprobs;
        let handle = engine.submit(Request::new(prompt(7, 3), options)).unwrap();
        let (tokens, _) = tokens(handle);
        let top: usize = tokens.iter().map(|choice| choice.top.len()).sum();
        let ids: Vec<u32> = tokens.iter().map(|choice| choice.id).collect();
        while engine.load().decoding > 0 {
            std::thread::yield_now();
        }
        let forwards = engine.load().forwards;
        engine.finish().unwrap();
        (ids, top, forwards)
    };
    let (ids, top, forwards) = run(None);
    // One pass for the prompt, and one for each token after the first.
    assert_eq!((ids.len(), top, forwards), (12, 0, 12));
    assert_eq!(run(Some(0)), (ids.clone(), 0, forwards));
    assert_eq!(run(Some(5)), (ids, 12 * 5, forwards));
}

#[test]
fn a_request_that_goes_wrong_leaves_the_others_alone() {
    let model = load(dir("mistral"));
    let engine = start("mistral", EngineOptions::default());
    let good = |seed| Request::new(prompt(9, seed), sampled(40, seed));
    let first = engine.submit(good(1)).unwrap();

    let bad_id = engine.submit(Request::new(vec![9999], greedy(3))).unwrap();
    let empty = engine.submit(Request::new(Vec::new(), greedy(3))).unwrap();
    let too_long = engine
        .submit(Request::new(vec![5; 600], greedy(3)))
        .unwrap();
    let mut wrong = greedy(3);
    wrong.sampling.top_p = 1.7;
    let wrong = engine.submit(Request::new(vec![5], wrong)).unwrap();
    let fails_at = |n: usize| {
        move |ids: &[u32], _: &mut [f32]| match ids.len() {
            len if len == n => Err("no more".into()),
            _ => Ok(()),
        }
    };
    let broken = Request::new(prompt(4, 2), greedy(30)).with_processor(fails_at(10));
    let broken = engine.submit(broken).unwrap();
    let panics = |_: &[u32], _: &mut [f32]| panic!("a processor's own");
    let panics = Request::new(prompt(4, 2), greedy(30)).with_processor(panics);
    let panics = engine.submit(panics).unwrap();
    let nothing = |_: &[u32], logits: &mut [f32]| {
        logits.fill(f32::NAN);
        Ok(())
    };
    let nothing = Request::new(prompt(4, 2), greedy(30)).with_processor(nothing);
    let nothing = engine.submit(nothing).unwrap();
    let second = engine.submit(good(2)).unwrap();

    let fault = |handle: mlx_infer::Handle| {
        let result = handle.wait();
        let error = result.error.expect("it goes wrong");
        (result.tokens.len(), error.kind(), error.to_string())
    };
    for (handle, n, kind, message) in [
        (bad_id, 0, ErrorKind::Argument, "token id 9999 at index 0"),
        (empty, 0, ErrorKind::Argument, "the prompt is empty"),
        (
            too_long,
            0,
            ErrorKind::Argument,
            "exceed the model's 512 positions",
        ),
        (
            wrong,
            0,
            ErrorKind::Argument,
            "top_p must be in (0, 1], given 1.7",
        ),
        (broken, 6, ErrorKind::Argument, "processor failed: no more"),
        (
            panics,
            0,
            ErrorKind::Argument,
            "processor failed: it panicked",
        ),
        (nothing, 0, ErrorKind::Compute, "not finite numbers"),
    ] {
        let (tokens, found, text) = fault(handle);
        assert_eq!((tokens, found), (n, kind), "{text}");
        assert!(text.contains(message), "{text}");
    }
    for (handle, seed) in [(first, 1), (second, 2)] {
        let expected = alone(&model, &prompt(9, seed), &sampled(40, seed));
        assert_eq!(tokens(handle).0, expected, "request {seed}");
    }
    engine.finish().unwrap();
}

#[test]
fn a_processor_changes_its_row_only() {
    let model = load(dir("qwen3_moe"));
    let engine = start("qwen3_moe", EngineOptions::default());
    let plain = engine
        .submit(Request::new(prompt(5, 3), greedy(20)))
        .unwrap();
    let mut seen = Vec::new();
    let even = move |ids: &[u32], logits: &mut [f32]| {
        seen.push(ids.len());
        assert!(
            seen.is_sorted_by(|a, b| a + 1 == *b),
            "it sees every token once: {seen:?}"
        );
        for odd in logits.iter_mut().skip(1).step_by(2) {
            *odd = f32::NEG_INFINITY;
        }
        Ok(())
    };
    let even = Request::new(prompt(5, 3), sampled(20, 9)).with_processor(even);
    let (even, _) = tokens(engine.submit(even).unwrap());
    assert!(
        even.len() == 20 && even.iter().all(|choice| choice.id % 2 == 0),
        "{even:?}"
    );
    let expected = alone(&model, &prompt(5, 3), &greedy(20));
    assert!(expected.iter().any(|choice| choice.id % 2 == 1));
    assert_eq!(tokens(plain).0, expected);
    engine.abort().unwrap();
}

#[test]
fn cancelled_and_dropped_requests_make_room() {
    let options = EngineOptions {
        limits: Limits {
            rows: 1,
            ..Limits::default()
        },
        max_requests: 3,
        ..EngineOptions::default()
    };
    let engine = start("llama_llama3", options);
    let shared = greedy(400);
    let ask = || {
        engine
            .submit(Request::new(prompt(3, 1), shared.clone()))
            .unwrap()
    };
    let (mut first, waiting, dropped) = (ask(), ask(), ask());
    let error = engine.submit(Request::new(vec![5], greedy(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert_eq!(
        error.to_string(),
        "3 requests are under way, as many as the engine takes"
    );
    assert!(first.next().unwrap().is_ok());
    drop(dropped);
    waiting.cancel();
    let (none, reason) = tokens(waiting);
    assert_eq!((none.len(), reason), (0, FinishReason::Cancelled));
    first.cancel();
    let (_, reason) = tokens(first.by_ref());
    assert_eq!(reason, FinishReason::Cancelled);
    assert!(first.next().is_none());
    // All three requests have ended, or end soon.
    let mut tries = 0;
    let last = loop {
        match engine.submit(Request::new(prompt(3, 1), greedy(4))) {
            Ok(handle) => break handle,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        tries += 1;
        assert!(tries < 500, "the dropped request never ends");
    };
    assert_eq!(tokens(last).0.len(), 4);
    engine.finish().unwrap();
}

#[test]
fn finish_waits_and_abort_does_not() {
    let engine = start("phi3", EngineOptions::default());
    let ask = |n| Request::new(prompt(4, n), greedy(30));
    let handles: Vec<_> = (0..5).map(|n| engine.submit(ask(n)).unwrap()).collect();
    engine.finish().unwrap();
    for handle in handles {
        let (tokens, reason) = tokens(handle);
        assert_eq!((tokens.len(), reason), (30, FinishReason::Length));
    }

    let engine = start("phi3", EngineOptions::default());
    let long = |n| Request::new(prompt(4, n), greedy(450));
    let mut handles: Vec<_> = (0..5).map(|n| engine.submit(long(n)).unwrap()).collect();
    assert!(handles[0].next().unwrap().is_ok());
    engine.abort().unwrap();
    for handle in handles {
        let (tokens, reason) = tokens(handle);
        assert!(tokens.len() < 450 && reason == FinishReason::Cancelled);
    }
}

#[test]
fn a_model_that_does_not_load_is_an_error() {
    let load = || LoadedModel::load("nowhere", LoadOptions::default());
    let error = Engine::start(load, EngineOptions::default()).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
    let panics = || -> mlx_infer::Result<LoadedModel> { panic!("while loading") };
    let error = Engine::start(panics, EngineOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

/// The bytes of a row of up to 256 positions in a model's caches.
fn row_bytes(model: &LoadedModel) -> usize {
    let costs = model.state_costs();
    costs.iter().map(|cost| cost.bytes(256)).sum()
}

/// Three rows fit as long as they have at most 256 positions each. With more positions, fewer rows
/// fit.
#[test]
fn rows_that_are_given_up_for_memory_come_back_unchanged() {
    for case in [
        "llama_llama3",
        "qwen2_window",
        "qwen3_moe",
        "gemma2",
        "gemma3_text",
    ] {
        let model = load(dir(case));
        let limits = Limits {
            cache_bytes: Some(3 * row_bytes(&model)),
            ..Limits::default()
        };
        let options = EngineOptions {
            limits,
            ..EngineOptions::default()
        };
        let engine = start(case, options);
        let ask = |n: u64| match n {
            0 => (prompt(200, n), greedy(80)),
            _ => (prompt(210 + n as usize, n), sampled(60, n)),
        };
        let handles: Vec<_> = (0..4)
            .map(|n| {
                let (prompt, options) = ask(n);
                engine.submit(Request::new(prompt, options)).unwrap()
            })
            .collect();
        for (n, handle) in handles.into_iter().enumerate() {
            let (prompt, options) = ask(n as u64);
            let expected = alone(&model, &prompt, &options);
            assert_eq!(tokens(handle).0, expected, "{case}: request {n}");
        }
        // Caches of models that have only windows do not grow.
        let grows = model.info().layers.contains(&LayerKind::Full);
        assert_eq!(engine.load().preemptions > 0, grows, "{case}");
        engine.finish().unwrap();
    }
}

#[test]
fn what_cannot_fit_is_refused() {
    let model = load(dir("gemma2"));
    let limits = Limits {
        cache_bytes: Some(row_bytes(&model)),
        ..Limits::default()
    };
    let requests = [5, 250, 300].map(|n| Request::new(prompt(n, 1), greedy(30)));
    let results = model.batch_generate(requests.into(), &limits).unwrap();
    let ends: Vec<_> = results
        .iter()
        .map(|result| (result.tokens.len(), result.error.as_ref().map(Error::kind)))
        .collect();
    let memory = Some(ErrorKind::Memory);
    // The second request needs too much memory at its 257th position, and the third never fits.
    assert_eq!(ends, [(30, None), (7, memory), (0, memory)]);
    let error = results[2].error.as_ref().unwrap().to_string();
    assert!(error.contains("more than the engine may take"), "{error}");
    // Both numbers: what it needs, and what there is.
    assert!(
        error.contains("need 5 pages of 64 tokens (301 tokens"),
        "{error}"
    );
    assert!(error.contains("4 pages (256 tokens)"), "{error}");
}

#[test]
fn zero_is_no_limit() {
    let model = load(dir("qwen3"));
    let limits = Limits {
        rows: 0,
        ..Limits::default()
    };
    let error = model
        .batch_generate_with(Vec::new(), &limits, |_, _| ControlFlow::Continue(()))
        .unwrap_err();
    assert_eq!(error.to_string(), "rows must be at least 1, given 0");
}

/// The number of threads of the process.
#[cfg(target_os = "linux")]
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
#[cfg(target_os = "linux")]
fn two_hundred_engines_leave_no_more_threads_than_one() {
    let one = || {
        let engine = start("llama_bias", EngineOptions::default());
        let request = Request::new(prompt(3, 1), greedy(2));
        assert_eq!(tokens(engine.submit(request).unwrap()).0.len(), 2);
    };
    one();
    let after_one = threads();
    for _ in 1..200 {
        one();
    }
    assert_eq!(threads(), after_one);
}
