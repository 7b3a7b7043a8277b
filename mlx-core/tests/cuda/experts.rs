//! Products of experts: against those of single matrices, to the bit.

use mlx_core::fast::{self, Gate, Route, RouteGroups, plainly};
use mlx_core::ops::quantize::{QuantMode, Scheme, dequantize_with, quantize_with};
use mlx_core::{Array, DType, Result};

use super::{HALVES, Matrices, close, matrix_of, noise, on_gpu, same, schemes};

/// The experts of some rows: many have the first, some none.
fn indices(rows: i32, experts: i32) -> Vec<i32> {
    let of = |i: i32| match i % 3 {
        0 => 0,
        _ => i * 37 % (experts - 1).max(1),
    };
    (0..rows).map(of).collect()
}

/// Compares the products of x `[tokens, 1 or chosen, 1, k]` and the matrices of chosen experts with
/// each row's product by `linear`.
fn compare(
    what: &str,
    stacks: [&Matrices; 2],
    tokens: i32,
    chosen: i32,
    own_rows: bool,
) -> Result<()> {
    let [a, b] = stacks;
    let [experts, n, k] = a.shape;
    let places = indices(tokens * chosen, experts);
    let which = Array::from_slice(&places, &[tokens, chosen])?;
    let width = if own_rows { chosen } else { 1 };
    let x = noise(1, &[tokens, width, 1, k], a.dtype)?;
    let found = a.chosen(&x, &which)?;
    let gated = fast::gated_experts(Gate::Silu, &x, &a.matrix(), &b.matrix(), &which)?;
    assert_eq!(found.shape(), [tokens, chosen, 1, n], "{what}");
    let rows = x
        .broadcast_to(&[tokens, chosen, 1, k])?
        .reshape(&[tokens * chosen, k])?;
    for e in 0..experts {
        let own: Vec<i32> = (0..tokens * chosen)
            .filter(|&i| places[i as usize] == e)
            .collect();
        if own.is_empty() {
            continue;
        }
        let own = Array::from_slice(&own, &[own.len() as i32])?;
        let some = rows.take(&own, 0)?;
        let (one, other) = (a.one(e)?, b.one(e)?);
        let of = |y: &Array| y.reshape(&[tokens * chosen, n])?.take(&own, 0);
        // More rows are computed by cuBLAS by default, which adds in another order.
        let is_exact = some.shape()[0] <= 128;
        let [one, other] = [matrix_of(&one), matrix_of(&other)];
        let wanted = fast::linear_many(&some, &[one, other])?;
        let both = fast::gated_linear(Gate::Silu, &some, &one, &other)?;
        let what = format!("{what} {tokens} x {chosen}, expert {e}");
        if is_exact {
            same(&what, &of(&found)?, &wanted[0])?;
            same(&format!("{what}, gate"), &of(&gated)?, &both)?;
        } else {
            close(&what, &of(&found)?, &wanted[0], 0.03)?;
        }
    }
    Ok(())
}

#[test]
fn experts_of_every_coding_are_products_of_their_rows() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, _) in HALVES {
        for scheme in schemes().into_iter().map(Some).chain([None]) {
            let (experts, n, k) = (9, 40, 384);
            let (a, b) = (
                Matrices::new(2, [experts, n, k], dtype, scheme)?,
                Matrices::new(3, [experts, n, k], dtype, scheme)?,
            );
            let what = format!("{dtype} {scheme:?}");
            for (tokens, chosen) in [(1, 1), (1, 4), (7, 2), (16, 4), (33, 2), (200, 3)] {
                compare(&what, [&a, &b], tokens, chosen, false)?;
            }
            compare(&what, [&a, &b], 7, 3, true)?;
        }
    }
    Ok(())
}

#[test]
fn a_row_does_not_see_the_rows_that_share_its_expert() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let scheme = Scheme {
        mode: QuantMode::Affine,
        bits: 4,
        group_size: 64,
    };
    let (experts, n, k, chosen) = (32, 768, 2048, 8);
    for scheme in [Some(scheme), None] {
        let a = Matrices::new(2, [experts, n, k], DType::BF16, scheme)?;
        let all = 300;
        let places = indices(all * chosen, experts);
        let which = Array::from_slice(&places, &[all, chosen])?;
        let x = noise(1, &[all, 1, 1, k], DType::BF16)?;
        let whole = a.chosen(&x, &which)?;
        for count in [1, 2, 8, 9, 64, 100] {
            let some = |y: &Array| y.slice_axis(0, 5, 5 + count);
            let few = a.chosen(&some(&x)?, &some(&which)?)?;
            same(
                &format!("{scheme:?} {count} of {all}"),
                &few,
                &some(&whole)?,
            )?;
        }
    }
    Ok(())
}

#[test]
fn strided_rows_and_none() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let a = Matrices::new(2, [5, 24, 128], DType::F16, None)?;
    // Rows whose elements are not contiguous, and every second row.
    let x = noise(1, &[128, 6], DType::F16)?.swapaxes(0, 1)?;
    let turned = x.reshape(&[6, 128])?.expand_dims(1)?;
    let dense = turned.contiguous()?;
    let which = Array::from_slice(&[4u32, 0, 1, 4, 2, 0], &[6])?;
    same(
        "turned",
        &a.chosen(&turned, &which)?,
        &a.chosen(&dense, &which)?,
    )?;
    let wide = noise(3, &[6, 2, 128], DType::F16)?;
    let every = wide.slice_axis(1, 0, 1)?;
    same(
        "every second",
        &a.chosen(&every, &which)?,
        &a.chosen(&every.contiguous()?, &which)?,
    )?;
    // No row at all.
    let none = Array::from_slice::<u32>(&[], &[0])?;
    assert_eq!(
        a.chosen(&dense.slice_axis(0, 0, 0)?, &none)?.shape(),
        [0, 1, 24]
    );
    Ok(())
}

#[test]
fn experts_are_close_to_the_plain_form() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        let w = noise(2, &[6, 48, 256], dtype)?;
        let scheme = Scheme::default_of(QuantMode::Affine);
        let parts = quantize_with(&w, scheme)?;
        let wide = dequantize_with(
            &parts.packed,
            &parts.scales,
            parts.biases.as_ref(),
            scheme,
            Some(dtype),
        )?;
        let which = Array::from_slice(&indices(80, 6), &[40, 2])?;
        let x = noise(1, &[40, 1, 1, 256], dtype)?;
        let found = fast::quantized_experts_linear(
            &x,
            &parts.packed,
            &parts.scales,
            parts.biases.as_ref(),
            &which,
            scheme,
        )?;
        let f32 = |a: &Array| a.astype(DType::F32);
        let wanted = plainly(|| fast::experts_linear(&f32(&x)?, &f32(&wide)?, &which))?;
        close(&format!("{dtype}"), &found, &wanted, tolerance)?;
    }
    Ok(())
}

#[test]
fn routers_choose_the_best_experts() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let route = |top_k, sigmoid, groups| Route {
        top_k,
        sigmoid,
        norm: true,
        added_to_sum: 0.0,
        least_sum: 0.0,
        scale: 2.5,
        groups,
    };
    let groups = |n, top, two_best| Some(RouteGroups { n, top, two_best });
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (tokens, experts, how) in [
            (1, 128, route(8, false, None)),
            (5, 60, route(4, false, None)),
            (65, 256, route(8, true, groups(8, 4, true))),
            (3, 64, route(6, false, groups(8, 3, false))),
            (2, 8, route(2, true, None)),
            (
                9,
                32,
                Route {
                    added_to_sum: 0.75,
                    ..route(4, true, None)
                },
            ),
            (
                9,
                32,
                Route {
                    added_to_sum: 0.75,
                    ..route(4, false, None)
                },
            ),
        ] {
            let scores = noise(1, &[tokens, experts], dtype)?;
            let correction = noise(2, &[experts], DType::F32)?.multiply(0.1f32)?;
            for correction in [None, Some(&correction)] {
                let what = format!("{dtype} {tokens} x {experts}, {how:?}");
                let (chosen, weights) = fast::route(&scores, correction, &how)?;
                let (wanted, wanted_weights) = {
                    let (chosen, weights) = plainly(|| fast::route(&scores, correction, &how))?;
                    // The plain form returns the experts in any order.
                    let order = chosen.argsort(-1)?;
                    (
                        chosen.take_along_axis(&order, -1)?,
                        weights.take_along_axis(&order, -1)?,
                    )
                };
                let order = chosen.argsort(-1)?;
                let found = chosen.take_along_axis(&order, -1)?;
                // Scores of 16 bits may be equal, and then either expert may be chosen.
                let count = found
                    .to_vec::<u32>()?
                    .iter()
                    .zip(wanted.to_vec::<u32>()?)
                    .filter(|&(&a, b)| a != b)
                    .count();
                if dtype == DType::F32 {
                    assert_eq!(count, 0, "{what}");
                    let weights = weights.take_along_axis(&order, -1)?;
                    close(&what, &weights, &wanted_weights, 1e-4)?;
                }
                assert!(count * 20 <= found.size(), "{what}: {count} differ");
                // A token alone.
                let last = |a: &Array| a.slice_axis(0, tokens - 1, tokens);
                let (alone, own) = fast::route(&last(&scores)?, correction, &how)?;
                assert_eq!(alone.to_vec::<u32>()?, last(&chosen)?.to_vec::<u32>()?);
                same(&what, &own, &last(&weights)?)?;
            }
        }
    }
    Ok(())
}

#[test]
fn outputs_of_experts_are_summed() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        for (tokens, count, n) in [(1, 8, 2048), (7, 3, 33), (64, 2, 100)] {
            let y = noise(1, &[tokens, count, n], dtype)?;
            let weights = noise(2, &[tokens, count], DType::F32)?;
            let found = fast::weighted_sum(&y, &weights)?;
            let wanted = plainly(|| fast::weighted_sum(&y.astype(DType::F32)?, &weights))?;
            close(&format!("{dtype} {tokens}"), &found, &wanted, tolerance)?;
            // Outputs whose elements are not contiguous.
            let turned = y.swapaxes(0, 1)?.contiguous()?.swapaxes(0, 1)?;
            same("turned", &fast::weighted_sum(&turned, &weights)?, &found)?;
        }
    }
    Ok(())
}
