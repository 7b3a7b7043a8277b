//! Random inputs, and the gated delta rule as plain loops in f64.

use mlx_core::fast::{self, GatedDelta};
use mlx_core::random::{self, Key};
use mlx_core::{Array, DType, Result};

pub fn normal(seed: u64, shape: &[i32]) -> Result<Array> {
    random::normal(&Key::new(seed)?, shape, DType::F32, 0.0, 1.0)
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

/// Sizes: key heads and value heads, and features of a key and a value.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub k: i32,
    pub h: i32,
    pub d: i32,
    pub v: i32,
}

impl Sizes {
    pub fn width(self) -> i32 {
        2 * self.k * self.d + self.h * self.v
    }
}

pub struct Inputs {
    pub sizes: Sizes,
    /// qkv, a, b, rate, bias, state
    pub arrays: [Array; 6],
    pub widths: Vec<i32>,
}

impl Inputs {
    pub fn new(sizes: Sizes, widths: &[i32], seed: u64) -> Result<Self> {
        let (b, l) = (widths.len() as i32, *widths.iter().max().unwrap());
        let arrays = [
            normal(seed, &[b, l, sizes.width()])?,
            normal(seed + 1, &[b, l, sizes.h])?,
            normal(seed + 2, &[b, l, sizes.h])?.multiply(3.0)?,
            normal(seed + 3, &[sizes.h])?.exp()?,
            normal(seed + 4, &[sizes.h])?,
            normal(seed + 5, &[b, sizes.h, sizes.v, sizes.d])?,
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
        fast::gated_delta(&GatedDelta {
            qkv: &arrays[0],
            a: &arrays[1],
            b: &arrays[2],
            rate: &arrays[3],
            bias: &arrays[4],
            state: &arrays[5],
            widths: &widths,
            key_heads: self.sizes.k,
        })
    }

    /// Tokens `from .. to` of each row, with another state.
    pub fn part(&self, from: i32, to: i32, state: &Array) -> Result<Self> {
        let mut arrays = self.arrays.clone();
        for array in &mut arrays[..3] {
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
            k: kn,
            h: hn,
            d: dn,
            v: vn,
        } = self.sizes;
        let [kn, hn, dn, vn] = [kn, hn, dn, vn].map(|n| n as usize);
        let l = self.arrays[0].shape()[1] as usize;
        let arrays: Result<Vec<_>> = self.arrays.iter().map(floats).collect();
        let [qkv, a, b, rate, bias, mut state] = <[Vec<f64>; 6]>::try_from(arrays?).unwrap();
        let width = self.sizes.width() as usize;
        let mut y = vec![0.0; self.widths.len() * l * hn * vn];
        for (row, &real) in self.widths.iter().enumerate() {
            for (t, h) in (0..real as usize).flat_map(|t| (0..hn).map(move |h| (t, h))) {
                let token = row * l + t;
                let at = |column: usize, n: usize| &qkv[token * width + column..][..n];
                let unit = |x: &[f64]| {
                    let size = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|x| x / size).collect::<Vec<_>>()
                };
                let key_head = h / (hn / kn);
                let q = unit(at(key_head * dn, dn));
                let k = unit(at((kn + key_head) * dn, dn));
                let softplus = (1.0 + (a[token * hn + h] + bias[h]).exp()).ln();
                let g = (-rate[h] * softplus).exp();
                let beta = 1.0 / (1.0 + (-b[token * hn + h]).exp());
                for v in 0..vn {
                    let s = &mut state[((row * hn + h) * vn + v) * dn..][..dn];
                    s.iter_mut().for_each(|s| *s *= g);
                    let known: f64 = s.iter().zip(&k).map(|(s, k)| s * k).sum();
                    let change = beta * (qkv[token * width + 2 * kn * dn + h * vn + v] - known);
                    s.iter_mut().zip(&k).for_each(|(s, k)| *s += change * k);
                    let read: f64 = s.iter().zip(&q).map(|(s, q)| s * q).sum();
                    y[(token * hn + h) * vn + v] = read / (dn as f64).sqrt();
                }
            }
        }
        Ok((y, state))
    }
}

pub const SIZES: [Sizes; 4] = [
    Sizes {
        k: 1,
        h: 1,
        d: 128,
        v: 128,
    },
    Sizes {
        k: 2,
        h: 4,
        d: 16,
        v: 16,
    },
    Sizes {
        k: 2,
        h: 6,
        d: 20,
        v: 13,
    },
    Sizes {
        k: 1,
        h: 2,
        d: 64,
        v: 32,
    },
];
