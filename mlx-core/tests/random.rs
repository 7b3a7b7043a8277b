//! Explicit keys: the same key gives the same numbers, and the numbers have the documented distributions.

use std::collections::HashSet;

use mlx_core::random::{self, Key};
use mlx_core::{Array, DType, Result};

const MANY: i32 = 20_000;

fn key(seed: u64) -> Key {
    Key::new(seed).unwrap()
}

fn moments(array: &Array) -> (f64, f64) {
    let values = array.to_vec::<f32>().unwrap();
    let n = values.len() as f64;
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let variance = values
        .iter()
        .map(|&v| (f64::from(v) - mean).powi(2))
        .sum::<f64>()
        / n;
    (mean, variance)
}

fn close(found: (f64, f64), mean: f64, variance: f64, what: &str) {
    // Five standard errors of 20 000 draws.
    let error = 5.0 * (variance / f64::from(MANY)).sqrt();
    assert!(
        (found.0 - mean).abs() < error,
        "{what}: mean {}, expected {mean}",
        found.0
    );
    assert!(
        (found.1 / variance - 1.0).abs() < 0.12,
        "{what}: variance {}, expected {variance}",
        found.1
    );
}

#[test]
fn distributions_have_their_moments() -> Result<()> {
    let (f32, n) = (DType::F32, &[MANY][..]);
    close(
        moments(&random::uniform(&key(1), -1.0, 3.0, n, f32)?),
        1.0,
        16.0 / 12.0,
        "uniform",
    );
    close(
        moments(&random::normal_with(&key(2), n, f32, 2.0, 3.0)?),
        2.0,
        9.0,
        "normal",
    );
    close(
        moments(&random::laplace_with(&key(3), n, f32, 1.0, 2.0)?),
        1.0,
        8.0,
        "laplace",
    );
    let euler = 0.577_215_664_9;
    close(
        moments(&random::gumbel(&key(4), n, f32)?),
        euler,
        std::f64::consts::PI.powi(2) / 6.0,
        "gumbel",
    );
    let coins = random::bernoulli(&key(5), 0.3, n)?;
    assert_eq!(coins.dtype(), DType::Bool);
    close(moments(&coins.astype(f32)?), 0.3, 0.21, "bernoulli");
    let dice = random::randint(&key(6), 1, 7, n, DType::I32)?;
    assert_eq!(
        dice.to_vec::<i32>()?.into_iter().collect::<HashSet<_>>(),
        (1..7).collect()
    );
    close(moments(&dice.astype(f32)?), 3.5, 35.0 / 12.0, "randint");
    let cut = random::truncated_normal(&key(7), -1.0, 1.0, n, f32)?.to_vec::<f32>()?;
    assert!(cut.iter().all(|v| (-1.0..=1.0).contains(v)));
    let logits = Array::from_slice(&[0.0f32, f32::NEG_INFINITY, 3f32.ln()], &[1, 3])?
        .broadcast_to(&[MANY, 3])?;
    let drawn = random::categorical(&key(8), &logits)?;
    close(moments(&drawn.astype(f32)?), 1.5, 0.75, "categorical");
    assert!(
        !drawn.to_vec::<u32>()?.contains(&1),
        "a choice of no probability was drawn"
    );
    Ok(())
}

#[test]
fn dtypes_are_as_asked() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        assert_eq!(random::normal(&key(1), &[4], dtype)?.dtype(), dtype);
        assert_eq!(
            random::uniform(&key(1), 0.0, 1.0, &[4], dtype)?.dtype(),
            dtype
        );
        assert_eq!(random::gumbel(&key(1), &[4], dtype)?.dtype(), dtype);
    }
    for (width, dtype) in [(1, DType::U8), (2, DType::U16), (4, DType::U32)] {
        let bits = random::bits(&key(1), &[256], width)?;
        assert_eq!((bits.dtype(), bits.shape()), (dtype, &[256][..]));
        let ones = bits
            .astype(DType::U64)?
            .to_vec::<u64>()?
            .iter()
            .map(|v| v.count_ones())
            .sum::<u32>();
        let expected = 128 * 8 * width as u32;
        assert!(
            ones.abs_diff(expected) < expected / 10,
            "{ones} of twice {expected} bits are set"
        );
    }
    Ok(())
}

#[test]
fn keys_decide_the_numbers() -> Result<()> {
    let draw = |key: &Key| random::bits(key, &[8], 4)?.to_vec::<u32>();
    assert_eq!(draw(&key(9))?, draw(&key(9))?);
    assert_ne!(draw(&key(9))?, draw(&key(10))?);
    let mut seen = HashSet::new();
    let parent = key(11);
    seen.insert(draw(&parent)?);
    for child in parent.split_n(5)?.iter().chain(&parent.split()?) {
        seen.insert(draw(child)?);
    }
    // A split in two differs from a split in five, and all keys differ from the parent.
    assert!(seen.len() >= 6, "{} streams", seen.len());
    let there = std::thread::spawn(|| {
        random::bits(&key(9), &[8], 4)
            .unwrap()
            .to_vec::<u32>()
            .unwrap()
    })
    .join()
    .unwrap();
    assert_eq!(draw(&key(9))?, there);
    let mut order = random::permutation_of(&key(12), 50)?.to_vec::<u32>()?;
    assert_ne!(order, (0..50).collect::<Vec<_>>());
    order.sort_unstable();
    assert_eq!(order, (0..50).collect::<Vec<_>>());
    Ok(())
}
