//! The operations between the matrix products of a layer, and the embedding before the first layer.

use criterion::Criterion;
use mlx_core::fast::{self, Projection, Rope};
use mlx_core::{Array, DType, Result};

use crate::timed::{Amount, time};
use crate::{affine, normal, quantized};

/// Tokens of a step: one row, a batch, a prompt.
const ROWS: [i32; 3] = [1, 32, 512];
const DTYPES: [DType; 2] = [DType::F32, DType::BF16];

pub fn norms(c: &mut Criterion) {
    let size = 1024;
    for dtype in DTYPES {
        for rows in ROWS {
            let of = format!("{dtype} of {rows} rows of {size}");
            let weight = || normal(&[size], dtype);
            time(c, &format!("rms_norm {of}"), || {
                let (x, weight) = (normal(&[rows, 1, size], dtype)?, weight()?);
                // A product and a sum for the mean of squares, and two products for the result.
                let amount = Amount::elementwise(&[&x, &x], 4.0);
                Ok((amount, move || fast::rms_norm(&x, Some(&weight), 1e-6)))
            });
            time(c, &format!("add {of}"), || {
                let x = normal(&[rows, 1, size], dtype)?;
                let residual = normal(&[rows, 1, size], dtype)?;
                let amount = Amount::elementwise(&[&x, &residual, &x], 1.0);
                Ok((amount, move || fast::add(&x, &residual)))
            });
            time(c, &format!("add_norm {of}"), || {
                let (x, weight) = (normal(&[rows, 1, size], dtype)?, weight()?);
                let residual = normal(&[rows, 1, size], dtype)?;
                let amount = Amount::elementwise(&[&x, &residual, &x, &x], 5.0);
                Ok((amount, move || {
                    Ok(fast::add_norm(&x, &residual, None, &weight, 1e-6)?.1)
                }))
            });
            time(c, &format!("norm_add {of}"), || {
                let (x, weight) = (normal(&[rows, 1, size], dtype)?, weight()?);
                let residual = normal(&[rows, 1, size], dtype)?;
                let amount = Amount::elementwise(&[&x, &residual, &x], 5.0);
                Ok((amount, move || fast::norm_add(&x, &weight, &residual, 1e-6)))
            });
        }
    }
}

/// Rotation alone, and with the norm of heads before it.
pub fn heads(c: &mut Criterion) {
    let (heads, size) = (16, 128);
    for dtype in DTYPES {
        for rows in ROWS {
            let offsets = || Array::from_slice(&vec![100; rows as usize], &[rows]);
            let of = format!("{dtype} of {rows} rows of {heads} heads of {size}");
            time(c, &format!("rope {of}"), || {
                let x = normal(&[rows, heads, 1, size], dtype)?;
                let offsets = offsets()?;
                let rope = Rope {
                    dims: size,
                    traditional: false,
                    base: Some(1e6),
                    scale: 1.0,
                    freqs: None,
                };
                let amount = Amount::elementwise(&[&x, &x], 3.0);
                Ok((amount, move || fast::rope_with(&x, &rope, &offsets)))
            });
            time(c, &format!("heads {of}"), || {
                let x = normal(&[rows, 1, heads * size], dtype)?;
                let (weight, offsets) = (normal(&[size], dtype)?, offsets()?);
                let half = size / 2;
                let freqs: Vec<f32> = (0..half)
                    .map(|i| 1e6f32.powf(i as f32 / half as f32))
                    .collect();
                let freqs = Array::from_slice(&freqs, &[half])?;
                let amount = Amount::elementwise(&[&x, &x], 7.0);
                Ok((amount, move || {
                    fast::heads(&Projection {
                        x: &x,
                        head_dim: size,
                        norm: Some((&weight, 1e-6)),
                        dims: size,
                        freqs: &freqs,
                        offsets: &offsets,
                    })
                }))
            });
        }
    }
}

pub fn activations(c: &mut Criterion) {
    let size = 3072;
    type Gate = fn(&Array, &Array) -> Result<Array>;
    let gates: [(&str, Gate); 2] = [("swiglu", fast::swiglu), ("geglu", fast::geglu)];
    for dtype in DTYPES {
        for rows in ROWS {
            let of = format!("{dtype} of {rows} rows of {size}");
            for (name, gate) in gates {
                time(c, &format!("{name} {of}"), || {
                    let x = normal(&[rows, size], dtype)?;
                    let up = normal(&[rows, size], dtype)?;
                    let amount = Amount::elementwise(&[&x, &up, &x], 4.0);
                    Ok((amount, move || gate(&x, &up)))
                });
            }
            time(c, &format!("soft_cap {of}"), || {
                let x = normal(&[rows, size], dtype)?;
                let amount = Amount::elementwise(&[&x, &x], 3.0);
                Ok((amount, move || fast::soft_cap(&x, 30.0)))
            });
        }
    }
}

/// Rows of a quantised embedding.
pub fn embedding(c: &mut Criterion) {
    let (entries, size) = (32_768, 1024);
    for bits in [4, 8] {
        for n in ROWS {
            let id = format!("embedding q{bits} [{entries}, {size}], {n} rows of it");
            time(c, &id, || {
                let (w, _) = quantized(&[entries, size], affine(bits))?;
                let indices: Vec<u32> = (0..n).map(|i| (i * 7919 % entries) as u32).collect();
                let indices = Array::from_slice(&indices, &[n])?;
                // Codes, and a scale and a bias for each group, are read, and numbers are written: one product and one
                // sum each.
                let numbers = f64::from(n) * f64::from(size);
                let amount = Amount {
                    operations: 2.0 * numbers,
                    bytes: numbers * (f64::from(bits) / 8.0 + 4.0 / 64.0 + 2.0),
                };
                Ok((amount, move || {
                    let (packed, scales, biases) = (&w.packed, &w.scales, w.biases.as_ref());
                    let (scheme, dtype) = (affine(bits), DType::BF16);
                    fast::quantized_rows(packed, scales, biases, &indices, scheme, dtype)
                }))
            });
        }
    }
}
