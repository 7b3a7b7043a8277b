//! Recurrent layers compared with a simple model: a list of tokens for each row.

mod beside;
mod model;

use mlx_core::{Array, DType, ops::create::zeros};
use mlx_nn::{Attend, CacheOptions, LayerKind, ModelCache, StateAfter};
use proptest::prelude::*;

use beside::{Beside, alone, events};
use model::{E, forward, kinds};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn rows_give_what_they_give_alone(
        events in events(),
        slack in prop::sample::select(vec![0usize, 1, 3]),
        window in prop::sample::select(vec![None, Some(5usize)]),
        rows in 1..4usize,
    ) {
        let options = CacheOptions { slack, ..CacheOptions::default() };
        let mut beside = Beside::new(options, window, rows);
        for event in &events {
            beside.apply(event).unwrap();
        }
    }
}

/// Rows of every width up to k keep every possible number of their tokens.
#[test]
fn every_part_of_a_ragged_step_can_be_kept() {
    let options = CacheOptions {
        slack: 3,
        ..CacheOptions::default()
    };
    for round in 0..24usize {
        let mut beside = Beside::new(options, None, 4);
        beside.drawn = round as u32 * 100;
        beside.step(&[9, 2, 5, 1], Some(&[16; 4])).unwrap();
        for turn in 0..4 {
            let widths = [0, 1, 2, 3].map(|row| (row + turn + round) % 5);
            let keep = [0, 1, 2, 3].map(|row| (row * 5 + turn * 7 + round) % 17);
            beside.step(&widths, Some(&keep)).unwrap();
        }
    }
}

fn one(slack: usize) -> ModelCache {
    let options = CacheOptions {
        slack,
        ..CacheOptions::default()
    };
    ModelCache::new(&kinds(None), 1, options)
}

fn tokens(n: usize) -> Array {
    Array::from_slice(&vec![3u32; n], &[1, n as i32]).unwrap()
}

fn read(cache: &mut ModelCache, n: usize) {
    let mut step = cache.begin(&[n]).unwrap();
    forward(&tokens(n), &mut step).unwrap();
    step.commit_all().unwrap();
}

/// The recurrent states. Keys and values are left out: a dropped step may have written some after
/// the row's last position.
fn states(cache: &ModelCache) -> Vec<Vec<f32>> {
    let arrays = cache.row_arrays();
    let first = arrays.len() - 3;
    let states = arrays[first..].iter();
    states.map(|array| array.to_vec().unwrap()).collect()
}

#[test]
fn what_a_recurrent_state_cannot_do_is_refused_by_name() {
    let mut cache = one(1);
    read(&mut cache, 6);
    let before = states(&cache);

    let mut step = cache.begin(&[4]).unwrap();
    forward(&tokens(4), &mut step).unwrap();
    let error = step.commit(&[2]).unwrap_err().to_string();
    assert!(
        error.contains("layer 0: a step of 4 tokens is too wide for slack 1"),
        "{error}"
    );

    let step = cache.begin(&[1]).unwrap();
    let error = step.commit(&[1]).unwrap_err().to_string();
    assert!(
        error.contains("layer 0: the step has not handed over its conv"),
        "{error}"
    );

    let mut step = cache.begin(&[1]).unwrap();
    let x = zeros(&[1, 1, 1, 8], DType::F32).unwrap();
    let options = Attend {
        scale: 1.0,
        softcap: None,
        sinks: None,
        alibi: None,
    };
    let mut errors = vec![
        step.attend(0, &x, &x, &x, &options).unwrap_err(),
        step.state(1, 0).unwrap_err(),
        step.state(0, 0).unwrap_err(),
        step.state(0, 2).unwrap_err(),
        step.state(3, 0).unwrap_err(),
        step.window(0, 1, &x).unwrap_err(),
        step.window(0, 0, &x).unwrap_err(),
        step.set_state(0, 1, StateAfter::End(x.clone()))
            .unwrap_err(),
        step.set_state(0, 1, StateAfter::Each(x.clone()))
            .unwrap_err(),
    ];
    drop(step);
    errors.push(cache.truncate(0, 4).unwrap_err());
    errors.push(cache.prefix(0, 4).unwrap_err());
    errors.push(cache.restore(0, 4, vec![vec![x.clone()]; 2]).unwrap_err());
    errors.push(cache.restore(0, 6, vec![]).unwrap_err());
    let other = ModelCache::new(
        &kinds(Some(3)),
        1,
        CacheOptions {
            slack: 1,
            ..Default::default()
        },
    );
    errors.push(cache.join(&other).unwrap_err());
    let expected = [
        "layer 0 keeps no keys and values",
        "layer 1 keeps keys and values, not a recurrent state",
        "layer 0: conv is a window of inputs",
        "layer 0: there is no state array 2 of 2",
        "there is no layer 3",
        "layer 0: state is no window",
        "layer 0: inputs [1, 1, 1, 8] of conv [3, 24] in a step of [1] tokens",
        "layer 0: state is F32 [1, 1, 1, 8] after the step, expected F32 [1, 1, 8, 8]",
        "state is F32 [1, 1, 1, 8] after the step, expected F32 [1, 1, 8, 8]",
        "layer 0 (recurrent conv [3, 24] state [1, 8, 8]) no longer holds the state of row 0 at length 4 of 6",
        "the first 4 positions of row 0 are not held",
        "layer 0: a state of 1 arrays where 2 belong",
        "a row of 6 positions has no recorded state at 6",
        "caches of different models or options",
    ];
    for (error, expected) in errors.iter().zip(expected) {
        let error = error.to_string();
        assert!(error.contains(expected), "{error}; expected {expected}");
    }
    // None of these calls has changed the cache.
    assert!(cache.lens() == [6] && states(&cache) == before);
}

/// A cache that stores nothing computes the same as one that does, and keeps no state.
#[test]
fn one_step_without_a_store() {
    let options = CacheOptions {
        store: false,
        ..CacheOptions::default()
    };
    let mut cache = ModelCache::new(&kinds(None), 2, options);
    let ids = [5u32, 9, 2, 7, 11];
    let mut step = cache.begin(&[3, 2]).unwrap();
    let found = forward(&Array::from_slice(&ids, &[1, 5]).unwrap(), &mut step).unwrap();
    step.commit_all().unwrap();
    let found = found.to_vec::<f32>().unwrap();
    for (row, tokens) in [&ids[..3], &ids[3..5]].into_iter().enumerate() {
        for (token, expected) in alone(tokens, None).iter().enumerate() {
            let at = (row * 3 + token) * E; // row 0 has three tokens
            let found: Vec<u32> = found[at..at + E].iter().map(|x| x.to_bits()).collect();
            assert_eq!(&found, expected, "row {row}, token {token}");
        }
    }
    assert_eq!(cache.nbytes(), 0);
}

/// The bytes of a row do not grow with its length, and equal those that its kind reports.
#[test]
fn a_row_costs_what_its_kind_tells() {
    let mut cache = ModelCache::new(&kinds(None)[..1], 2, CacheOptions::default());
    let cost = kinds(None)[0]
        .cost(
            mlx_nn::KvShape {
                heads: 1,
                key_dim: 8,
                value_dim: 8,
            },
            DType::F32,
            &CacheOptions::default(),
        )
        .unwrap();
    assert_eq!(cost.row_bytes, (3 * E + 8 * 8) * 4);
    for width in [300, 1, 1] {
        let mut step = cache.begin(&[width, 1]).unwrap();
        let x = zeros(&[1, width as i32 + 1, E as i32], DType::F32).unwrap();
        step.window(0, 0, &x).unwrap();
        let state = step.state(0, 1).unwrap();
        step.set_state(0, 1, StateAfter::End(state)).unwrap();
        step.commit_all().unwrap();
        mlx_core::eval(cache.arrays()).unwrap();
        assert_eq!(cache.nbytes(), 2 * cost.row_bytes);
    }
    assert!(matches!(kinds(None)[0], LayerKind::Recurrent(_)));
}
