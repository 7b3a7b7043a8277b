//! A thousand random schedules of an engine; each request's tokens are compared with those of the
//! request alone.

use crate::checkpoint::{dir, load};
use crate::independence::{alone, greedy, prompt, same, sampled};
use mlx_infer::{
    Choice, Engine, EngineOptions, ErrorKind, FinishReason, GenerateOptions, Limits, Request,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const CASE: &str = "gemma3_text";
const ENGINES: u32 = 20;
const DAYS: u32 = 50;
/// The number of different requests in the schedules.
const KINDS: u64 = 12;

fn kind(kind: u64) -> (Vec<u32>, GenerateOptions) {
    let options = match kind % 2 {
        0 => greedy(kind as usize % 7 + 1),
        _ => sampled(kind as usize % 7 + 1, kind),
    };
    let options = GenerateOptions {
        prefill_chunk: if kind.is_multiple_of(3) { 4 } else { 512 },
        ..options
    };
    (prompt(kind as usize * 5 % 23 + 1, kind), options)
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    /// The request runs to its end.
    Lives,
    /// The request is cancelled after this many tokens.
    Cancelled(usize),
    /// The request's handle is dropped after this many tokens.
    Dropped(usize),
    /// The request's processor fails after this many tokens.
    Fails(usize),
}

fn day() -> impl Strategy<Value = Vec<(u64, Fate)>> {
    let fate = prop_oneof![
        4 => Just(Fate::Lives),
        1 => (0..6usize).prop_map(Fate::Cancelled),
        1 => (0..6usize).prop_map(Fate::Dropped),
        1 => (0..6usize).prop_map(Fate::Fails),
    ];
    proptest::collection::vec((0..KINDS, fate), 1..7)
}

fn request(of: u64, fate: Fate) -> Request {
    let (prompt, options) = kind(of);
    let last = prompt.len();
    let request = Request::new(prompt, options);
    match fate {
        Fate::Fails(n) => request.with_processor(move |ids, _| match ids.len() - last >= n {
            true => Err("its time has come".into()),
            false => Ok(()),
        }),
        _ => request,
    }
}

fn live(
    engine: &Engine,
    day: &[(u64, Fate)],
    expected: &[Vec<Choice>],
) -> Result<(), TestCaseError> {
    let submit = |&(of, fate): &(u64, Fate)| (of, fate, engine.submit(request(of, fate)).unwrap());
    let handles: Vec<_> = day.iter().map(submit).collect();
    for (of, fate, mut handle) in handles {
        let expected = &expected[of as usize];
        let disturbed = match fate {
            Fate::Cancelled(n) | Fate::Dropped(n) => n,
            Fate::Lives | Fate::Fails(_) => usize::MAX,
        };
        let mut tokens = Vec::new();
        let end = loop {
            if tokens.len() == disturbed {
                match fate {
                    Fate::Dropped(_) => break None,
                    _ => handle.cancel(),
                }
            }
            match handle.next().expect("a request ends before its events do") {
                Ok(mlx_infer::Event::Token { choice, .. }) => tokens.push(choice),
                Ok(mlx_infer::Event::Finish { reason, .. }) => break Some(Ok(reason)),
                Err(error) => break Some(Err(error.kind())),
            }
        };
        // No schedule loses or repeats a token.
        let beginning = &expected[..tokens.len().min(expected.len())];
        prop_assert!(same(&tokens, beginning), "{:?} {:?}", tokens, expected);
        match (fate, end) {
            (_, None) => {}
            (Fate::Lives, end) => {
                prop_assert_eq!(
                    (end, tokens.len()),
                    (Some(Ok(FinishReason::Length)), expected.len())
                );
            }
            (Fate::Cancelled(_) | Fate::Dropped(_), Some(Ok(FinishReason::Cancelled))) => {
                prop_assert!(tokens.len() < expected.len());
            }
            (Fate::Fails(n), Some(Err(ErrorKind::Argument))) => {
                prop_assert!(tokens.len() == n && n < expected.len());
            }
            (Fate::Cancelled(_) | Fate::Dropped(_) | Fate::Fails(_), end) => {
                prop_assert_eq!(
                    (end, tokens.len()),
                    (Some(Ok(FinishReason::Length)), expected.len())
                );
            }
        }
    }
    Ok(())
}

/// Waits until no request is in progress.
fn idle(engine: &Engine) {
    for _ in 0..2000 {
        let load = engine.load();
        if load.waiting + load.prefilling + load.decoding == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("a request waits for ever: {:?}", engine.load());
}

/// The memory in use, once it is at most `wanted`. A step in progress holds the arrays of rows that
/// have ended until it has run.
fn settled(wanted: usize) -> usize {
    for _ in 0..2000 {
        let active = mlx_core::memory::active().unwrap();
        if active <= wanted {
            return active;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    mlx_core::memory::active().unwrap()
}

#[test]
fn a_thousand_random_days() {
    let model = load(dir(CASE));
    let expected: Vec<Vec<Choice>> = (0..KINDS)
        .map(|of| {
            let (prompt, options) = kind(of);
            alone(&model, &prompt, &options)
        })
        .collect();
    let info = model.info().clone();
    let kv = info.geometry.kv()[0].expect("the layers have attention");
    let row = info.layers.len() * 256 * 2 * (kv.heads * kv.key_dim * 4) as usize;
    drop(model);
    mlx_core::memory::clear_cache().unwrap();
    let before = mlx_core::memory::active().unwrap();
    for number in 0..ENGINES as usize {
        let rows = number % 5 + 1;
        let limits = Limits {
            rows,
            step_tokens: [Some(2048), Some(30), None][number % 3],
            cache_bytes: (number % 3 == 0).then_some(row * (number % 4 + 1)),
            // The store keeps no prefixes, a few, or all.
            prefix_bytes: [0, 20_000, 512 << 20][number % 3],
            ..Limits::default()
        };
        let options = EngineOptions {
            limits,
            ..EngineOptions::default()
        };
        let engine = Engine::start(|| Ok(load(dir(CASE))), options).unwrap();
        idle(&engine);
        let loaded = mlx_core::memory::active().unwrap();
        let config = Config {
            cases: DAYS,
            failure_persistence: None,
            ..Config::default()
        };
        TestRunner::new(config)
            .run(&day(), |day| live(&engine, &day, &expected))
            .unwrap();
        idle(&engine);
        let kept = engine.load().prefix_bytes;
        // The pool keeps room for the most pages that were held at once, while a prefix holds one,
        // and grows by doubling.
        let most = loaded + 2 * (kept + rows * row);
        let after = settled(if kept > 0 { most } else { loaded });
        assert!(
            after <= if kept > 0 { most } else { loaded },
            "engine {number}: {after} bytes, {loaded} before, {kept} kept"
        );
        match number % 2 {
            0 => engine.finish().unwrap(),
            _ => engine.abort().unwrap(),
        }
    }
    let after = mlx_core::memory::active().unwrap();
    assert!(after <= before, "{after} bytes, {before} before");
}
