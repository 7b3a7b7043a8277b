//! Products of one array, joined by a gate: one node, which must not show but in memory (`gated_memory.rs`).

use mlx_core::ops::quantize::Scheme;
use mlx_core::transforms::grad;
use mlx_core::{Array, DType, Result, eval, fast};

use super::cases::{normal, product, some_schemes};
use super::{floats, kernels_are_off};

type Gate = fn(&Array, &Array) -> Result<Array>;

/// The products of `x` with two matrices `[n, k]`, not computed yet.
fn products(x: &Array, n: i32, scheme: Option<Scheme>) -> Result<[Array; 2]> {
    Ok([product(x, 1, n, scheme)?, product(x, 2, n, scheme)?])
}

#[test]
fn gated_products_are_those_of_three_nodes() -> Result<()> {
    if kernels_are_off() {
        return Ok(());
    }
    let schemes = some_schemes()?;
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for (scheme, gate) in schemes
            .into_iter()
            .zip([fast::swiglu as Gate, fast::geglu].into_iter().cycle())
        {
            for m in [1, 3, 6, 40, 130, 300, 1200] {
                let x = normal(3, &[m, 576], dtype)?.multiply(0.1)?;
                let [a, b] = products(&x, 230, scheme)?;
                let together = gate(&a, &b)?;
                let [a, b] = products(&x, 230, scheme)?;
                eval([&a, &b])?;
                let apart = gate(&a, &b)?;
                assert_eq!(together.shape(), [m, 230]);
                assert!(
                    floats(&together) == floats(&apart),
                    "{dtype}, {scheme:?}, {m} rows"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn gated_products_have_derivatives() -> Result<()> {
    let x = normal(3, &[5, 64], DType::BF16)?.multiply(0.1)?;
    let by = |gate: Gate| {
        let gate_of = move |x: &[Array]| {
            let [a, b] = products(&x[0], 40, None)?;
            Ok(vec![gate(&a, &b)?.astype(DType::F32)?.sum(.., false)?])
        };
        grad(gate_of, std::slice::from_ref(&x), &[0])
    };
    let found = by(fast::swiglu)?;
    // In BF16 each step would be rounded, which adds up to more than what is compared.
    let expected = by(|a, b| {
        let (a, b) = (a.astype(DType::F32)?, b.astype(DType::F32)?);
        a.multiply(a.sigmoid()?)?.multiply(b)
    })?;
    // MLX's own operations round each step.
    let close = if kernels_are_off() { 0.04 } else { 0.02 };
    for (a, b) in floats(&found[0]).iter().zip(floats(&expected[0])) {
        assert!((a - b).abs() <= close * b.abs().max(1.0), "{a} for {b}");
    }
    Ok(())
}
