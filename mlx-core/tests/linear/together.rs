//! Products of one array as one node, which must not show.

use mlx_core::ops::quantize::{QuantMode, Scheme};
use mlx_core::transforms::grad;
use mlx_core::{Array, DType, Result, eval, fast};

use super::cases::{self, normal, some_schemes};
use super::{floats, kernels_are_off};

/// Rows of the matrices: with ends of all kinds, and one that no thread need share.
const ROWS: [i32; 3] = [230, 3, 128];

/// A product as of the cases, of a matrix that its rows tell.
fn product(x: &Array, n: i32, scheme: Option<Scheme>) -> Result<Array> {
    cases::product(x, n as u64, n, scheme)
}

#[test]
fn products_together_are_those_apart() -> Result<()> {
    if kernels_are_off() {
        return Ok(());
    }
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for scheme in some_schemes()? {
            for m in [1, 3, 6, 40, 130, 300, 1200] {
                let x = normal(3, &[m, 576], dtype)?;
                let of = |n| product(&x, n, scheme);
                let all = || Ok::<_, mlx_core::Error>([of(ROWS[0])?, of(ROWS[1])?, of(ROWS[2])?]);
                let together = fast::together(&all()?)?;
                // What is computed already is left as it is.
                let apart = all()?;
                eval(&apart)?;
                let apart = fast::together(&apart)?;
                for ((a, b), n) in together.iter().zip(&apart).zip(ROWS) {
                    assert_eq!((a.shape(), a.dtype()), (&[m, n][..], dtype));
                    assert!(
                        floats(a) == floats(b),
                        "{dtype}, {scheme:?}, {m} rows of x, {n} of w"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn what_does_not_go_together_stays_apart() -> Result<()> {
    let (x, other) = (
        normal(3, &[6, 128], DType::BF16)?,
        normal(4, &[6, 128], DType::BF16)?,
    );
    let scheme = |bits| Scheme::new(QuantMode::Affine, bits, 64).map(Some);
    let pairs = || {
        Ok::<_, mlx_core::Error>([
            [product(&x, 20, None)?, product(&other, 30, None)?],
            [product(&x, 20, None)?, product(&x, 30, scheme(4)?)?],
            [product(&x, 20, scheme(4)?)?, product(&x, 30, scheme(8)?)?],
            [product(&x, 20, None)?, x.add(1.0f32)?],
        ])
    };
    for (pair, expected) in pairs()?.into_iter().zip(pairs()?) {
        for (a, b) in fast::together(&pair)?.iter().zip(&expected) {
            assert!(floats(a) == floats(b));
        }
    }
    Ok(())
}

#[test]
fn products_together_have_derivatives() -> Result<()> {
    let x = normal(3, &[5, 64], DType::BF16)?;
    let w = normal(4, &[40, 64], DType::BF16)?;
    let by = |both: fn(&[Array]) -> Result<Vec<Array>>| {
        let sum = move |a: &[Array]| {
            let both = both(&[fast::linear(&a[0], &a[1])?, product(&a[0], 24, None)?])?;
            let y = both[0].astype(DType::F32)?.square()?.sum(.., false)?;
            Ok(vec![y.add(&both[1].astype(DType::F32)?.sum(.., false)?)?])
        };
        grad(sum, &[x.clone(), w.clone()], &[0, 1])
    };
    for (found, expected) in by(fast::together)?
        .iter()
        .zip(by(|apart| Ok(apart.to_vec()))?)
    {
        assert_eq!(found.shape(), expected.shape());
        assert!(floats(found) == floats(&expected));
    }
    Ok(())
}
