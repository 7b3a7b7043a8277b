//! Rope and attention compared with their definitions.

use mlx_core::Array;
use mlx_nn::{Attend, CacheOptions, LayerKind, ModelCache, Rope, RopeConfig, RopeScaling};
use proptest::prelude::*;

#[path = "layers/numbers.rs"]
mod numbers;

use numbers::{close, input};

/// The rotation of one pair by its formula, at offsets that differ from row to row.
#[test]
fn rope_rotates_pairs_by_position_times_frequency() {
    let config = RopeConfig {
        base: 100.0,
        dims: 4,
        interleaved: false,
        reversed: false,
        scaling: RopeScaling::Linear { factor: 2.0 },
    };
    let rope = Rope::new(&config, 6).unwrap();
    let mut cache = ModelCache::new(&[LayerKind::Full], 2, CacheOptions::default());
    cache.begin(&[3, 1]).unwrap().commit_all().unwrap();
    let x = input(&[1, 1, 4, 6], 7);
    let step = cache.begin(&[2, 2]).unwrap();
    let found = rope.forward(&x, &step).unwrap().to_vec::<f32>().unwrap();
    let x = x.to_vec::<f32>().unwrap();
    let mut expected = x.clone();
    for (row, offset) in [3.0f32, 1.0].iter().enumerate() {
        for token in 0..2 {
            let at = (row * 2 + token) * 6;
            for pair in 0..2 {
                let angle = (offset + token as f32) / 2.0 * 100f32.powf(-(pair as f32) / 2.0);
                let (a, b) = (x[at + pair], x[at + pair + 2]);
                expected[at + pair] = a * angle.cos() - b * angle.sin();
                expected[at + pair + 2] = b * angle.cos() + a * angle.sin();
            }
        }
    }
    close(&found, &expected);
}

#[test]
fn a_rope_that_cannot_be_is_refused() {
    for dims in [0, -2, 3, 10] {
        let config = RopeConfig {
            base: 100.0,
            dims,
            interleaved: false,
            reversed: false,
            scaling: RopeScaling::Default,
        };
        assert!(Rope::new(&config, 8).is_err(), "{dims}");
    }
    let scaling = RopeScaling::Long {
        long: vec![1.0; 3],
        short: vec![1.0; 4],
        original: 8,
        amplitude: 1.0,
        long_amplitude: None,
    };
    let error = Rope::new(
        &RopeConfig {
            base: 100.0,
            dims: 8,
            interleaved: false,
            reversed: false,
            scaling,
        },
        8,
    )
    .unwrap_err()
    .to_string();
    assert!(
        error.contains("long_factor must have 4 numbers, found 3"),
        "{error}"
    );
}

/// LongRoPE: short and long rows in one step are rotated as in steps of their own.
#[test]
fn rows_on_both_sides_of_the_border_keep_their_own_table() {
    let scaling = RopeScaling::Long {
        long: vec![3.0, 4.0],
        short: vec![1.0, 1.5],
        original: 4,
        amplitude: 1.2,
        long_amplitude: None,
    };
    let rope = Rope::new(
        &RopeConfig {
            base: 100.0,
            dims: 4,
            interleaved: false,
            reversed: false,
            scaling,
        },
        4,
    )
    .unwrap();
    let x = input(&[1, 1, 4, 4], 8);
    let rotate = |rows: &[usize], x: &Array| {
        let mut cache = ModelCache::new(&[LayerKind::Full], rows.len(), CacheOptions::default());
        for (row, &reach) in rows.iter().enumerate() {
            cache.expect(row, reach);
        }
        let step = cache.begin(&vec![2; rows.len()]).unwrap();
        rope.forward(x, &step).unwrap().to_vec::<f32>().unwrap()
    };
    let both = rotate(&[4, 5], &x);
    let alone = [
        rotate(&[4], &x.slice_axis(2, 0, 2).unwrap()),
        rotate(&[5], &x.slice_axis(2, 2, 4).unwrap()),
    ];
    close(&both, &alone.concat());
    assert_ne!(rotate(&[4, 4], &x), both);
}

/// Dynamic NTK: a prompt has the base of its own length, also in chunks and together with other
/// rows. Each token after the prompt has the base of the text up to that token, also if a step
/// brings several tokens.
#[test]
fn a_rope_that_grows_follows_each_row() {
    let (base, factor, original, dims) = (100.0f64, 4.0f64, 6usize, 4usize);
    for interleaved in [false, true] {
        let rope = RopeConfig {
            base,
            dims: dims as i32,
            interleaved,
            reversed: false,
            scaling: RopeScaling::Dynamic { factor, original },
        };
        let rope = Rope::new(&rope, 6).unwrap();
        // Rows: a long prompt in its second chunk, a short prompt that was decoded beyond the
        // original length, a short text.
        let (prompts, begins) = ([12, 3, 4], [8, 9, 1]);
        let mut cache = ModelCache::new(&[LayerKind::Full], 3, CacheOptions::default());
        cache.begin(&begins).unwrap().commit_all().unwrap();
        for (row, &prompt) in prompts.iter().enumerate() {
            cache.expect(row, prompt);
        }
        let step = cache.begin(&[3, 3, 3]).unwrap();
        let x = input(&[1, 1, 9, 6], 9);
        let found = rope.forward(&x, &step).unwrap().to_vec::<f32>().unwrap();
        let x = x.to_vec::<f32>().unwrap();
        let mut expected = x.clone();
        for row in 0..3 {
            for token in 0..3 {
                let position = begins[row] + token;
                let length = prompts[row].max(position + 1).max(original) as f64;
                let growth = factor * length / original as f64 - (factor - 1.0);
                let base = base * growth.powf(dims as f64 / (dims as f64 - 2.0));
                let at = (row * 3 + token) * 6;
                for pair in 0..2 {
                    let angle = position as f64 * base.powf(-(pair as f64) / 2.0);
                    let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
                    let (i, j) = match interleaved {
                        true => (at + 2 * pair, at + 2 * pair + 1),
                        false => (at + pair, at + pair + 2),
                    };
                    expected[i] = x[i] * cos - x[j] * sin;
                    expected[j] = x[j] * cos + x[i] * sin;
                }
            }
        }
        close(&found, &expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Soft caps and sinks against the definition, for grouped heads, with and without a window.
    #[test]
    fn attention_equals_its_definition(
        seed in 0..1000u64,
        (kv_heads, groups) in (1..3usize, 1..3usize),
        len in 1..7usize,
        softcap in prop::sample::select(vec![None, Some(2.0f32)]),
        with_sinks in any::<bool>(),
        window in prop::sample::select(vec![None, Some(3usize)]),
    ) {
        let (d, heads) = (4usize, kv_heads * groups);
        let shape = |heads: usize| [1, heads as i32, len as i32, d as i32];
        let (q, k, v) = (input(&shape(heads), seed), input(&shape(kv_heads), seed + 1), input(&shape(kv_heads), seed + 2));
        let sinks = input(&[heads as i32], seed + 3);
        let kind = window.map_or(LayerKind::Full, LayerKind::Window);
        let mut cache = ModelCache::new(&[kind], 1, CacheOptions::default());
        let mut step = cache.begin(&[len]).unwrap();
        let options = Attend { scale: 0.5, softcap, sinks: with_sinks.then_some(&sinks), alibi: None };
        let found = step.attend(0, &q, &k, &v, &options).unwrap().to_vec::<f32>().unwrap();
        let (q, k, v, sinks) = (q.to_vec::<f32>().unwrap(), k.to_vec::<f32>().unwrap(), v.to_vec::<f32>().unwrap(), sinks.to_vec::<f32>().unwrap());
        let mut expected = Vec::new();
        for head in 0..heads {
            let kv = head / groups;
            for i in 0..len {
                let from = window.map_or(0, |window| (i + 1).saturating_sub(window));
                let weights: Vec<f32> = (from..=i).map(|j| {
                    let dot: f32 = (0..d).map(|c| q[(head * len + i) * d + c] * k[(kv * len + j) * d + c]).sum();
                    let score = dot * 0.5;
                    softcap.map_or(score, |cap| cap * (score / cap).tanh()).exp()
                }).collect();
                let total: f32 = weights.iter().sum::<f32>() + if with_sinks { sinks[head].exp() } else { 0.0 };
                for c in 0..d {
                    expected.push((from..=i).zip(&weights).map(|(j, w)| w / total * v[(kv * len + j) * d + c]).sum());
                }
            }
        }
        close(&found, &expected);
    }
}

#[test]
fn a_rope_that_grows_backwards_is_refused() {
    let config = RopeConfig {
        base: 100.0,
        dims: 8,
        interleaved: false,
        reversed: true,
        scaling: RopeScaling::Dynamic {
            factor: 2.0,
            original: 32,
        },
    };
    let error = Rope::new(&config, 8).unwrap_err().to_string();
    assert!(error.contains("rope dynamic is not supported"), "{error}");
}
