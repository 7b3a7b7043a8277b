//! The sampler's graph compared with a plain sampler of one row at a time.

use std::collections::BTreeMap;

use mlx_core::Array;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

type Checked = std::result::Result<(), TestCaseError>;

const V: usize = 23;

fn noise(seed: u64, position: usize, v: i32) -> Vec<f32> {
    let keys = Array::from_slice(&noise::key(seed, position), &[1, 2]).unwrap();
    let noise = fast::gumbel(&keys, v).unwrap();
    noise.to_vec().unwrap()
}

/// A plain implementation for one row. `history` holds every token, the pending one too.
fn reference(
    logits: &[f32],
    params: &SamplingParams,
    seed: u64,
    prompt: &[u32],
    generated: &[u32],
) -> u32 {
    let mut x = logits.to_vec();
    for (&id, bias) in &params.logit_bias {
        x[id as usize] += bias;
    }
    let all = [prompt, generated].concat();
    let mut window: Vec<u32> = all[all.len().saturating_sub(params.repeat_context)..].to_vec();
    window.sort_unstable();
    window.dedup();
    for id in window {
        let l = &mut x[id as usize];
        *l = if *l < 0.0 {
            *l * params.repeat_penalty
        } else {
            *l / params.repeat_penalty
        };
    }
    let mut counts = BTreeMap::new();
    for &id in generated {
        *counts.entry(id).or_insert(0u32) += 1;
    }
    for (id, n) in counts {
        if params.counts_tokens() {
            x[id as usize] -= n as f32 * params.frequency_penalty + params.presence_penalty;
        }
    }
    for (id, penalty) in dry::penalties(&all, params) {
        x[id as usize] -= penalty;
    }
    let best = |scores: &[f32]| {
        let mut best = 0;
        for (id, &score) in scores.iter().enumerate() {
            if score > scores[best] {
                best = id;
            }
        }
        best as u32
    };
    if params.temperature == 0.0 {
        return best(&x);
    }
    if params.top_n_sigma > 0.0 {
        let there: Vec<f64> = (x.iter())
            .filter(|l| l.is_finite())
            .map(|&l| f64::from(l))
            .collect();
        let mean = there.iter().sum::<f64>() / there.len() as f64;
        let squares = there.iter().map(|l| (l - mean).powi(2)).sum::<f64>();
        let deviation = (squares / there.len() as f64).sqrt();
        let largest = there.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = largest - f64::from(params.top_n_sigma) * deviation;
        for l in &mut x {
            if f64::from(*l) < least {
                *l = f32::NEG_INFINITY;
            }
        }
    }
    // Ids from the likeliest down; the sort is stable.
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]));
    let max = x[order[0]];
    let total: f64 = x.iter().map(|l| f64::from(l - max).exp()).sum();
    let mut before = 0.0;
    let mut least = f32::INFINITY;
    for &id in &order {
        if before < f64::from(params.top_p) || params.top_p == 1.0 {
            least = x[id];
        }
        before += f64::from(x[id] - max).exp() / total;
    }
    let min_p = max + params.min_p.ln();
    let mut kept: Vec<usize> = order
        .into_iter()
        .filter(|&id| x[id] >= least && x[id] >= min_p)
        .collect();
    if params.top_k > 0 {
        kept.truncate(params.top_k);
    }
    if cuts::is_due(params, seed, all.len()) {
        let p = |id: usize| f64::from(x[id] - max).exp();
        let sum: f64 = kept.iter().map(|&id| p(id)).sum();
        let above = kept
            .iter()
            .filter(|&&id| p(id) / sum >= f64::from(params.xtc_threshold));
        let above = above.count();
        kept.drain(..above.saturating_sub(1));
    }
    let noise = noise(seed, all.len(), x.len() as i32);
    let mut scores = vec![f32::NEG_INFINITY; x.len()];
    for id in kept {
        scores[id] = x[id] * (1.0 / params.temperature) + noise[id];
    }
    best(&scores)
}

#[derive(Clone, Debug)]
struct Case {
    logits: Vec<f32>,
    params: SamplingParams,
    seed: u64,
    prompt: Vec<u32>,
    generated: Vec<u32>,
}

/// Logits in steps of an eighth, so that many are equal.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    proptest::collection::vec((-40i32..40).prop_map(|n| n as f32 / 8.0), V)
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let id = 0..V as u32;
    let filters = (
        prop_oneof![Just(1.0f32), 0.05f32..1.0],
        prop_oneof![Just(0usize), 1usize..V + 4],
        prop_oneof![Just(0.0f32), 0.01f32..1.0],
    );
    let penalties = (
        prop_oneof![Just(1.0f32), 0.5f32..2.0],
        1usize..8,
        prop_oneof![Just(0.0f32), -2.0f32..2.0],
        prop_oneof![Just(0.0f32), -2.0f32..2.0],
        proptest::collection::btree_map(
            id,
            prop_oneof![-3.0f32..3.0, Just(f32::NEG_INFINITY)],
            0..4,
        ),
    );
    let temperature = prop_oneof![Just(0.0f32), 0.1f32..3.0];
    let more = (
        prop_oneof![2 => Just(0.0f32), 1 => 0.1f32..3.0],
        prop_oneof![2 => Just(0.0f32), 1 => 0.3f32..1.0],
        0.02f32..0.6,
        prop_oneof![2 => Just(0.0f32), 1 => 0.1f32..3.0],
        1usize..3,
    );
    let all = (temperature, filters, penalties, more);
    all.prop_map(|(temperature, (top_p, top_k, min_p), penalties, more)| {
        let (top_n_sigma, xtc_probability, xtc_threshold, dry_multiplier, dry_allowed_length) =
            more;
        let (repeat_penalty, repeat_context, presence_penalty, frequency_penalty, logit_bias) =
            penalties;
        SamplingParams {
            temperature,
            top_p,
            top_k,
            min_p,
            repeat_penalty,
            repeat_context,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            top_n_sigma,
            xtc_probability,
            xtc_threshold,
            dry_multiplier,
            dry_allowed_length,
            dry_breakers: [3].into(),
            ..Default::default()
        }
    })
}

fn case() -> impl Strategy<Value = Case> {
    let ids = |n: std::ops::Range<usize>| proptest::collection::vec(0..V as u32, n);
    (logits(), params(), any::<u64>(), ids(1..6), ids(0..6)).prop_map(
        |(logits, params, seed, prompt, generated)| Case {
            logits,
            params,
            seed,
            prompt,
            generated,
        },
    )
}

/// The tokens that the graph chooses, with the last generated token of each row as an array if `pending`.
fn graph(cases: &[Case], pending: bool) -> Vec<u32> {
    let histories: Vec<History> = cases
        .iter()
        .map(|case| {
            let mut history = History::new(case.prompt.clone());
            let known = case.generated.len() - usize::from(pending);
            case.generated[..known]
                .iter()
                .for_each(|&id| history.push(id));
            history
        })
        .collect();
    let rows: Vec<Row<'_>> = cases
        .iter()
        .zip(&histories)
        .map(|(case, history)| Row {
            params: &case.params,
            seed: case.seed,
            history,
            ahead: 0,
            logprobs: None,
            mask: None,
        })
        .collect();
    let flat: Vec<f32> = cases.iter().flat_map(|case| case.logits.clone()).collect();
    let logits = Array::from_slice(&flat, &[cases.len() as i32, V as i32]).unwrap();
    let last: Vec<u32> = cases
        .iter()
        .filter_map(|case| case.generated.last().copied())
        .collect();
    let last = pending.then(|| Array::from_slice(&last, &[cases.len() as i32]).unwrap());
    let sampled = sample(&logits, &rows, last.as_ref()).unwrap();
    sampled.start().unwrap();
    sampled
        .read()
        .unwrap()
        .into_iter()
        .map(|choice| choice.unwrap().id)
        .collect()
}

fn run(n: u32, test: impl Fn(Vec<Case>) -> Checked) {
    let config = Config {
        cases: n,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&proptest::collection::vec(case(), 1..5), test)
        .unwrap();
}

fn expected(cases: &[Case]) -> Vec<u32> {
    let one = |case: &Case| {
        reference(
            &case.logits,
            &case.params,
            case.seed,
            &case.prompt,
            &case.generated,
        )
    };
    cases.iter().map(one).collect()
}

#[test]
fn graph_equals_reference() {
    run(300, |cases| {
        prop_assert_eq!(graph(&cases, false), expected(&cases));
        Ok(())
    });
}

#[test]
fn a_token_that_was_not_read_counts() {
    run(300, |mut cases| {
        for case in &mut cases {
            case.generated.push(case.prompt[0]);
            // Such rows wait for their last token.
            case.params.dry_multiplier = 0.0;
        }
        prop_assert_eq!(graph(&cases, true), expected(&cases));
        prop_assert_eq!(graph(&cases, false), expected(&cases));
        Ok(())
    });
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    run(100, |cases| {
        let alone: Vec<u32> = cases
            .iter()
            .flat_map(|case| graph(std::slice::from_ref(case), false))
            .collect();
        prop_assert_eq!(graph(&cases, false), alone);
        Ok(())
    });
}

#[test]
fn draws_have_the_distribution() {
    let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125]
        .iter()
        .map(|p| p.ln())
        .collect();
    let logits = Array::from_slice(&logits, &[1, 4]).unwrap();
    let params = SamplingParams {
        temperature: 1.0,
        ..Default::default()
    };
    let history = History::new(vec![0]);
    let mut counts = [0u32; 4];
    for seed in 0..4000 {
        let row = Row {
            params: &params,
            seed,
            history: &history,
            ahead: 0,
            logprobs: None,
            mask: None,
        };
        let choices = sample(&logits, &[row], None).unwrap().read().unwrap();
        counts[choices[0].as_ref().unwrap().id as usize] += 1;
    }
    // Four standard deviations of a binomial are at most 127.
    for (n, expected) in counts.into_iter().zip([2000.0f64, 1000.0, 500.0, 500.0]) {
        assert!((f64::from(n) - expected).abs() < 127.0, "{counts:?}");
    }
}

#[test]
fn noise_is_of_seed_and_position() {
    let noise = |seed, position| noise(seed, position, 64);
    assert_eq!(noise(1, 2), noise(1, 2));
    assert_ne!(noise(1, 2), noise(1, 3));
    assert_ne!(noise(1, 2), noise(2, 2));
    assert_ne!(noise(1, 2), noise(2, 1));
}

#[test]
fn logprobs_are_of_the_processed_distribution() {
    let logits = [1.0f32, 3.0, 2.0, 3.0, -1.0];
    let array = Array::from_slice(&[logits, logits].concat(), &[2, 5]).unwrap();
    let bias = BTreeMap::from([(4u32, 9.0f32)]);
    let biased = SamplingParams {
        logit_bias: bias,
        temperature: 2.0,
        top_k: 1,
        ..Default::default()
    };
    let history = History::new(vec![0]);
    let rows = [
        Row {
            params: &SamplingParams::default(),
            seed: 0,
            history: &history,
            ahead: 0,
            logprobs: Some(3),
            mask: None,
        },
        Row {
            params: &biased,
            seed: 0,
            history: &history,
            ahead: 0,
            logprobs: Some(0),
            mask: None,
        },
    ];
    let choices = sample(&array, &rows, None).unwrap().read().unwrap();
    let lse = |x: &[f32]| x.iter().map(|l| l.exp()).sum::<f32>().ln();
    let first = choices[0].as_ref().unwrap();
    assert_eq!(first.id, 1);
    assert!((first.logprob.unwrap() - (3.0 - lse(&logits))).abs() < 1e-5);
    assert_eq!(
        first.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        [1, 3, 2]
    );
    let second = choices[1].as_ref().unwrap();
    assert_eq!((second.id, second.top.len()), (4, 0));
    assert!((second.logprob.unwrap() - (8.0 - lse(&[1.0, 3.0, 2.0, 3.0, 8.0]))).abs() < 1e-5);
}

/// The choices of two rows, greedy and drawn.
fn both_ways(logits: &[f32], shape: [i32; 2]) -> [Vec<Result<Choice>>; 2] {
    masked_both_ways(logits, shape, None)
}

/// The same with a mask: only the tokens that it allows.
fn masked_both_ways(
    logits: &[f32],
    shape: [i32; 2],
    mask: Option<&Mask>,
) -> [Vec<Result<Choice>>; 2] {
    let array = Array::from_slice(logits, &shape).unwrap();
    let drawn = SamplingParams {
        temperature: 1.0,
        ..Default::default()
    };
    let history = History::new(vec![0]);
    [SamplingParams::default(), drawn].map(|params| {
        let row = Row {
            params: &params,
            seed: 0,
            history: &history,
            ahead: 0,
            logprobs: None,
            mask: mask.map(TokenConstraint::to),
        };
        sample(&array, &[row, row], None).unwrap().read().unwrap()
    })
}

#[test]
fn one_nan_among_the_logits_fails_and_minus_infinity_does_not() {
    let (nan, low) = (f32::NAN, f32::NEG_INFINITY);
    for choices in both_ways(&[0.0, nan, 3.0, low, 2.0, low], [2, 3]) {
        assert!(choices[0].is_err());
        assert_eq!(choices[1].as_ref().unwrap().id, 1);
    }
}

#[test]
fn logits_that_are_no_numbers_are_an_error_of_their_row() {
    for choices in both_ways(&[f32::NAN, f32::NAN, 0.0, 1.0], [2, 2]) {
        assert_eq!(choices[0].as_ref().unwrap_err().kind(), ErrorKind::Compute);
        assert!(choices[1].as_ref().unwrap().id < 2);
    }
}

#[test]
fn masks_do_not_hide_what_is_no_number() {
    let (nan, low, high) = (f32::NAN, f32::NEG_INFINITY, f32::INFINITY);
    let mask: Mask = vec![0b110].into();
    for choices in masked_both_ways(&[9.0, 1.0, low, nan, 1.0, 2.0], [2, 3], Some(&mask)) {
        assert_eq!(choices[0].as_ref().unwrap().id, 1);
        assert!(choices[1].is_err());
    }
    for choices in masked_both_ways(&[high, 1.0, 2.0, 9.0, low, low], [2, 3], Some(&mask)) {
        assert!(choices.iter().all(Result::is_err));
    }
}

/// A demand that depends on the last token holds in the graph, without a read by the host.
#[test]
fn a_demand_may_depend_on_a_token_that_was_not_read() {
    let logits = Array::from_slice(&[0.0f32, 1.0, 9.0, 3.0].repeat(6), &[6, 4]).unwrap();
    let only = [0b0001u32, 0b1010].map(|word| Mask::from(vec![word]));
    let whens = [
        When::Always,
        When::Behind(&[7, 3]),
        When::Behind(&[7]),
        When::NotBehind(&[7]),
        When::NotBehind(&[3]),
    ];
    let history = History::new(vec![0]);
    let params = SamplingParams::default();
    let plain = Row {
        params: &params,
        seed: 0,
        history: &history,
        ahead: 0,
        logprobs: None,
        mask: None,
    };
    for (allowed, chosen) in only.iter().zip([0, 3]) {
        let mut rows: Vec<Row<'_>> = (whens.iter())
            .map(|&when| Row {
                mask: Some(TokenConstraint {
                    grammar: None,
                    least: None,
                    demand: Some(Demand { allowed, when }),
                }),
                ..plain
            })
            .collect();
        rows.push(plain);
        let pending = Array::from_slice(&[3u32; 6], &[6]).unwrap();
        let sampled = sample(&logits, &rows, Some(&pending)).unwrap();
        let choices = sampled.read().unwrap();
        let ids: Vec<u32> = choices
            .iter()
            .map(|choice| choice.as_ref().unwrap().id)
            .collect();
        assert_eq!(ids, [chosen, chosen, 2, chosen, 2, 2]);
        // A step with such a row is not repeated.
        assert!(sampled.draws.is_none());
    }
}
