//! Many experts at a time: the result of each is the same whichever thread computes it and whatever the layout of x.

use mlx_core::ops::quantize::{QuantMode, Scheme, quantize};
use mlx_core::{Array, Result, fast};

use super::{FLOATS, floats, normal};

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
