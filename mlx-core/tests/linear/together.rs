//! Products of one array by several matrices in one call: whether they are one node or several does not change the
//! numbers.

use mlx_core::fast::{self, linear_many};
use mlx_core::ops::quantize::{QuantMode, Scheme};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, Result, graph_size};

use super::cases::{Weights, normal, some_schemes};
use super::{floats, kernels_are_off};

/// Rows of the matrices: with remainders of all kinds, and one too small to be split among threads.
const ROWS: [i32; 3] = [230, 3, 128];

/// Matrices like those of the cases. Their rows are also their seeds.
fn weights(x: &Array, scheme: Option<Scheme>) -> Result<Vec<Weights>> {
    ROWS.iter()
        .map(|&n| Weights::new(x, n as u64, n, scheme))
        .collect()
}

#[test]
fn products_together_are_those_apart() -> Result<()> {
    if kernels_are_off() {
        return Ok(());
    }
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for scheme in some_schemes()? {
            let all = weights(&normal(3, &[1, 576], dtype)?, scheme)?;
            for m in [1, 3, 6, 40, 130, 300, 1200] {
                let x = normal(3, &[m, 576], dtype)?;
                let together = linear_many(&x, &[0, 1, 2].map(|i| all[i].matrix()))?;
                for ((y, w), n) in together.iter().zip(&all).zip(ROWS) {
                    assert_eq!((y.shape(), y.dtype()), (&[m, n][..], dtype));
                    assert!(
                        floats(y) == floats(&w.product(&x)?),
                        "{dtype}, {scheme:?}, {m} rows of x, {n} of w"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn products_that_are_written_alike_are_one_node() -> Result<()> {
    if kernels_are_off() {
        return Ok(());
    }
    let x = normal(3, &[6, 128], DType::BF16)?;
    let scheme = |bits| Scheme::new(64, bits, QuantMode::Affine).map(Some);
    let all = [None, scheme(4)?, scheme(8)?].map(|scheme| Weights::new(&x, 5, 20, scheme));
    let [dense, four, eight] = all;
    let (dense, four, eight) = (dense?, four?, eight?);
    // The counts include the weights, so the test uses differences.
    let nodes = |ws: &[&Weights]| {
        let matrices: Vec<_> = ws.iter().map(|w| w.matrix()).collect();
        let ys = linear_many(&x, &matrices)?;
        let before: usize = graph_size(&ys)?;
        Ok::<_, mlx_core::Error>(before)
    };
    let same = nodes(&[&four, &four])? - nodes(&[&four])?;
    let apart = nodes(&[&four, &eight])? - nodes(&[&eight])?;
    assert_eq!(same, 0, "two of four bits");
    assert!(apart > 1, "of four and eight bits: {apart}");
    assert_eq!(nodes(&[&dense, &dense])?, nodes(&[&dense])?);
    Ok(())
}

#[test]
fn what_does_not_go_together_stays_apart() -> Result<()> {
    let x = normal(3, &[6, 128], DType::BF16)?;
    let scheme = |bits| Scheme::new(64, bits, QuantMode::Affine).map(Some);
    let other = Weights::new(&x.astype(DType::F32)?, 4, 30, None)?;
    for (a, b) in [
        (None, scheme(4)?),
        (scheme(4)?, scheme(8)?),
        (scheme(8)?, None),
    ] {
        let (a, b) = (Weights::new(&x, 20, 20, a)?, Weights::new(&x, 30, 30, b)?);
        let together = linear_many(&x, &[a.matrix(), b.matrix()])?;
        assert!(floats(&together[0]) == floats(&a.product(&x)?));
        assert!(floats(&together[1]) == floats(&b.product(&x)?));
        // A matrix of another dtype than x.
        let mixed = linear_many(&x, &[a.matrix(), other.matrix()])?;
        assert!(floats(&mixed[1]) == floats(&other.product(&x)?));
    }
    assert!(linear_many(&x, &[])?.is_empty());
    Ok(())
}

#[test]
fn products_together_have_derivatives() -> Result<()> {
    let x = normal(3, &[5, 64], DType::BF16)?;
    let w = normal(4, &[40, 64], DType::BF16)?;
    let other = Weights::new(&x, 24, 24, None)?;
    let by = |is_together: bool| {
        let other = &other;
        let sum = move |a: &[Array]| {
            let both = match is_together {
                true => linear_many(&a[0], &[fast::Matrix::Dense(&a[1]), other.matrix()])?,
                false => vec![fast::linear(&a[0], &a[1])?, other.product(&a[0])?],
            };
            let y = both[0].astype(DType::F32)?.square()?.sum(.., false)?;
            Ok(vec![y.add(&both[1].astype(DType::F32)?.sum(.., false)?)?])
        };
        grad_with(sum, &[x.clone(), w.clone()], &[0, 1])
    };
    for (found, expected) in by(true)?.iter().zip(by(false)?) {
        assert_eq!(found.shape(), expected.shape());
        assert!(floats(found) == floats(&expected));
    }
    Ok(())
}
