//! Convolutions and recurrences on every instruction set.

use mlx_core::fast::{self, GatedDelta, Scan, plainly};
use mlx_core::{Array, DType, Result};

use super::{TYPES, check, kernels_are_off, normal};

#[test]
fn recurrences() -> Result<()> {
    if kernels_are_off() {
        return Ok(());
    }
    let mut digest = 0xcbf2_9ce4_8422_2325;
    for dtype in TYPES {
        for (b, l, [k, h, d, v]) in [
            (1, 1, [2, 4, 128, 128]),
            (3, 5, [1, 3, 20, 13]),
            (2, 70, [2, 2, 32, 48]),
        ] {
            let width = 2 * k * d + h * v;
            let (x, taps) = (
                normal(1, &[b, l + 3, width], dtype)?,
                normal(2, &[4, width], dtype)?,
            );
            let [wide_x, wide_taps] = [&x, &taps].map(|x| x.astype(DType::F32));
            let qkv = fast::causal_conv(&x, &taps, None, true)?;
            let exact = plainly(|| fast::causal_conv(&wide_x?, &wide_taps?, None, true))?;
            let what = format!("{b} x {l}, {k} and {h} heads, {d} and {v} features, {dtype}");
            check(&qkv, &exact, 1.0, &mut digest, &what)?;
            let (a, beta) = (normal(3, &[b, l, h], dtype)?, normal(4, &[b, l, h], dtype)?);
            let channels = normal(8, &[b, l, h * d], dtype)?;
            let channels_bias = normal(9, &[h * d], DType::F32)?;
            let (rate, bias) = (
                normal(5, &[h], DType::F32)?.exp()?,
                normal(6, &[h], DType::F32)?,
            );
            let state = normal(7, &[b, h, v, d], DType::F32)?;
            let widths: Vec<i32> = (0..b).map(|row| l - row.min(l)).collect();
            let widths = Array::from_slice(&widths, &[b])?;
            let run = |qkv: &Array, [a, channels, b]: [&Array; 3]| -> Result<_> {
                let one = GatedDelta {
                    qkv,
                    a,
                    b,
                    rate: &rate,
                    bias: &bias,
                    state: &state,
                    widths: &widths,
                    key_heads: k,
                    most: 1.0,
                    bound: None,
                };
                let each = GatedDelta {
                    a: channels,
                    bias: &channels_bias,
                    most: 2.0,
                    bound: Some(-4.0),
                    ..one
                };
                // The keys and queries of this rule are not normalised.
                let x = qkv.multiply(0.25)?;
                let scan = Scan {
                    x: &x,
                    dt: a,
                    rate: &rate,
                    bias: &bias,
                    skip: &bias,
                    state: &state,
                    widths: &widths,
                    groups: k,
                    limits: (0.0, f32::INFINITY),
                };
                Ok([
                    fast::gated_delta(&one)?,
                    fast::gated_delta(&each)?,
                    fast::scan(&scan)?,
                ])
            };
            let found = run(&qkv, [&a, &channels, &beta])?;
            let [wide_qkv, wide_a, wide_channels, wide_beta] =
                [&qkv, &a, &channels, &beta].map(|x| x.astype(DType::F32).unwrap());
            let exact = plainly(|| run(&wide_qkv, [&wide_a, &wide_channels, &wide_beta]))?;
            for ((y, after), exact) in found.iter().zip(&exact) {
                check(y, &exact.0, 1.0, &mut digest, &what)?;
                let what = format!("state, {what}");
                check(after, &exact.1, 0.0, &mut digest, &what)?;
            }
        }
    }
    println!("digest {digest:016x}");
    Ok(())
}
