//! Attention for many queries has a kernel of its own, and rows with few queries have another. Both give the same bits.

use mlx_core::fast::{self, Attention, KeySlots, Mask, Positions};
use mlx_core::{Array, Result};

use super::{HALVES, attention, noise, on_gpu, same};

#[test]
fn prompts_have_the_bits_of_single_rows_and_tokens() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    // Rows, so that a block has 8 warps or 4; a row alone is too small for the kernel of prompts.
    for (rows, d, heads, kv_heads, tokens) in [
        (30, 64, 4, 2, 150),
        (12, 128, 16, 8, 40),
        (140, 256, 4, 1, 24),
        (34, 256, 4, 1, 70),
        (12, 80, 12, 12, 90),
    ] {
        for (dtype, tolerance) in HALVES {
            let slots = 2 * tokens + 60;
            let q = noise(1, &[rows, heads, tokens, d], dtype)?;
            let k = noise(2, &[rows, kv_heads, slots, d], dtype)?;
            let v = noise(3, &[rows, kv_heads, slots, d], dtype)?;
            let sinks = noise(4, &[heads], dtype)?;
            let offsets: Vec<i32> = (0..rows)
                .map(|row| row * (slots - tokens) / (rows - 1))
                .collect();
            let at = Array::from_slice(&offsets, &[rows])?;
            let mask_of = |number: i32, at: &Array| {
                let positions =
                    |window, layout| Mask::Positions(Positions::new(at, window, layout));
                match number {
                    0 => positions(None, KeySlots::Straight),
                    1 => positions(Some(24), KeySlots::Straight),
                    2 => positions(Some(slots - tokens), KeySlots::Ring),
                    3 => positions(Some(slots - tokens), KeySlots::Latest),
                    4 => Mask::Causal,
                    _ => Mask::None,
                }
            };
            for number in 0..6 {
                for (soft_cap, sinks) in [(None, None), (Some(5.0), Some(&sinks))] {
                    let options = |at: &Array| Attention {
                        scale: (d as f32).powf(-0.5),
                        soft_cap,
                        mask: mask_of(number, at),
                        sinks,
                    };
                    let what = format!("{dtype} {rows} {d} {tokens}, mask {number}, {soft_cap:?}");
                    let found = attention(&what, [&q, &k, &v], &options(&at), tolerance)?;
                    for row in [0, rows / 2, rows - 1] {
                        let one = |a: &Array| a.slice_axis(0, row, row + 1);
                        let (q, k, v) = (one(&q)?, one(&k)?, one(&v)?);
                        let alone = fast::attention(&q, &k, &v, &options(&one(&at)?))?;
                        same(&format!("{what}: row {row}"), &alone, &one(&found)?)?;
                    }
                    if number > 1 {
                        continue;
                    }
                    for token in [0, 1, tokens / 2, tokens - 1] {
                        let of = |a: &Array| a.slice_axis(2, token, token + 1);
                        let alone = fast::attention(&of(&q)?, &k, &v, &options(&at.add(token)?))?;
                        same(&format!("{what}: token {token}"), &alone, &of(&found)?)?;
                    }
                }
            }
        }
    }
    Ok(())
}
