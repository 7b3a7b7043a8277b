//! Random days of an engine whose rows speculate. Rows join, leave, are preempted and return while
//! others draft 0 to 4 tokens, and each request must get the tokens that it gets alone. One head is
//! random, so that its drafts are rejected; the other one is constructed, and its drafts are right.
//!
//! `MLX_INFER_DRAFTED_DAYS=1000` sets the number of days.

use std::ops::ControlFlow;
use std::sync::Arc;

use mlx_core::DType;
use mlx_infer::{
    Choice, Engine, EngineOptions, GenerateOptions, Limits, LoadOptions, LoadedModel, Request,
    SamplingParams, Speculative,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::checkpoint::dir;
use crate::heads::{self, Head};
use crate::independence::{alone, greedy, prompt, sampled};
use crate::speculation::same;

/// The number of days of each head in CI.
const DAYS: u32 = 6;
/// The number of days of one engine.
const AT_ONCE: u32 = 25;
/// The number of different requests of which days are made.
const KINDS: u64 = 12;

fn days() -> u32 {
    let days = std::env::var("MLX_INFER_DRAFTED_DAYS");
    days.map_or(DAYS, |days| days.parse().expect("a number of days"))
}

fn kind(kind: u64) -> (Vec<u32>, GenerateOptions) {
    let tokens = kind as usize * 7 % 19 + 2;
    let options = match kind % 2 {
        0 => greedy(tokens),
        _ => sampled(tokens, kind),
    };
    let options = GenerateOptions {
        prefill_chunk: if kind.is_multiple_of(3) { 4 } else { 512 },
        ..options
    };
    (prompt(kind as usize * 5 % 23 + 1, kind), options)
}

fn random_head(max_draft: usize) -> LoadedModel {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        max_draft,
        ..LoadOptions::default()
    };
    LoadedModel::load(dir("qwen3_5_text"), options).unwrap()
}

fn right_head(max_draft: usize) -> LoadedModel {
    heads::load(Head::Embedding, max_draft)
}

/// A request: its kind, its drafts (5: as many as pay), and the number of tokens after which its
/// caller leaves.
type Row = (u64, usize, Option<usize>);

fn day() -> impl Strategy<Value = Vec<Row>> {
    let leaves = prop_oneof![3 => Just(None), 1 => (0..8usize).prop_map(Some)];
    proptest::collection::vec((0..KINDS, 0..6usize, leaves), 1..8)
}

fn live(engine: &Engine, day: &[Row], expected: &[Vec<Choice>]) -> Result<(), TestCaseError> {
    let submit = |&(of, drafts, leaves): &Row| {
        let (prompt, options) = kind(of);
        let speculative = match drafts {
            0 => Speculative::Off,
            5 => Speculative::Auto,
            tokens => Speculative::Tokens(tokens),
        };
        let options = GenerateOptions {
            speculative,
            ..options
        };
        let handle = engine.submit(Request::new(prompt, options)).unwrap();
        (of, leaves, handle)
    };
    let handles: Vec<_> = day.iter().map(submit).collect();
    for (of, leaves, mut handle) in handles {
        let mut tokens = Vec::new();
        let mut is_whole = false;
        while leaves != Some(tokens.len()) {
            match handle.next().expect("a request ends before its events do") {
                Ok(mlx_infer::Event::Token { choice, .. }) => tokens.push(choice),
                Ok(mlx_infer::Event::Finish { .. }) => {
                    is_whole = true;
                    break;
                }
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
        let expected = &expected[of as usize];
        prop_assert!(
            same(&tokens, &expected[..tokens.len()]),
            "{of}: {tokens:?} {expected:?}"
        );
        prop_assert!(!is_whole || tokens.len() == expected.len(), "{of}");
    }
    Ok(())
}

fn engine(load: fn(usize) -> LoadedModel, rows: usize, cache_rows: Option<usize>) -> Engine {
    let row: usize = load(4)
        .state_costs()
        .iter()
        .map(|cost| cost.bytes(256))
        .sum();
    let options = EngineOptions {
        limits: Limits {
            rows,
            cache_bytes: cache_rows.map(|rows| rows * row),
            ..Limits::default()
        },
        ..EngineOptions::default()
    };
    Engine::start(move || Ok(load(4)), options).unwrap()
}

#[test]
fn no_day_shows_which_rows_speculate() {
    for load in [random_head as fn(usize) -> LoadedModel, right_head] {
        let plain = load(0);
        let expected: Vec<Vec<Choice>> = (0..KINDS)
            .map(|of| {
                let (prompt, options) = kind(of);
                alone(&plain, &prompt, &options)
            })
            .collect();
        let expected = Arc::new(expected);
        let mut left = days();
        for (rows, cache_rows) in [(5, None), (3, Some(2)), (8, Some(3))].into_iter().cycle() {
            if left == 0 {
                break;
            }
            let now = left.min(AT_ONCE.min(days().div_ceil(3)));
            left -= now;
            let engine = engine(load, rows, cache_rows);
            let config = Config {
                cases: now,
                failure_persistence: None,
                ..Config::default()
            };
            TestRunner::new(config)
                .run(&day(), |day| live(&engine, &day, &expected))
                .unwrap();
        }
    }
}

/// The states of a row that speculated equal those of a row that did not, to the bit: a text that
/// continues from them has the same tokens and log probabilities. Rejected tokens have left no
/// trace in the layers or the head.
#[test]
fn states_equal_those_without_speculation() {
    for load in [random_head as fn(usize) -> LoadedModel, right_head] {
        let model = load(4);
        let plain = load(0);
        for row in 0..4u64 {
            let text = prompt(9 + row as usize, row);
            let first = |speculative| GenerateOptions {
                speculative,
                ..greedy(14)
            };
            let next = GenerateOptions {
                logprobs: Some(4),
                ..greedy(10)
            };
            let mut results = Vec::new();
            for (model, speculative) in [
                (&plain, Speculative::Off),
                (&model, Speculative::Off),
                (&model, Speculative::Tokens(1 + row as usize % 4)),
            ] {
                let mut generation = model.generate(text.clone(), &first(speculative)).unwrap();
                let tokens = generation
                    .run(|_| ControlFlow::Continue(()))
                    .unwrap()
                    .tokens;
                let cache = generation.into_prompt_cache().unwrap().unwrap();
                let longer = cache.followed_by(model, vec![7, 8]).unwrap();
                let generation = model.generate(longer, &next).unwrap();
                let mut generation = generation.with_prompt_cache(&cache).unwrap();
                let more = generation.run(|_| ControlFlow::Continue(())).unwrap();
                results.push((
                    tokens,
                    cache.tokens().len(),
                    more.metrics.cached_tokens,
                    more.tokens,
                ));
            }
            let (expected, _, _, behind) = &results[0];
            for (tokens, len, cached, more) in &results {
                assert!(same(tokens, expected), "row {row}");
                assert!(same(more, behind), "row {row}: what follows");
                assert_eq!((*len, *cached), (results[0].1, results[0].2), "row {row}");
            }
        }
    }
}

/// Pairs of tokens of many sampled rows with drafts, compared with the model's own distribution:
/// chi-square at 0.001.
#[test]
fn sampled_rows_have_the_models_distribution() {
    const ROWS: u64 = 1200;
    let model = random_head(3);
    let text = prompt(12, 5);
    let sampling = |seed| SamplingParams {
        temperature: 1.0,
        top_k: 3,
        seed: Some(seed),
        ..Default::default()
    };
    let likeliest = |text: Vec<u32>| -> Vec<(u32, f64)> {
        let options = GenerateOptions {
            logprobs: Some(3),
            ..greedy(1)
        };
        let top = alone(&model, &text, &options).remove(0).top;
        let sum: f64 = top
            .iter()
            .map(|(_, logprob)| f64::from(*logprob).exp())
            .sum();
        top.into_iter()
            .map(|(id, logprob)| (id, f64::from(logprob).exp() / sum))
            .collect()
    };
    let mut expected = std::collections::BTreeMap::new();
    for (first, p) in likeliest(text.clone()) {
        for (second, q) in likeliest([&text[..], &[first]].concat()) {
            for (third, r) in likeliest([&text[..], &[first, second]].concat()) {
                expected.insert([first, second, third], p * q * r);
            }
        }
    }
    let requests = (0..ROWS)
        .map(|seed| {
            let options = GenerateOptions {
                sampling: sampling(seed),
                speculative: Speculative::Tokens(1 + seed as usize % 3),
                ..greedy(3)
            };
            Request::new(text.clone(), options)
        })
        .collect();
    let limits = Limits {
        rows: 64,
        ..Limits::default()
    };
    let mut counts = std::collections::BTreeMap::new();
    for result in model.batch_generate(requests, &limits).unwrap() {
        let ids: Vec<u32> = result.tokens.iter().map(|choice| choice.id).collect();
        *counts.entry([ids[0], ids[1], ids[2]]).or_insert(0.0) += 1.0;
    }
    assert!(counts.keys().all(|ids| expected.contains_key(ids)));
    let chi_square: f64 = expected
        .iter()
        .map(|(ids, p)| {
            let n = p * ROWS as f64;
            let found: f64 = counts.get(ids).copied().unwrap_or(0.0);
            (found - n).powi(2) / n
        })
        .sum();
    // 26 degrees of freedom.
    assert!(expected.len() == 27 && chi_square < 54.1, "{chi_square}");
}
