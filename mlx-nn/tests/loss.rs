//! Losses compared with their definitions in f64, and gradients compared with finite differences.

use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, random};
use mlx_nn::loss::{cross_entropy, masked_mean, mse};

const ROWS: usize = 4;
const VOCAB: usize = 7;
const TARGETS: [u32; ROWS] = [3, 0, 6, 3];
const MASK: [bool; ROWS] = [true, false, true, true];

fn logits(scale: f32) -> Vec<f32> {
    let key = random::Key::new(3).unwrap();
    let shape = [ROWS as i32, VOCAB as i32];
    let array = random::normal_with(&key, &shape, DType::F32, 0.0, scale).unwrap();
    array.to_vec::<f32>().unwrap()
}

fn array(logits: &[f32]) -> Array {
    Array::from_slice(logits, &[ROWS as i32, VOCAB as i32]).unwrap()
}

fn masked(logits: &Array) -> mlx_core::Result<Array> {
    let targets = Array::from_slice(&TARGETS, &[ROWS as i32])?;
    let mask = Array::from_slice(&MASK, &[ROWS as i32])?;
    masked_mean(&cross_entropy(logits, &targets)?, &mask)
}

/// The definition, in f64.
fn exact(logits: &[f64]) -> f64 {
    let row = |row: usize| {
        let logits = &logits[row * VOCAB..(row + 1) * VOCAB];
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|x| (x - largest).exp()).sum();
        largest + sum.ln() - logits[TARGETS[row] as usize]
    };
    let counted = (0..ROWS).filter(|&row| MASK[row]);
    counted.clone().map(row).sum::<f64>() / counted.count() as f64
}

fn wide(logits: &[f32]) -> Vec<f64> {
    logits.iter().copied().map(f64::from).collect()
}

#[test]
fn cross_entropy_is_stable() {
    // Above about 88 `exp` overflows in F32, and below about -88 it is close to 0, whose logarithm
    // is infinite.
    for scale in [1.0, 30.0, 1000.0] {
        let logits = logits(scale);
        let expected = exact(&wide(&logits));
        let found = f64::from(masked(&array(&logits)).unwrap().item::<f32>().unwrap());
        assert!(
            (found - expected).abs() < 1e-5 * expected.max(1.0),
            "{scale}: {found} {expected}"
        );
    }
}

/// 16-bit logits are widened before the softmax: the only error is that of their own rounding.
#[test]
fn narrow_logits_are_summed_in_f32() {
    for dtype in [DType::BF16, DType::F16] {
        let narrow = array(&logits(3.0)).astype(dtype).unwrap();
        let rounded = narrow.astype(DType::F32).unwrap().to_vec::<f32>().unwrap();
        let found = masked(&narrow).unwrap();
        assert_eq!(found.dtype(), DType::F32);
        let off = f64::from(found.item::<f32>().unwrap()) - exact(&wide(&rounded));
        assert!(off.abs() < 1e-6, "{dtype}: off by {off}");
    }
}

#[test]
fn gradients_are_finite_differences() {
    const STEP: f64 = 1e-5;

    let start = logits(2.0);
    let grads = grad_with(|args| Ok(vec![masked(&args[0])?]), &[array(&start)], &[0]).unwrap();
    let found = grads[0].to_vec::<f32>().unwrap();
    for (index, &found) in found.iter().enumerate() {
        let at = |shift: f64| {
            let mut logits = wide(&start);
            logits[index] += shift;
            exact(&logits)
        };
        let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
        let off = (f64::from(found) - expected).abs();
        assert!(off < 1e-6, "{index}: {found}, expected {expected}");
        assert!(
            MASK[index / VOCAB] || found == 0.0,
            "a masked row has no gradient"
        );
    }
}

#[test]
fn the_mean_of_nothing_is_nothing() {
    let losses = Array::from_slice(&[1.0f32, 2.0], &[2]).unwrap();
    let nothing = Array::from_slice(&[false, false], &[2]).unwrap();
    assert_eq!(
        masked_mean(&losses, &nothing)
            .unwrap()
            .item::<f32>()
            .unwrap(),
        0.0
    );
    let short = Array::from_slice(&[true], &[1]).unwrap();
    let error = masked_mean(&losses, &short).unwrap_err().to_string();
    assert!(error.contains("[2]") && error.contains("[1]"), "{error}");
}

#[test]
fn squares_are_averaged() {
    let a = Array::from_slice(&[1.0f32, 2.0, 4.0], &[3]).unwrap();
    let b = Array::from_slice(&[1.0f32, 0.0, 1.0], &[3]).unwrap();
    let found = mse(&a, &b).unwrap().item::<f32>().unwrap();
    assert!((found - 13.0 / 3.0).abs() < 1e-6);
    let grads = grad_with(|args| Ok(vec![mse(&args[0], &args[1])?]), &[a, b], &[0]).unwrap();
    let found = grads[0].to_vec::<f32>().unwrap();
    for (found, expected) in found.iter().zip([0.0, 4.0 / 3.0, 2.0]) {
        assert!((found - expected).abs() < 1e-6);
    }
}
