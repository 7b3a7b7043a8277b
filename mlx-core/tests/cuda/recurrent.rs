//! Causal convolutions and recurrences.

use mlx_core::fast::{self, GatedDelta, Scan, plainly};
use mlx_core::ops::concat;
use mlx_core::{Array, DType, Result};

use super::{HALVES, close, host, noise, on_cpu, on_gpu, same};

#[test]
fn convolutions() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        for (rows, tokens, channels, taps) in [(1, 1, 96, 4), (3, 5, 33, 4), (2, 130, 256, 3)] {
            let x = noise(1, &[rows, taps - 1 + tokens, channels], dtype)?;
            let (w, bias) = (
                noise(2, &[taps, channels], dtype)?,
                noise(3, &[channels], dtype)?,
            );
            for (bias, silu) in [(None, true), (Some(&bias), false), (Some(&bias), true)] {
                let found = fast::causal_conv(&x, &w, bias, silu)?;
                let wide = |a: &Array| a.astype(DType::F32);
                let wide_bias = bias.map(wide).transpose()?;
                let wanted = plainly(|| {
                    fast::causal_conv(&wide(&x)?, &wide(&w)?, wide_bias.as_ref(), silu)
                })?;
                let what = format!("{dtype} {rows} x {tokens} x {channels}, {taps} taps");
                close(&what, &found, &wanted, tolerance)?;
                // The last token alone.
                let last = x.slice_axis(1, tokens - 1, tokens - 1 + taps)?;
                let alone = fast::causal_conv(&last, &w, bias, silu)?;
                same(&what, &alone, &found.slice_axis(1, tokens - 1, tokens)?)?;
            }
        }
    }
    Ok(())
}

/// The inputs of all rules.
struct Inputs {
    x: Array,
    a: Array,
    channels: Array,
    b: Array,
    rate: Array,
    bias: Array,
    channels_bias: Array,
    state: Array,
    widths: Array,
    key_heads: i32,
}

impl Inputs {
    fn new(rows: i32, tokens: i32, [k, h, d, v]: [i32; 4], dtype: DType) -> Result<Self> {
        let of = |seed, shape: &[i32]| noise(seed, shape, dtype);
        let widths: Vec<i32> = (0..rows).map(|row| tokens - row.min(tokens)).collect();
        Ok(Self {
            // The keys and queries of the scan are not normalised.
            x: of(1, &[rows, tokens, 2 * k * d + h * v])?.multiply(0.25)?,
            a: of(2, &[rows, tokens, h])?,
            channels: of(3, &[rows, tokens, h * d])?,
            b: of(4, &[rows, tokens, h])?,
            rate: noise(5, &[h], DType::F32)?.exp()?,
            bias: noise(6, &[h], DType::F32)?,
            channels_bias: noise(7, &[h * d], DType::F32)?,
            state: noise(8, &[rows, h, v, d], DType::F32)?,
            widths: Array::from_slice(&widths, &[rows])?,
            key_heads: k,
        })
    }
    /// The inputs in F32, in arrays that no GPU has computed.
    fn wide(&self) -> Result<Self> {
        Ok(Self {
            x: host(&self.x)?,
            a: host(&self.a)?,
            channels: host(&self.channels)?,
            b: host(&self.b)?,
            rate: host(&self.rate)?,
            bias: host(&self.bias)?,
            channels_bias: host(&self.channels_bias)?,
            state: host(&self.state)?,
            widths: self.widths.clone(),
            key_heads: self.key_heads,
        })
    }
    /// Some tokens of some rows, all of them real, from another state.
    fn some(&self, rows: [i32; 2], tokens: [i32; 2], state: &Array) -> Result<Self> {
        let row = |a: &Array| a.slice_axis(0, rows[0], rows[1]);
        let part = |a: &Array| row(a)?.slice_axis(1, tokens[0], tokens[1]);
        let count = (rows[1] - rows[0]) as usize;
        let widths = vec![tokens[1] - tokens[0]; count];
        Ok(Self {
            x: part(&self.x)?,
            a: part(&self.a)?,
            channels: part(&self.channels)?,
            b: part(&self.b)?,
            rate: self.rate.clone(),
            bias: self.bias.clone(),
            channels_bias: self.channels_bias.clone(),
            state: state.clone(),
            widths: Array::from_slice(&widths, &[count as i32])?,
            key_heads: self.key_heads,
        })
    }
    fn run(&self, rule: usize) -> Result<(Array, Array)> {
        let delta = GatedDelta {
            qkv: &self.x,
            a: &self.a,
            b: &self.b,
            rate: &self.rate,
            bias: &self.bias,
            state: &self.state,
            widths: &self.widths,
            key_heads: self.key_heads,
            most: 1.0,
            bound: None,
        };
        match rule {
            0 => fast::gated_delta(&delta),
            1 => fast::gated_delta(&GatedDelta {
                a: &self.channels,
                bias: &self.channels_bias,
                most: 2.0,
                ..delta
            }),
            2 => fast::gated_delta(&GatedDelta {
                bound: Some(-5.0),
                ..delta
            }),
            3 => fast::gated_delta(&GatedDelta {
                a: &self.channels,
                bias: &self.channels_bias,
                bound: Some(-5.0),
                ..delta
            }),
            _ => fast::scan(&Scan {
                x: &self.x,
                dt: &self.a,
                rate: &self.rate,
                bias: &self.bias,
                skip: &self.bias,
                state: &self.state,
                widths: &self.widths,
                groups: self.key_heads,
                limits: (0.01, 4.0),
            }),
        }
    }
}

#[test]
fn recurrences() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for (dtype, tolerance) in HALVES {
        for (rows, tokens, sizes) in [
            (1, 1, [2, 4, 128, 128]),
            (3, 5, [1, 3, 20, 13]),
            (64, 1, [1, 2, 64, 64]),
            (2, 70, [2, 2, 32, 48]),
            (2, 9, [1, 2, 256, 40]),
        ] {
            let all = Inputs::new(rows, tokens, sizes, dtype)?;
            let exact = all.wide()?;
            for rule in 0..5 {
                let what = format!("{dtype} {rows} x {tokens}, {sizes:?}, rule {rule}");
                let (y, after) = all.run(rule)?;
                let wanted = on_cpu(|| {
                    let (y, after) = plainly(|| exact.run(rule))?;
                    Ok((host(&y)?, host(&after)?))
                })?;
                close(&what, &y, &wanted.0, tolerance)?;
                close(&format!("{what}: state"), &after, &wanted.1, 0.002)?;
                // The first row alone, token after token.
                let mut state = all.state.slice_axis(0, 0, 1)?;
                let mut ys = Vec::new();
                for token in 0..tokens {
                    let one = all.some([0, 1], [token, token + 1], &state)?;
                    let (y, next) = one.run(rule)?;
                    ys.push(y);
                    state = next;
                }
                let ys = concat(&ys.iter().collect::<Vec<_>>(), 1)?;
                same(&what, &ys, &y.slice_axis(0, 0, 1)?)?;
                same(
                    &format!("{what}: state"),
                    &state,
                    &after.slice_axis(0, 0, 1)?,
                )?;
            }
        }
    }
    Ok(())
}
