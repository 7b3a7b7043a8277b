//! Random inputs, and results that are nearly equal.

use mlx_core::{Array, DType, random};

/// Normal numbers in F32.
pub fn input(shape: &[i32], seed: u64) -> Array {
    random::normal(&random::Key::new(seed).unwrap(), shape, DType::F32).unwrap()
}

/// Fails unless the results equal the expected ones within 1e-4.
pub fn close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() < 1e-4 * (1.0 + expected.abs()),
            "{index}: {found}, expected {expected}"
        );
    }
}
