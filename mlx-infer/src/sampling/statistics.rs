//! Draws have the distribution that the settings ask for: chi-square over 200,000 draws at 0.001.

use std::collections::BTreeMap;

use mlx_core::{Array, DType, random};

use crate::grammar::Mask;
use crate::request::sampling::SamplingParams;
use crate::sampling::{History, Row, TokenConstraint, sample};

const DRAWS: usize = 200_000;
const ROWS: usize = 2_000;
/// The number of times that each row has generated token 0.
const SAID: usize = 2;

/// Twelve tokens, two of them equally likely.
const LOGITS: [f32; 12] = [
    2.0, 1.3, 1.3, 0.9, 0.4, 0.1, -0.2, -0.7, -1.1, -1.5, -2.0, -3.5,
];

/// The distribution that the settings define: thresholds on the model's distribution, then temperature.
fn expected(params: &SamplingParams) -> Vec<f64> {
    let mut x: Vec<f64> = LOGITS.iter().map(|&l| f64::from(l)).collect();
    for (&id, &bias) in &params.logit_bias {
        x[id as usize] += f64::from(bias);
    }
    // The histories below hold the token 0 alone, whose logit is positive.
    x[0] /= f64::from(params.repeat_penalty);
    x[0] -= SAID as f64 * f64::from(params.frequency_penalty) + f64::from(params.presence_penalty);
    let softmax = |x: &[f64]| {
        let total: f64 = x.iter().map(|l| l.exp()).sum();
        x.iter().map(|l| l.exp() / total).collect::<Vec<f64>>()
    };
    let p = softmax(&x);
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]));
    let (mut kept, mut before) = (vec![false; x.len()], 0.0);
    for (rank, &id) in order.iter().enumerate() {
        let k = if params.top_k == 0 {
            x.len()
        } else {
            params.top_k
        };
        let top_p = params.top_p == 1.0 || before < f64::from(params.top_p);
        kept[id] = rank < k && top_p && p[id] >= f64::from(params.min_p) * p[order[0]];
        before += p[id];
    }
    let scaled: Vec<f64> = x
        .iter()
        .zip(&kept)
        .map(|(l, &kept)| match kept {
            true => l / f64::from(params.temperature),
            false => f64::NEG_INFINITY,
        })
        .collect();
    softmax(&scaled)
}

/// How often the sampler draws each token.
fn drawn(params: &SamplingParams) -> Vec<usize> {
    drawn_of(params, None)
}

/// The same with a mask: only the tokens that it allows.
fn drawn_of(params: &SamplingParams, mask: Option<&Mask>) -> Vec<usize> {
    let logits = LOGITS.repeat(ROWS);
    let logits = Array::from_slice(&logits, &[ROWS as i32, LOGITS.len() as i32]).unwrap();
    let mut counts = vec![0; LOGITS.len()];
    for round in 0..DRAWS / ROWS {
        // Seeds and positions that are neighbours, as in practice.
        let mut history = History::new(vec![0; round + 1]);
        (0..SAID).for_each(|_| history.push(0));
        let rows: Vec<Row<'_>> = (0..ROWS)
            .map(|row| Row {
                params,
                seed: row as u64,
                history: &history,
                ahead: 0,
                logprobs: None,
                mask: mask.map(TokenConstraint::to),
            })
            .collect();
        for choice in sample(&logits, &rows, None).unwrap().read().unwrap() {
            counts[choice.unwrap().id as usize] += 1;
        }
    }
    counts
}

/// The statistic and the number of degrees of freedom; infinite if something impossible was drawn.
fn chi_square(counts: &[usize], expected: &[f64]) -> (f64, usize) {
    let n = counts.iter().sum::<usize>() as f64;
    let (mut statistic, mut bins) = (0.0, 0);
    for (&count, &p) in counts.iter().zip(expected) {
        if p == 0.0 {
            statistic += if count == 0 { 0.0 } else { f64::INFINITY };
        } else {
            assert!(n * p >= 5.0, "too few draws for a probability of {p}");
            statistic += (count as f64 - n * p).powi(2) / (n * p);
            bins += 1;
        }
    }
    (statistic, bins - 1)
}

/// The 0.999 quantile of the chi-square distribution.
fn critical(freedom: usize) -> f64 {
    [
        0.0, 10.828, 13.816, 16.266, 18.467, 20.515, 22.458, 24.322, 26.124, 27.877, 29.588, 31.264,
    ][freedom]
}

fn settings() -> Vec<(&'static str, SamplingParams)> {
    let plain = SamplingParams {
        temperature: 1.0,
        ..Default::default()
    };
    let with = |change: fn(&mut SamplingParams)| {
        let mut params = plain.clone();
        change(&mut params);
        params
    };
    vec![
        ("plain", plain.clone()),
        ("temperature", with(|p| p.temperature = 1.7)),
        ("low temperature", with(|p| p.temperature = 0.6)),
        ("top-k", with(|p| p.top_k = 5)),
        // Top-k cuts between two equally likely tokens.
        ("top-k at a tie", with(|p| p.top_k = 2)),
        ("top-p", with(|p| p.top_p = 0.8)),
        ("min-p", with(|p| p.min_p = 0.1)),
        (
            "bias",
            with(|p| p.logit_bias = [(11, 5.0), (0, f32::NEG_INFINITY)].into()),
        ),
        ("top-k and top-p", with(|p| (p.top_k, p.top_p) = (6, 0.9))),
        (
            "top-p and min-p",
            with(|p| (p.top_p, p.min_p) = (0.95, 0.2)),
        ),
        ("top-k and min-p", with(|p| (p.top_k, p.min_p) = (4, 0.3))),
        ("repeat penalty", with(|p| p.repeat_penalty = 1.6)),
        ("presence penalty", with(|p| p.presence_penalty = 0.8)),
        ("frequency penalty", with(|p| p.frequency_penalty = 0.7)),
        (
            "top-k, top-p and min-p",
            with(|p| (p.top_k, p.top_p, p.min_p) = (8, 0.95, 0.08)),
        ),
        (
            "all",
            with(|p| {
                p.repeat_penalty = 1.2;
                (p.presence_penalty, p.frequency_penalty) = (-0.2, 0.3);
                (p.temperature, p.top_k, p.top_p, p.min_p) = (1.4, 9, 0.95, 0.03);
                p.logit_bias = [(3, 0.7)].into();
            }),
        ),
    ]
}

#[test]
fn draws_have_the_distribution() {
    for (name, params) in settings() {
        let counts = drawn(&params);
        let (statistic, freedom) = chi_square(&counts, &expected(&params));
        assert!(
            statistic < critical(freedom),
            "{name}: {statistic} with {freedom} degrees of freedom: {counts:?}"
        );
    }
}

/// With a mask, the allowed tokens keep their distribution before the filters, as with a bias of
/// minus infinity on the others.
#[test]
fn masked_draws_have_the_distribution_of_the_rest() {
    let allowed = [0usize, 2, 3, 5, 8, 9];
    let mask: Mask = vec![allowed.iter().map(|id| 1 << id).sum::<u32>()].into();
    let others = (0..LOGITS.len()).filter(|id| !allowed.contains(id));
    let others: BTreeMap<u32, f32> = others.map(|id| (id as u32, f32::NEG_INFINITY)).collect();
    for (name, params) in settings() {
        let mut biased = params.clone();
        biased.logit_bias.extend(others.clone());
        let expected = expected(&biased);
        let counts = drawn_of(&params, Some(&mask));
        if expected.iter().filter(|p| **p > 0.0).count() == 1 {
            assert_eq!(counts.iter().sum::<usize>(), counts[most(&expected)]);
            continue;
        }
        let (statistic, freedom) = chi_square(&counts, &expected);
        assert!(
            statistic < critical(freedom),
            "{name}: {statistic} with {freedom} degrees of freedom: {counts:?}"
        );
    }
}

fn most(p: &[f64]) -> usize {
    (0..p.len()).fold(0, |best, id| if p[id] > p[best] { id } else { best })
}

/// The test detects samplers that are slightly wrong.
#[test]
fn biased_samplers_are_found() {
    let plain = &settings()[0].1;
    let honest = expected(plain);
    let rejects = |counts: &[usize], expected: &[f64]| {
        let (statistic, freedom) = chi_square(counts, expected);
        statistic > critical(freedom)
    };
    // The temperature is off by two parts in a hundred.
    let warmer = SamplingParams {
        temperature: 1.02,
        ..plain.clone()
    };
    assert!(rejects(&drawn(&warmer), &honest));
    // Temperature before top-p instead of after it.
    let late = SamplingParams {
        temperature: 1.7,
        top_p: 0.8,
        ..plain.clone()
    };
    let mut swapped = late.clone();
    swapped.top_p = 0.7;
    assert!(rejects(&drawn(&swapped), &expected(&late)));
    // One in a hundred draws takes the likeliest token.
    let mut greedy_sometimes = drawn(plain);
    for id in 1..LOGITS.len() {
        let moved = greedy_sometimes[id] / 100;
        greedy_sometimes[id] -= moved;
        greedy_sometimes[0] += moved;
    }
    assert!(rejects(&greedy_sometimes, &honest));
    // Uniform noise in place of Gumbel's.
    let key = random::Key::new(7).unwrap();
    let shape = [DRAWS as i32, LOGITS.len() as i32];
    let noise = random::uniform(&key, 0.0, 4.0, &shape, DType::F32).unwrap();
    let logits = Array::from_slice(&LOGITS, &[1, LOGITS.len() as i32]).unwrap();
    let ids = logits.add(&noise).unwrap().argmax(-1, false).unwrap();
    let mut counts = vec![0; LOGITS.len()];
    for id in ids.to_vec::<u32>().unwrap() {
        counts[id as usize] += 1;
    }
    assert!(rejects(&counts, &honest));
}

/// Rows with neighbouring seeds draw independently of each other, as do neighbouring positions.
#[test]
fn neighbours_draw_independently() {
    let params = SamplingParams {
        temperature: 1.0,
        top_k: 4,
        ..Default::default()
    };
    let logits = Array::from_slice(&LOGITS.repeat(ROWS), &[ROWS as i32, LOGITS.len() as i32]);
    let logits = logits.unwrap();
    let draws = |position: usize| -> Vec<usize> {
        let history = History::new(vec![0; position]);
        let rows: Vec<Row<'_>> = (0..ROWS)
            .map(|row| Row {
                params: &params,
                seed: row as u64,
                history: &history,
                ahead: 0,
                logprobs: None,
                mask: None,
            })
            .collect();
        let choices = sample(&logits, &rows, None).unwrap().read().unwrap();
        choices
            .into_iter()
            .map(|c| c.unwrap().id as usize)
            .collect()
    };
    let p = expected(&params);
    let joint: Vec<f64> = (0..16).map(|cell| p[cell / 4] * p[cell % 4]).collect();
    let (mut by_seed, mut by_position) = (vec![0; 16], vec![0; 16]);
    let mut before = draws(1);
    for position in 2..52 {
        let now = draws(position);
        for pair in now.chunks_exact(2) {
            by_seed[pair[0] * 4 + pair[1]] += 1;
        }
        // Every other position, so that the pairs are independent of each other.
        if position % 2 == 0 {
            for (before, now) in before.iter().zip(&now) {
                by_position[before * 4 + now] += 1;
            }
        }
        before = now;
    }
    // The 0.999 quantile with 15 degrees of freedom.
    for counts in [by_seed, by_position] {
        let (statistic, freedom) = chi_square(&counts, &joint);
        assert!(
            freedom == 15 && statistic < 37.697,
            "{statistic}: {counts:?}"
        );
    }
}
