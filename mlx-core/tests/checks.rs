//! Values that are checked when they are evaluated: indices, and matrices before LAPACK gets them.

use mlx_core::linalg::{self, Half, MatrixNorm};
use mlx_core::ops::quantize::{QuantMode, Scheme, quantize_with};
use mlx_core::transforms::{Compiled, compile, grad_with, vmap_with};
use mlx_core::{Array, DType, ErrorKind, Result, arange, fast, full};

#[path = "shared/evaluated.rs"]
mod shared;

use shared::{evaluated, ints};

fn filled(shape: &[i32], value: f32) -> Array {
    evaluated(full(shape, value, DType::F32).unwrap())
}

#[test]
fn matrices_with_nan_are_refused_by_decompositions() -> Result<()> {
    for bad in [f32::NAN, f32::INFINITY] {
        let a = Array::from_slice(&[bad, 2.0, 2.0, 4.0], &[2, 2])?;
        type Case = (&'static str, fn(&Array) -> Result<Array>);
        let cases: [Case; 9] = [
            ("eig", |a| Ok(linalg::eig(a)?.0)),
            ("eigvals", linalg::eigvals),
            ("eigh", |a| Ok(linalg::eigh(a)?.1)),
            ("eigvalsh", |a| linalg::eigvalsh_with(a, Half::Upper)),
            ("svd", |a| Ok(linalg::svd(a)?.1)),
            ("singular_values", linalg::singular_values),
            ("pinv", linalg::pinv),
            ("norm", |a| linalg::norm_with(a, 2.0, [0, 1], false)),
            ("norm_matrix", |a| {
                linalg::norm_matrix(a, MatrixNorm::Nuclear, [0, 1], false)
            }),
        ];
        for (name, run) in cases {
            let result = run(&a)?;
            let error = mlx_core::eval([&result]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Eval);
            assert_eq!(
                error.to_string(),
                format!("{name}: the matrix holds NaN or an infinity")
            );
        }
    }
    Ok(())
}

/// Evaluates to an error about an index. No other part of the array depends on the failing part.
#[track_caller]
fn out_of_range(result: Result<Array>, index: &str) {
    let error = result
        .and_then(|array| mlx_core::eval([&array]))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("index {index} is outside")),
        "{error}"
    );
}

#[test]
fn indices_are_checked_when_they_are_evaluated() -> Result<()> {
    let x = evaluated(arange(0.0, 6.0, 1.0, DType::F32)?.reshape(&[3, 2])?);
    for dtype in [DType::I8, DType::I16, DType::I32, DType::I64] {
        assert_eq!(
            x.take(&ints(&[-1, 0], dtype), 0)?.to_vec::<f32>()?,
            [4.0, 5.0, 0.0, 1.0]
        );
        out_of_range(x.take(&ints(&[0, 3], dtype), 0), "3");
        out_of_range(x.take(&ints(&[-4], dtype), 0), "-4");
    }
    for dtype in [DType::U8, DType::U16, DType::U32, DType::U64] {
        assert_eq!(x.take(&ints(&[2], dtype), 0)?.to_vec::<f32>()?, [4.0, 5.0]);
        out_of_range(x.take(&ints(&[3], dtype), 0), "3");
    }
    let huge = Array::from_slice(&[u64::MAX], &[1])?;
    out_of_range(x.take(&huge, 0), "9223372036854775807");
    // Also for a view that is not dense.
    let transposed = evaluated(ints(&[0, 9, 1, 2], DType::I32).reshape(&[2, 2])?.t()?);
    out_of_range(x.take(&transposed, 0), "9");

    let (one, two) = (ints(&[1], DType::I32), ints(&[2], DType::I32));
    let at = |index: i32| ints(&[index, 0], DType::I32).reshape(&[1, 2]);
    let values = filled(&[1, 2], 1.0);
    assert_eq!(x.take_along_axis(&at(2)?, 0)?.to_vec::<f32>()?, [4.0, 1.0]);
    out_of_range(x.take_along_axis(&at(3)?, 0), "3");
    out_of_range(x.put_along_axis(&at(-4)?, &values, 0), "-4");
    out_of_range(x.scatter_add_axis(&at(3)?, &values, 0), "3");
    assert_eq!(
        x.gather(&[&one], &[0], &[2, 2])?.to_vec::<f32>()?,
        [2.0, 3.0, 4.0, 5.0]
    );
    out_of_range(x.gather(&[&two], &[0], &[2, 2]), "2");
    out_of_range(
        x.scatter(&[&ints(&[3], DType::I32)], &filled(&[1, 1, 2], 1.0), &[0]),
        "3",
    );
    out_of_range(x.scatter_max(&[&two], &filled(&[1, 2, 2], 1.0), &[0]), "2");

    assert_eq!(
        x.slice_dynamic(&one, &[0], &[2, 1])?.to_vec::<f32>()?,
        [2.0, 4.0]
    );
    out_of_range(x.slice_dynamic(&two, &[0], &[2, 1]), "2");
    out_of_range(
        x.slice_dynamic(&ints(&[-1], DType::I32), &[0], &[2, 1]),
        "-1",
    );
    out_of_range(
        x.slice_dynamic(&ints(&[1, 1], DType::I32), &[0, 1], &[2, 2]),
        "1",
    );
    let row = filled(&[1, 2], 0.0);
    assert_eq!(
        x.slice_update_dynamic(&row, &two, &[0])?.to_vec::<f32>()?[2..],
        [2.0, 3.0, 0.0, 0.0]
    );
    out_of_range(
        x.slice_update_dynamic(&row, &ints(&[3], DType::I32), &[0]),
        "3",
    );

    let m = filled(&[2, 3, 4], 1.0);
    let n = filled(&[2, 4, 5], 1.0);
    out_of_range(m.gather_mm(&n, None, Some(&two)), "2");
    out_of_range(m.gather_mm(&n, Some(&ints(&[-1], DType::I32)), None), "-1");
    let (a, b) = (filled(&[3, 4], 1.0), filled(&[4, 5], 1.0));
    out_of_range(
        a.segmented_mm(&b, &ints(&[0, 5], DType::I32).reshape(&[1, 2])?),
        "5",
    );
    let scheme = Scheme::new(32, 4, QuantMode::Affine)?;
    let w = quantize_with(&filled(&[2, 8, 32], 1.0), scheme)?;
    mlx_core::eval([&w.packed, &w.scales])?;
    mlx_core::eval(&w.biases)?;
    let rows = filled(&[1, 32], 1.0);
    let product = |indices| {
        mlx_core::gather_qmm_with(
            &rows,
            &w.packed,
            &w.scales,
            w.biases.as_ref(),
            None,
            Some(indices),
            true,
            scheme,
            false,
        )
    };
    assert_eq!(product(&one)?.to_vec::<f32>()?, [32.0; 8]);
    out_of_range(product(&two), "2");
    let logits = filled(&[1, 4], 0.0);
    out_of_range(fast::cross_entropy(&logits, &ints(&[4], DType::I32)), "4");
    out_of_range(fast::cross_entropy(&logits, &ints(&[-1], DType::I32)), "-1");
    // A failure does not break the calls after it.
    assert_eq!(x.take(&one, 0)?.to_vec::<f32>()?, [2.0, 3.0]);
    Ok(())
}

#[test]
fn checks_of_indices_follow_transforms() -> Result<()> {
    let x = evaluated(arange(0.0, 6.0, 1.0, DType::F32)?.reshape(&[3, 2])?);
    let rows = evaluated(ints(&[0, 2, 1, 1], DType::I32).reshape(&[2, 2])?);
    let slope = grad_with(
        |x| Ok(vec![x[0].take(&rows, 0)?.sum(.., false)?]),
        std::slice::from_ref(&x),
        &[0],
    )?;
    assert_eq!(slope[0].to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0, 1.0, 1.0]);
    let take = |x: &[Array]| Ok(vec![x[0].take(&x[1], 0)?]);
    // Row r of the indices with column r of x.
    let mapped = vmap_with(
        take,
        &[x.clone(), rows.clone()],
        &[Some(1), Some(0)],
        &[Some(0)],
    )?;
    assert_eq!(mapped[0].to_vec::<f32>()?, [0.0, 4.0, 3.0, 3.0]);
    let bad = evaluated(ints(&[0, 3, 1, 1], DType::I32).reshape(&[2, 2])?);
    for axes in [[Some(1), Some(0)], [None, Some(0)], [Some(1), None]] {
        out_of_range(
            vmap_with(take, &[x.clone(), bad.clone()], &axes, &[Some(0)]).map(|mut y| y.remove(0)),
            "3",
        );
    }
    // A graph compiled for all shapes uses the axis length of each call.
    compile::set_enabled(true);
    let any = Compiled::new(take, true);
    let two = ints(&[2], DType::I32);
    assert_eq!(
        any.call(&[x.clone(), two.clone()])?[0].to_vec::<f32>()?,
        [4.0, 5.0]
    );
    let shorter = evaluated(x.slice(&[0, 0], &[2, 2])?);
    let result = any.call(&[shorter, two]).map(|mut y| y.remove(0));
    out_of_range(result, "2");

    // Reductions over no elements in a graph compiled for all shapes.
    for (x, sum, most) in [
        (
            Array::from_slice(&[0f32, 1.0], &[1, 2])?,
            vec![0.0, 1.0],
            vec![0.0, 1.0],
        ),
        (
            Array::from_slice(&[0f32, 1.0, 2.0, 3.0], &[2, 2])?,
            vec![2.0, 4.0],
            vec![2.0, 3.0],
        ),
    ] {
        let both = Compiled::new(
            |x| {
                let (sum, most) = (x[0].sum(0, false)?, x[0].max(0, false)?);
                let all = x[0].all(0, false)?;
                let shape = [x[0].astype(DType::U8)?.sum(0, false)?, x[0].mean(0, true)?];
                Ok(vec![sum, most, all, shape[0].clone(), shape[1].clone()])
            },
            true,
        );
        for _ in 0..2 {
            let out = both.call(std::slice::from_ref(&x))?;
            assert_eq!(out[0].to_vec::<f32>()?, sum);
            assert_eq!(out[1].to_vec::<f32>()?, most);
            assert!(!out[2].to_vec::<bool>()?[0]);
            assert_eq!(out[3].astype(DType::F32)?.to_vec::<f32>()?, sum);
        }
    }
    compile::set_enabled(false);
    Ok(())
}

#[test]
fn an_array_that_failed_prints_its_error() -> Result<()> {
    let x = filled(&[2], 1.0).take(&ints(&[5], DType::I32), 0)?;
    let text = format!("{x}");
    assert!(
        text.contains("Array([1], F32): take: index 5 is outside an axis of 2"),
        "{text}"
    );
    let again = format!("{x}");
    assert!(again.contains("index 5 is outside"), "{again}");
    assert_eq!(format!("{x:?}"), "Array([1], F32)");
    Ok(())
}
