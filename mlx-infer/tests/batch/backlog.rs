//! Callers that do not read their events: their queues are bounded, and other requests do not wait
//! for them.

use std::task::Poll;
use std::time::Duration;

use crate::checkpoint::{dir, load};
use crate::independence::{alone, greedy, prompt, same, sampled};
use mlx_infer::{Choice, Engine, EngineOptions, Event, Handle, Limits, Request};

fn start(case: &'static str, rows: usize, max_events: usize) -> Engine {
    let options = EngineOptions {
        limits: Limits {
            rows,
            ..Limits::default()
        },
        max_events,
        ..EngineOptions::default()
    };
    Engine::start(move || Ok(load(dir(case))), options).unwrap()
}

/// Reads the events that have arrived.
fn unread(handle: &mut Handle, tokens: &mut Vec<Choice>) -> usize {
    let before = tokens.len();
    while let Poll::Ready(Some(event)) = handle.try_next() {
        if let Event::Token { choice, .. } = event.unwrap() {
            tokens.push(choice);
        }
    }
    tokens.len() - before
}

fn rest(handle: Handle, mut tokens: Vec<Choice>) -> Vec<Choice> {
    for event in handle {
        if let Event::Token { choice, .. } = event.unwrap() {
            tokens.push(choice);
        }
    }
    tokens
}

#[test]
fn a_reader_that_is_behind_pauses_its_row_only() {
    for case in ["gemma3_text", "llama_llama3", "phi3_longrope"] {
        let model = load(dir(case));
        let engine = start(case, 4, 6);
        let ask = |n, options| engine.submit(Request::new(prompt(9, n), options)).unwrap();
        let mut slow = ask(1, sampled(200, 1));
        for n in 2..6 {
            let result = ask(n, sampled(5, n)).wait();
            let expected = alone(&model, &prompt(9, n), &sampled(5, n));
            assert!(same(&result.tokens, &expected), "{case}, request {n}");
        }
        std::thread::sleep(Duration::from_millis(300));
        let mut tokens = Vec::new();
        let n = unread(&mut slow, &mut tokens);
        // The events of the step in progress still arrived; more may have arrived during the
        // reading.
        assert!((6..40).contains(&n), "{case}: {n} events");
        assert_eq!(engine.load().decoding, 1, "{case}");
        let tokens = rest(slow, tokens);
        let expected = alone(&model, &prompt(9, 1), &sampled(200, 1));
        assert!(same(&tokens, &expected), "{case}");
        engine.finish().unwrap();
    }
}

#[test]
fn a_row_whose_reader_is_behind_gives_way_and_comes_back() {
    for case in ["mistral", "qwen3_moe"] {
        let model = load(dir(case));
        // One row for all requests.
        let engine = start(case, 1, 3);
        let ask = |n| {
            let request = Request::new(prompt(20, n), sampled(30, n));
            engine.submit(request).unwrap()
        };
        let mut slow: Vec<Handle> = (0..3).map(ask).collect();
        let quick = ask(7);
        let expected = |n| alone(&model, &prompt(20, n), &sampled(30, n));
        assert!(same(&rest(quick, Vec::new()), &expected(7)), "{case}");
        let dropped = slow.pop();
        drop(dropped);
        for (n, handle) in slow.into_iter().enumerate() {
            let n = n as u64;
            assert!(same(&rest(handle, Vec::new()), &expected(n)), "{case}, {n}");
        }
        engine.finish().unwrap();
    }
}

#[test]
fn an_engine_that_waits_for_readers_can_be_cancelled_and_aborted() {
    let engine = start("qwen3", 2, 2);
    let ask = || {
        engine
            .submit(Request::new(prompt(5, 1), greedy(300)))
            .unwrap()
    };
    let (mut first, second) = (ask(), ask());
    std::thread::sleep(Duration::from_millis(200));
    first.cancel();
    let mut tokens = Vec::new();
    while !tokens
        .iter()
        .any(|event| matches!(event, Event::Finish { .. }))
    {
        tokens.push(first.next().unwrap().unwrap());
    }
    assert!(tokens.len() < 100, "{} tokens", tokens.len());
    engine.abort().unwrap();
    assert!(second.wait().tokens.len() < 100);
}
