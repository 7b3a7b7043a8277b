//! Products of experts: one by one they are those of their matrices. Of many at a time, the result of each is the same
//! whichever thread computes it and whatever the layout of x.

use mlx_core::fast::{self, Gate, Matrix, Route, RouteGroups};
use mlx_core::ops::quantize::{QuantMode, Scheme, quantize_with};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, Result};

use super::{FLOATS, floats, kernels_are_off, normal};

/// More than four for each of this many threads, so that each thread gets whole experts.
const EXPERTS: i32 = 70;

#[test]
fn many_experts_are_products_of_their_rows() -> Result<()> {
    let scheme = Scheme::default_of(QuantMode::Affine);
    let (tokens, chosen, n, k) = (60, 5, 40, 128);
    // Expert 0 has many rows, the last has none.
    let expert_of = |i: i32| match i % 3 {
        0 => 0,
        _ => i * 37 % (EXPERTS - 1),
    };
    let places: Vec<i32> = (0..tokens * chosen).map(expert_of).collect();
    let indices = Array::from_slice(&places, &[tokens, chosen])?;
    for dtype in FLOATS {
        let w = normal(21, &[EXPERTS, n, k], dtype)?;
        let parts = quantize_with(&w, scheme)?;
        let one = normal(22, &[tokens, 1, 1, k], dtype)?;
        let turned = one.squeeze(1)?.swapaxes(0, 2)?.contiguous()?;
        let turned = turned.swapaxes(0, 2)?.expand_dims(1)?;
        let dense = fast::experts_linear(&one, &w, &indices)?;
        let quantized = |x: &Array| {
            let (scales, biases) = (&parts.scales, parts.biases.as_ref());
            fast::quantized_experts_linear(x, &parts.packed, scales, biases, &indices, scheme)
        };
        let packed = quantized(&one)?;
        assert_eq!(floats(&packed), floats(&quantized(&turned)?), "{dtype}");

        let rows = one.broadcast_to(&[tokens, chosen, 1, k])?;
        let rows = rows.reshape(&[-1, k])?;
        for e in 0..EXPERTS {
            let own: Vec<i32> = (0..tokens * chosen)
                .filter(|&i| places[i as usize] == e)
                .collect();
            if own.is_empty() {
                continue;
            }
            let own = Array::from_slice(&own, &[own.len() as i32])?;
            let x = rows.take(&own, 0)?;
            let of = |a: &Array| a.slice_axis(0, e, e + 1)?.squeeze(0);
            let biases = parts.biases.as_ref().map(of).transpose()?;
            let (packed_of, scales) = (of(&parts.packed)?, of(&parts.scales)?);
            let expected = [
                fast::linear(&x, &of(&w)?)?,
                fast::quantized_linear(&x, &packed_of, &scales, biases.as_ref(), scheme)?,
            ];
            for (found, expected) in [&dense, &packed].into_iter().zip(&expected) {
                let found = found.reshape(&[-1, n])?.take(&own, 0)?;
                for (a, b) in floats(&found).iter().zip(floats(expected)) {
                    // The same kernel on the same rows. MLX's own operations sum in another order.
                    let tolerance = if fast::form(fast::Op::Attention)? == fast::Form::Cpu {
                        0.0
                    } else {
                        0.05
                    };
                    assert!(
                        (a - b).abs() <= tolerance * b.abs().max(1.0),
                        "{dtype}, expert {e}: {a} for {b}"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_gate_joins_products_of_experts() -> Result<()> {
    let scheme = Scheme::default_of(QuantMode::Affine);
    let indices = Array::from_slice(&[4u32, 0, 1, 4, 2, 0], &[3, 2])?;
    for dtype in FLOATS {
        let (x, a, b) = (
            normal(12, &[3, 1, 1, 128], dtype)?,
            normal(13, &[5, 24, 128], dtype)?,
            normal(14, &[5, 24, 128], dtype)?,
        );
        let product = |w: &Array| fast::experts_linear(&x, w, &indices);
        for kind in [Gate::Silu, Gate::GeluTanh] {
            let (gate, up) = (Matrix::Dense(&a), Matrix::Dense(&b));
            let found = fast::gated_experts(kind, &x, &gate, &up, &indices)?;
            let apart = fast::gated(kind, &product(&a)?, &product(&b)?)?;
            assert_eq!(floats(&found), floats(&apart), "{dtype} {kind:?}");
        }
        let parts = quantize_with(&a, scheme)?;
        let packed = Matrix::Quantized {
            packed: &parts.packed,
            scales: &parts.scales,
            biases: parts.biases.as_ref(),
            scheme,
        };
        let found = fast::gated_experts(Gate::Silu, &x, &packed, &packed, &indices)?;
        let (scales, biases) = (&parts.scales, parts.biases.as_ref());
        let y =
            fast::quantized_experts_linear(&x, &parts.packed, scales, biases, &indices, scheme)?;
        assert_eq!(floats(&found), floats(&fast::gated(Gate::Silu, &y, &y)?));
    }
    Ok(())
}

#[test]
fn routers_choose_the_best_experts_of_the_best_groups() -> Result<()> {
    let scores = Array::from_slice(&[1.0f32, 4.0, 2.0, 3.0, 0.0, 5.0, -1.0, 2.5], &[1, 8])?;
    let how = Route {
        top_k: 2,
        sigmoid: true,
        norm: true,
        added_to_sum: 0.0,
        least_sum: 0.0,
        scale: 2.0,
        groups: None,
    };
    let choose = |how: &Route, correction: Option<&Array>| -> Result<Vec<(u32, f32)>> {
        let (chosen, weights) = fast::route(&scores, correction, how)?;
        let (chosen, weights) = (chosen.to_vec::<u32>()?, weights.to_vec::<f32>()?);
        let mut all: Vec<_> = chosen.into_iter().zip(weights).collect();
        all.sort_by_key(|&(expert, _)| expert);
        Ok(all)
    };
    let check = |found: &[(u32, f32)], wanted: [u32; 2]| {
        let numbers: Vec<u32> = found.iter().map(|&(expert, _)| expert).collect();
        assert_eq!(numbers, wanted);
        assert!((found[0].1 + found[1].1 - 2.0).abs() < 1e-5, "{found:?}");
    };
    check(&choose(&how, None)?, [1, 5]);
    // The correction changes the choice and no weight.
    let correction = Array::from_slice(&[0.0f32, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0], &[8])?;
    let corrected = choose(&how, Some(&correction))?;
    check(&corrected, [2, 7]);
    let (a, b) = (1.0 / (1.0 + (-2.0f32).exp()), 1.0 / (1.0 + (-2.5f32).exp()));
    assert!((corrected[0].1 - 2.0 * a / (a + b)).abs() < 1e-5);
    // A number that is added to the sum of the two.
    let (a, b) = (1.0 / (1.0 + (-4.0f32).exp()), 1.0 / (1.0 + (-5.0f32).exp()));
    let added = choose(
        &Route {
            added_to_sum: 0.5,
            ..how
        },
        None,
    )?;
    assert_eq!([added[0].0, added[1].0], [1, 5]);
    for ((_, found), of) in added.into_iter().zip([a, b]) {
        assert!((found - 2.0 * of / (a + b + 0.5)).abs() < 1e-5, "{found}");
    }
    // Of four groups of two, the one with the best expert; and of two groups of four, the one with the best two.
    let of = |n, two_best| Route {
        groups: Some(RouteGroups {
            n,
            top: 1,
            two_best,
        }),
        ..how
    };
    check(&choose(&of(4, false), None)?, [4, 5]);
    check(&choose(&of(2, true), None)?, [1, 3]);
    assert!(fast::route(&scores, None, &of(3, false)).is_err());
    assert!(fast::route(&scores, None, &Route { top_k: 9, ..how }).is_err());
    let y = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 2, 2])?;
    let weights = Array::from_slice(&[0.5f32, 2.0], &[1, 2])?;
    assert_eq!(floats(&fast::weighted_sum(&y, &weights)?), [6.5, 9.0]);
    Ok(())
}

#[test]
fn experts_are_products_one_by_one() -> Result<()> {
    let scheme = Scheme::default_of(QuantMode::Affine);
    for dtype in FLOATS {
        let w = normal(11, &[5, 24, 128], dtype)?;
        let parts = quantize_with(&w, scheme)?;
        let biases = parts.biases.as_ref();
        // One row for several experts, and one row for each expert; expert 3 gets no row.
        let indices = Array::from_slice(&[4u32, 0, 1, 4, 2, 0], &[3, 2])?;
        for x_shape in [[3, 1, 1, 128], [3, 2, 1, 128]] {
            let x = normal(12, &x_shape, dtype)?;
            let dense = fast::experts_linear(&x, &w, &indices)?;
            let packed = &parts.packed;
            let quantized = fast::quantized_experts_linear(
                &x,
                packed,
                &parts.scales,
                biases,
                &indices,
                scheme,
            )?;
            assert_eq!(dense.shape(), [3, 2, 1, 24]);
            let rows = x.broadcast_to(&[3, 2, 1, 128])?.reshape(&[6, 128])?;
            for (i, &e) in [4, 0, 1, 4, 2, 0].iter().enumerate() {
                let row = rows.slice_axis(0, i as i32, i as i32 + 1)?;
                let of = |a: &Array| a.slice_axis(0, e, e + 1)?.squeeze(0);
                let expected = fast::linear(&row, &of(&w)?)?;
                let found = dense
                    .reshape(&[6, 24])?
                    .slice_axis(0, i as i32, i as i32 + 1)?;
                let (a, b) = (floats(&found), floats(&expected));
                assert!(
                    a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-4),
                    "{dtype}, row {i}"
                );
                let of_e = |a: Option<&Array>| a.map(of).transpose();
                let expected = fast::quantized_linear(
                    &row,
                    &of(packed)?,
                    &of(&parts.scales)?,
                    of_e(biases)?.as_ref(),
                    scheme,
                )?;
                let found = quantized
                    .reshape(&[6, 24])?
                    .slice_axis(0, i as i32, i as i32 + 1)?;
                assert_eq!(floats(&found), floats(&expected), "{dtype}, row {i}");
            }
        }
        // The gradient of x is computed by MLX's own operations.
        let x = normal(12, &[3, 1, 1, 128], dtype)?;
        let sum = |a: &[Array]| {
            Ok(vec![
                fast::experts_linear(&a[0], &w, &indices)?.sum(.., false)?,
            ])
        };
        let found = grad_with(sum, &[x], &[0])?;
        let of = w.sum(1, false)?.take(&indices, 0)?.sum(1, false)?;
        for (a, b) in floats(&found[0]).iter().zip(floats(&of)) {
            assert!(
                (a - b).abs() <= 0.05 * b.abs().max(4.0),
                "{dtype}: {a} for {b}"
            );
        }
    }
    let (x, w) = (
        normal(1, &[1, 1, 8], DType::F32)?,
        normal(2, &[2, 4, 8], DType::F32)?,
    );
    if !kernels_are_off() {
        let wrong = fast::experts_linear(&x, &w, &Array::from_slice(&[2u32], &[1])?)?;
        let error = wrong.to_vec::<f32>().unwrap_err().to_string();
        assert!(
            error.contains("an expert's index must be below 2, given 2"),
            "{error}"
        );
    }
    Ok(())
}
