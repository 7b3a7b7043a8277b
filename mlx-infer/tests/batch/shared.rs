//! Requests with the same prompt: the prompt is computed once, and the tokens are those of separate requests.

use mlx_infer::{Engine, EngineOptions, GenerateOptions, Handle, Limits, Request};

use crate::checkpoint::{dir, load};
use crate::independence::{CASES, alone, prompt, same, sampled};

/// An engine that stores no prefixes and computes 16 tokens of a prompt at a time.
fn engine(case: &'static str, rows: usize) -> Engine {
    let limits = Limits {
        rows,
        prefix_bytes: 0,
        ..Limits::default()
    };
    let options = EngineOptions {
        limits,
        ..EngineOptions::default()
    };
    Engine::start(move || Ok(load(dir(case))), options).unwrap()
}

fn options(tokens: usize, seed: u64) -> GenerateOptions {
    GenerateOptions {
        prefill_chunk: 16,
        ..sampled(tokens, seed)
    }
}

/// Submits the requests while the engine computes another one, so that they begin together.
fn submit(engine: &Engine, requests: Vec<Request>) -> Vec<Handle> {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = std::sync::mpsc::channel::<()>();
    engine
        .run(None, move |_| {
            let _ = begin.send(());
            let _ = held.recv();
        })
        .unwrap();
    begun.recv().unwrap();
    let handles = requests
        .into_iter()
        .map(|request| engine.submit(request).unwrap());
    let handles = handles.collect();
    drop(hold);
    handles
}

#[test]
fn one_prompt_is_computed_for_all() {
    for case in CASES {
        let model = load(dir(case));
        // One prompt is shorter than a chunk, the other has several chunks.
        for len in [9, 40] {
            let engine = engine(case, 64);
            let ids = prompt(len, 3);
            let asked: Vec<GenerateOptions> = (0..8).map(|n| options(6, n)).collect();
            let requests = asked
                .iter()
                .map(|options| Request::new(ids.clone(), options.clone()));
            let handles = submit(&engine, requests.collect());
            let mut computed = 0;
            for (handle, options) in handles.into_iter().zip(&asked) {
                let result = handle.wait();
                assert!(result.error.is_none(), "{:?}", result.error);
                assert!(
                    same(&result.tokens, &alone(&model, &ids, options)),
                    "{case}"
                );
                computed += result.metrics.prompt_tokens - result.metrics.cached_tokens;
            }
            assert_eq!(computed, len, "{case}");
            // The chunks of one prompt, and a step for each token after the first.
            let forwards = engine.load().forwards;
            // LongRoPE computes a row again when it grows beyond the original context.
            assert!(
                case == "phi3_longrope" || forwards <= len.div_ceil(16) + 6,
                "{case}: {forwards} forward passes"
            );
            engine.finish().unwrap();
        }
    }
}

#[test]
fn the_first_of_them_may_leave_and_rows_may_be_few() {
    let case = "llama_llama3";
    let model = load(dir(case));
    for rows in [1, 3, 64] {
        let engine = engine(case, rows);
        let ids = prompt(100, 3);
        let requests = (0..6).map(|n| Request::new(ids.clone(), options(5, n)));
        let mut handles = submit(&engine, requests.collect());
        drop(handles.remove(0));
        drop(handles.remove(2));
        for (handle, seed) in handles.into_iter().zip([1, 2, 4, 5]) {
            let result = handle.wait();
            assert!(result.error.is_none(), "{:?}", result.error);
            assert!(same(
                &result.tokens,
                &alone(&model, &ids, &options(5, seed))
            ));
        }
        engine.finish().unwrap();
    }
}
