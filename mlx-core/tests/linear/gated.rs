//! A gate and the products that it joins are one node. Only the use of memory (`gated_memory.rs`) may differ from
//! separate operations.

use mlx_core::fast::{self, Gate, gated, gated_linear};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, Result};

use super::cases::{Weights, normal, some_schemes};
use super::{floats, kernels_are_off};

#[test]
fn gated_products_are_those_of_three_nodes() -> Result<()> {
    if kernels_are_off() {
        return Ok(());
    }
    let schemes = some_schemes()?;
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for (scheme, gate) in schemes
            .into_iter()
            .zip([Gate::Silu, Gate::GeluTanh].into_iter().cycle())
        {
            let one = normal(3, &[1, 576], dtype)?;
            let (a, b) = (
                Weights::new(&one, 1, 230, scheme)?,
                Weights::new(&one, 2, 230, scheme)?,
            );
            for m in [1, 3, 6, 40, 130, 300, 1200] {
                let x = normal(3, &[m, 576], dtype)?.multiply(0.1)?;
                let together = gated_linear(gate, &x, &a.matrix(), &b.matrix())?;
                let apart = gated(gate, &a.product(&x)?, &b.product(&x)?)?;
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
fn matrices_that_are_not_alike_are_multiplied_apart() -> Result<()> {
    let x = normal(3, &[6, 128], DType::BF16)?;
    let [dense, packed, ..] = some_schemes()?.map(|scheme| Weights::new(&x, 1, 40, scheme));
    let (a, b) = (dense?, packed?);
    let found = gated_linear(Gate::Silu, &x, &a.matrix(), &b.matrix())?;
    let expected = fast::swiglu(&a.product(&x)?, &b.product(&x)?)?;
    assert!(floats(&found) == floats(&expected));
    Ok(())
}

#[test]
fn gated_products_have_derivatives() -> Result<()> {
    let x = normal(3, &[5, 64], DType::BF16)?.multiply(0.1)?;
    let (a, b) = (
        Weights::new(&x, 1, 40, None)?,
        Weights::new(&x, 2, 40, None)?,
    );
    let by = |y: &dyn Fn(&Array) -> Result<Array>| {
        let sum = |x: &[Array]| Ok(vec![y(&x[0])?.astype(DType::F32)?.sum(.., false)?]);
        grad_with(sum, std::slice::from_ref(&x), &[0])
    };
    let found = by(&|x| gated_linear(Gate::Silu, x, &a.matrix(), &b.matrix()))?;
    // In BF16 each step would be rounded, and the sum of these errors is larger than the tolerance.
    let expected = by(&|x| {
        let (a, b) = (a.product(x)?, b.product(x)?);
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
