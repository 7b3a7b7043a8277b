//! Products of experts: one by one they are those of their matrices. Of many at a time, the result of each is the same whichever thread computes it and whatever the layout of x.

use mlx_core::ops::quantize::{QuantMode, Scheme, quantize};
use mlx_core::transforms::grad;
use mlx_core::{Array, DType, Result, fast};

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
        let parts = quantize(&w, scheme)?;
        let one = normal(22, &[tokens, 1, 1, k], dtype)?;
        let turned = one.squeeze(1)?.swap_axes(0, 2)?.contiguous()?;
        let turned = turned.swap_axes(0, 2)?.expand_dims(1)?;
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
fn experts_are_products_one_by_one() -> Result<()> {
    let scheme = Scheme::default_of(QuantMode::Affine);
    for dtype in FLOATS {
        let w = normal(11, &[5, 24, 128], dtype)?;
        let parts = quantize(&w, scheme)?;
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
        let found = grad(sum, &[x], &[0])?;
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
