//! Derivatives of the fused operations, each of which is one node, compared with those of plain operations.

use mlx_core::fast::{self, Mask, plainly};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, Result, random};

fn normal(seed: u64, shape: &[i32]) -> Result<Array> {
    random::normal(&random::Key::new(seed)?, shape, DType::F32)
}

fn assert_close(found: &Array, expected: &Array, what: &str) -> Result<()> {
    assert_within(2e-5, found, expected, what)
}

fn assert_within(step: f32, found: &Array, expected: &Array, what: &str) -> Result<()> {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    let (found, expected) = (found.to_vec::<f32>()?, expected.to_vec::<f32>()?);
    let size = expected.iter().fold(1.0f32, |size, x| size.max(x.abs()));
    for (found, expected) in found.iter().zip(&expected) {
        let off = (found - expected).abs();
        assert!(off <= step * size, "{what}: off by {off} of {size}");
    }
    Ok(())
}

type Op = Box<dyn Fn(&[Array]) -> Result<Array>>;

/// A fused operation, the same by plain operations, and arguments for both.
struct Case {
    name: &'static str,
    fused: Op,
    plain: Op,
    args: Vec<Array>,
}

fn case(
    name: &'static str,
    args: Vec<Array>,
    fused: impl Fn(&[Array]) -> Result<Array> + 'static,
    plain: impl Fn(&[Array]) -> Result<Array> + 'static,
) -> Case {
    Case {
        name,
        fused: Box::new(fused),
        plain: Box::new(plain),
        args,
    }
}

/// A row and its norm, gates and losses, with sizes that are multiples of a vector's length and sizes that are not.
fn small() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for size in [1, 16, 21, 70] {
        let x = normal(1, &[2, 4, 3, size])?;
        cases.push(case(
            "rms_norm",
            vec![x.clone(), normal(2, &[size])?],
            |a| fast::rms_norm(&a[0], Some(&a[1]), 1e-2),
            |a| plainly(|| fast::rms_norm(&a[0], Some(&a[1]), 1e-2)),
        ));
        cases.push(case(
            "swiglu",
            vec![x.multiply(3.0)?, normal(3, &[2, 4, 3, size])?],
            |a| fast::swiglu(&a[0], &a[1]),
            |a| plainly(|| fast::swiglu(&a[0], &a[1])),
        ));
        cases.push(case(
            "geglu",
            vec![x.multiply(3.0)?, normal(3, &[2, 4, 3, size])?],
            |a| fast::geglu(&a[0], &a[1]),
            |a| plainly(|| fast::geglu(&a[0], &a[1])),
        ));
        let targets: Vec<u32> = (0..24).map(|at| at * 5 % size as u32).collect();
        let targets = Array::from_slice(&targets, &[2, 4, 3])?;
        cases.push(case(
            "cross_entropy",
            vec![x.multiply(9.0)?, normal(4, &[2, 4, 3])?],
            {
                let targets = targets.clone();
                move |a| fast::cross_entropy(&a[0], &targets)?.multiply(&a[1])
            },
            move |a| plainly(|| fast::cross_entropy(&a[0], &targets))?.multiply(&a[1]),
        ));
    }
    Ok(cases)
}

fn first_derivatives(case: &Case) -> Result<()> {
    let all: Vec<usize> = (0..case.args.len()).collect();
    let sum = |op: &Op, x: &[Array]| {
        let y = op(x)?;
        Ok(vec![y.multiply(&normal(9, y.shape())?)?.sum(.., false)?])
    };
    let found = grad_with(|x| sum(&case.fused, x), &case.args, &all)?;
    let expected = grad_with(|x| sum(&case.plain, x), &case.args, &all)?;
    for (found, expected) in found.iter().zip(&expected) {
        assert_close(found, expected, case.name)?;
    }
    Ok(())
}

/// 16-bit arguments: their derivatives are computed in F32 and rounded once, and so are the cotangents.
#[test]
fn derivatives_of_16_bits() -> Result<()> {
    let attention = case(
        "attention",
        vec![
            normal(1, &[2, 4, 9, 32])?,
            normal(2, &[2, 2, 12, 32])?,
            normal(3, &[2, 2, 12, 32])?,
        ],
        |a| fast::scaled_dot_product_attention(&a[0], &a[1], &a[2], 0.3, Mask::Causal, None),
        |a| {
            plainly(|| {
                fast::scaled_dot_product_attention(&a[0], &a[1], &a[2], 0.3, Mask::Causal, None)
            })
        },
    );
    for case in small()?.into_iter().chain([attention]) {
        for (dtype, step) in [(DType::F16, 2e-3), (DType::BF16, 1.6e-2)] {
            let narrow = |x: &Array| x.astype(dtype);
            let args: Vec<Array> = case.args.iter().map(narrow).collect::<Result<_>>()?;
            let wide = |x: &Array| x.astype(DType::F32);
            let exact: Vec<Array> = args.iter().map(wide).collect::<Result<_>>()?;
            let all: Vec<usize> = (0..args.len()).collect();
            let sum = |op: &Op, x: &[Array]| {
                let y = op(x)?;
                Ok(vec![y.multiply(&normal(9, y.shape())?)?.sum(.., false)?])
            };
            let found = grad_with(|x| sum(&case.fused, x), &args, &all)?;
            let expected = grad_with(|x| sum(&case.plain, x), &exact, &all)?;
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.dtype(), dtype, "{}", case.name);
                assert_within(step, &wide(found)?, expected, case.name)?;
            }
        }
    }
    Ok(())
}

#[test]
fn derivatives_are_those_of_the_plain_operations() -> Result<()> {
    for case in small()? {
        first_derivatives(&case)?;
        let close = |found: Array, expected: Array| assert_close(&found, &expected, case.name);
        close((case.fused)(&case.args)?, (case.plain)(&case.args)?)?;
    }
    Ok(())
}

/// Derivatives of enough work to be split among threads and into several blocks, of masks, and of fewer queries than
/// keys.
#[test]
fn derivatives_of_large_and_masked_inputs() -> Result<()> {
    let seen: Vec<bool> = (0..2 * 140 * 150)
        .map(|at| at % 150 <= at / 150 % 140 + 10 && at % 3 != 1)
        .collect();
    let seen = Array::from_slice(&seen, &[2, 1, 140, 150])?;
    let added = normal(11, &[1, 8, 140, 150])?;
    let attention = |l: i32, s: i32, mask: Option<Array>| {
        let args = vec![
            normal(1, &[2, 8, l, 32]),
            normal(2, &[2, 2, s, 32]),
            normal(3, &[2, 2, s, 48]),
        ];
        let same = mask.clone();
        Ok::<_, mlx_core::Error>(case(
            "attention",
            args.into_iter().collect::<Result<_>>()?,
            move |a| {
                let mask = mask.clone().map_or(Mask::Causal, Mask::Array);
                fast::scaled_dot_product_attention(&a[0], &a[1], &a[2], 0.3, mask, None)
            },
            move |a| {
                let mask = same.clone().map_or(Mask::Causal, Mask::Array);
                plainly(|| fast::scaled_dot_product_attention(&a[0], &a[1], &a[2], 0.3, mask, None))
            },
        ))
    };
    let classes: Vec<u32> = (0..300).map(|at| at * 7 % 1000).collect();
    let classes = Array::from_slice(&classes, &[300])?;
    let same = classes.clone();
    let cases = [
        attention(140, 150, None)?,
        attention(140, 150, Some(seen))?,
        attention(140, 150, Some(added))?,
        attention(3, 520, None)?,
        case(
            "rms_norm",
            vec![normal(1, &[700, 33])?, normal(2, &[33])?],
            |a| fast::rms_norm(&a[0], Some(&a[1]), 1e-5),
            |a| plainly(|| fast::rms_norm(&a[0], Some(&a[1]), 1e-5)),
        ),
        case(
            "geglu",
            vec![normal(1, &[700, 33])?, normal(2, &[700, 33])?],
            |a| fast::geglu(&a[0], &a[1]),
            |a| plainly(|| fast::geglu(&a[0], &a[1])),
        ),
        case(
            "cross_entropy",
            vec![normal(1, &[300, 1000])?],
            move |a| fast::cross_entropy(&a[0], &classes),
            move |a| plainly(|| fast::cross_entropy(&a[0], &same)),
        ),
    ];
    for case in cases {
        first_derivatives(&case)?;
    }
    Ok(())
}

/// The second derivative is that of MLX's graph.
#[test]
fn second_derivatives_are_those_of_the_plain_operations() -> Result<()> {
    for case in small()? {
        let twice = |op: &Op| {
            let first = |x: &[Array]| {
                let squares = |x: &[Array]| Ok(vec![op(x)?.square()?.sum(.., false)?]);
                let slopes = grad_with(squares, x, &[0, 1])?;
                let weighted = slopes[0].multiply(&normal(9, slopes[0].shape())?)?;
                Ok(vec![
                    weighted.sum(.., false)?.add(slopes[1].sum(.., false)?)?,
                ])
            };
            grad_with(first, &case.args, &[0, 1])
        };
        let (found, expected) = (twice(&case.fused)?, twice(&case.plain)?);
        for (found, expected) in found.iter().zip(&expected) {
            assert_close(found, expected, case.name)?;
        }
    }
    Ok(())
}
