//! Random inputs, and the rules of linear attention as plain loops in f64.

use mlx_core::fast::{self, GatedDelta, Scan};
use mlx_core::random::{self, Key};
use mlx_core::{Array, DType, Result};

pub fn normal(seed: u64, shape: &[i32]) -> Result<Array> {
    random::normal(&Key::new(seed)?, shape, DType::F32)
}

pub fn floats(array: &Array) -> Result<Vec<f64>> {
    let floats = array.astype(DType::F32)?.to_vec::<f32>()?;
    Ok(floats.into_iter().map(f64::from).collect())
}

pub fn bits(array: &Array) -> Result<Vec<u32>> {
    let floats = array.astype(DType::F32)?.to_vec::<f32>()?;
    Ok(floats.into_iter().map(f32::to_bits).collect())
}

pub fn assert_near(found: &Array, expected: &[f64], step: f64, what: &str) -> Result<()> {
    let found = floats(found)?;
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (found - expected).abs();
        let limit = step * expected.abs().max(1.0);
        assert!(off <= limit, "{what}, element {at}: {found} for {expected}");
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    Delta,
    Channels,
    Scan,
}

/// Sizes: key heads and value heads, and features of a key and a value.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub rule: Rule,
    pub k: i32,
    pub h: i32,
    pub d: i32,
    pub v: i32,
}

impl Sizes {
    pub fn width(self) -> i32 {
        2 * self.k * self.d + self.h * self.v
    }

    /// The largest beta: 2 for some of the sizes.
    pub fn most(self) -> f32 {
        if self.h == 2 * self.k && self.d < 64 {
            2.0
        } else {
            1.0
        }
    }

    /// The bound of the decays' logarithms, for some of the sizes.
    pub fn bound(self) -> Option<f32> {
        (self.h == self.k && self.v < self.d).then_some(-5.0)
    }
}

pub struct Inputs {
    pub sizes: Sizes,
    /// qkv, a, b, rate, bias, state; for a scan: x, dt, skip, rate, bias, state
    pub arrays: [Array; 6],
    pub widths: Vec<i32>,
}

impl Inputs {
    pub fn new(sizes: Sizes, widths: &[i32], seed: u64) -> Result<Self> {
        let (b, l) = (widths.len() as i32, *widths.iter().max().unwrap());
        let Sizes { rule, h, d, v, .. } = sizes;
        let of_token = if rule == Rule::Channels { h * d } else { h };
        let b_shape: &[i32] = if rule == Rule::Scan { &[h] } else { &[b, l, h] };
        // A scan does not normalise keys and queries.
        let size = if rule == Rule::Scan { 0.25 } else { 1.0 };
        let arrays = [
            normal(seed, &[b, l, sizes.width()])?.multiply(size)?,
            normal(seed + 1, &[b, l, of_token])?,
            normal(seed + 2, b_shape)?.multiply(3.0)?,
            normal(seed + 3, &[h])?.exp()?,
            normal(seed + 4, &[of_token])?,
            normal(seed + 5, &[b, h, v, d])?,
        ];
        let widths = widths.to_vec();
        Ok(Self {
            sizes,
            arrays,
            widths,
        })
    }

    pub fn run(&self) -> Result<(Array, Array)> {
        self.run_of(&self.arrays)
    }

    pub fn run_of(&self, arrays: &[Array]) -> Result<(Array, Array)> {
        let widths = Array::from_slice(&self.widths, &[self.widths.len() as i32])?;
        let [x, a, b, rate, bias, state] = [0, 1, 2, 3, 4, 5].map(|at| &arrays[at]);
        let widths = &widths;
        if self.sizes.rule == Rule::Scan {
            return fast::scan(&Scan {
                x,
                dt: a,
                rate,
                bias,
                skip: b,
                state,
                widths,
                groups: self.sizes.k,
                limits: LIMITS,
            });
        }
        fast::gated_delta(&GatedDelta {
            qkv: x,
            a,
            b,
            rate,
            bias,
            state,
            widths,
            key_heads: self.sizes.k,
            most: self.sizes.most(),
            bound: self.sizes.bound(),
        })
    }

    /// The number of first arrays that have a place for each token.
    pub fn of_tokens(&self) -> usize {
        if self.sizes.rule == Rule::Scan { 2 } else { 3 }
    }

    /// Tokens `from .. to` of each row, with another state.
    pub fn part(&self, from: i32, to: i32, state: &Array) -> Result<Self> {
        let mut arrays = self.arrays.clone();
        for array in &mut arrays[..self.of_tokens()] {
            *array = array.slice_axis(1, from, to)?;
        }
        arrays[5] = state.clone();
        let widths = self.widths.iter();
        Ok(Self {
            sizes: self.sizes,
            arrays,
            widths: widths.map(|w| (w - from).clamp(0, to - from)).collect(),
        })
    }

    /// Outputs and states by the definition.
    pub fn expected(&self) -> Result<(Vec<f64>, Vec<f64>)> {
        let Sizes {
            rule, k, h, d, v, ..
        } = self.sizes;
        let [kn, hn, dn, vn] = [k, h, d, v].map(|n| n as usize);
        let l = self.arrays[0].shape()[1] as usize;
        let arrays: Result<Vec<_>> = self.arrays.iter().map(floats).collect();
        let [x, a, b, rate, bias, mut state] = <[Vec<f64>; 6]>::try_from(arrays?).unwrap();
        let width = self.sizes.width() as usize;
        // The offsets of queries, keys and values.
        let [qs, ks, vs] = match rule {
            Rule::Scan => [hn * vn + kn * dn, hn * vn, 0],
            _ => [0, kn * dn, 2 * kn * dn],
        };
        let mut y = vec![0.0; self.widths.len() * l * hn * vn];
        for (row, &real) in self.widths.iter().enumerate() {
            for (t, h) in (0..real as usize).flat_map(|t| (0..hn).map(move |h| (t, h))) {
                let token = row * l + t;
                let at = |column: usize| x[token * width + column..][..dn].to_vec();
                let unit = |x: Vec<f64>| match rule {
                    Rule::Scan => x,
                    _ => {
                        let size = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                        x.iter().map(|x| x / size).collect()
                    }
                };
                let key_head = h / (hn / kn);
                let q = unit(at(qs + key_head * dn));
                let k = unit(at(ks + key_head * dn));
                let each = if rule == Rule::Channels { dn } else { 1 };
                let inputs = (0..each).map(|i| {
                    let at = h * each + i;
                    a[token * hn * each + at] + bias[at]
                });
                let inputs: Vec<f64> = inputs.collect();
                let step = |input: f64| {
                    let step = (1.0 + input.exp()).ln();
                    match rule {
                        Rule::Scan => step.clamp(LIMITS.0.into(), LIMITS.1.into()),
                        _ => step,
                    }
                };
                let decay = |input: f64| match self.sizes.bound() {
                    Some(bound) if rule != Rule::Scan => {
                        (f64::from(bound) / (1.0 + (-rate[h] * input).exp())).exp()
                    }
                    _ => (-rate[h] * step(input)).exp(),
                };
                for v in 0..vn {
                    let value = x[token * width + vs + h * vn + v];
                    let s = &mut state[((row * hn + h) * vn + v) * dn..][..dn];
                    for (i, s) in s.iter_mut().enumerate() {
                        *s *= decay(inputs[i % each]);
                    }
                    let change = match rule {
                        Rule::Scan => step(inputs[0]) * value,
                        _ => {
                            let beta =
                                f64::from(self.sizes.most()) / (1.0 + (-b[token * hn + h]).exp());
                            let known: f64 = s.iter().zip(&k).map(|(s, k)| s * k).sum();
                            beta * (value - known)
                        }
                    };
                    s.iter_mut().zip(&k).for_each(|(s, k)| *s += change * k);
                    let read: f64 = s.iter().zip(&q).map(|(s, q)| s * q).sum();
                    y[(token * hn + h) * vn + v] = match rule {
                        Rule::Scan => read + b[h] * value,
                        _ => read / (dn as f64).sqrt(),
                    };
                }
            }
        }
        Ok((y, state))
    }
}

/// The limits of a scan's time steps.
pub const LIMITS: (f32, f32) = (0.1, 1.5);

const fn sizes(rule: Rule, [k, h, d, v]: [i32; 4]) -> Sizes {
    Sizes { rule, k, h, d, v }
}

pub const SIZES: [Sizes; 10] = [
    sizes(Rule::Delta, [1, 1, 128, 128]),
    sizes(Rule::Delta, [2, 4, 16, 16]),
    sizes(Rule::Delta, [2, 6, 20, 13]),
    sizes(Rule::Delta, [1, 2, 64, 32]),
    sizes(Rule::Delta, [2, 2, 32, 24]),
    sizes(Rule::Channels, [2, 2, 64, 32]),
    sizes(Rule::Channels, [1, 3, 20, 13]),
    sizes(Rule::Scan, [1, 1, 128, 64]),
    sizes(Rule::Scan, [2, 6, 20, 13]),
    sizes(Rule::Scan, [1, 4, 16, 8]),
];
