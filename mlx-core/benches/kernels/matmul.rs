//! Matrix products.

use criterion::Criterion;
use mlx_core::fast::{self, Gate};
use mlx_core::ops::quantize::{QuantMode, Scheme};
use mlx_core::{Array, DType};

use crate::timed::{Amount, time};
use crate::{affine, matrix, normal, product, quantized};

/// Rows of a product: one token, a batch of 8 and of 32, a prompt.
const ROWS: [i32; 4] = [1, 8, 32, 512];
/// Outputs and inputs of matrices of Qwen3-0.6B and Gemma3-1B: attention's input, the MLP's input and output.
const MATRICES: [(&str, i32, i32); 4] = [
    ("qwen3 q_proj", 2048, 1024),
    UP_PROJ,
    ("gemma3 up_proj", 6912, 1152),
    ("gemma3 down_proj", 1152, 6912),
];
const UP_PROJ: (&str, i32, i32) = ("qwen3 up_proj", 3072, 1024);

pub fn linear(c: &mut Criterion) {
    for dtype in [DType::F32, DType::BF16] {
        for (name, n, k) in MATRICES {
            for m in ROWS {
                let id = format!("linear {dtype} {name} [{n}, {k}] of {m} rows");
                time(c, &id, || {
                    let (weight, x) = (normal(&[n, k], dtype)?, normal(&[m, k], dtype)?);
                    let amount = product(m, n, k, dtype, weight.nbytes());
                    Ok((amount, move || fast::linear(&x, &weight)))
                });
            }
        }
    }
}

pub fn quantized_linear(c: &mut Criterion) {
    for bits in [4, 8] {
        for matrix in MATRICES {
            one_quantized(c, &format!("q{bits}"), affine(bits), matrix);
        }
    }
}

/// Bit widths and modes that few checkpoints use.
pub fn other_schemes(c: &mut Criterion) {
    for bits in [2, 3, 5, 6] {
        one_quantized(c, &format!("q{bits}"), affine(bits), UP_PROJ);
    }
    for (name, mode, bits, group_size) in [
        ("mxfp4", QuantMode::Mxfp4, 4, 32),
        ("mxfp8", QuantMode::Mxfp8, 8, 32),
        ("nvfp4", QuantMode::Nvfp4, 4, 16),
    ] {
        let scheme = Scheme {
            mode,
            bits,
            group_size,
        };
        one_quantized(c, name, scheme, UP_PROJ);
    }
}

fn one_quantized(c: &mut Criterion, kind: &str, scheme: Scheme, matrix: (&str, i32, i32)) {
    let (name, n, k) = matrix;
    for m in ROWS {
        let id = format!("linear {kind} {name} [{n}, {k}] of {m} rows");
        time(c, &id, || {
            let (w, bytes) = quantized(&[n, k], scheme)?;
            let x = normal(&[m, k], DType::BF16)?;
            let amount = product(m, n, k, DType::BF16, bytes);
            Ok((amount, move || {
                fast::quantized_linear(&x, &w.packed, &w.scales, w.biases.as_ref(), scheme)
            }))
        });
    }
}

/// Queries, keys and values as one operation.
pub fn together(c: &mut Criterion) {
    let (sizes, k, scheme) = ([2048, 1024, 1024], 1024, affine(4));
    for m in ROWS {
        let id = format!("q, k and v q4, {sizes:?} of {k}, of {m} rows");
        time(c, &id, || {
            let x = normal(&[m, k], DType::BF16)?;
            let mut amount = Amount {
                operations: 0.0,
                bytes: x.nbytes() as f64,
            };
            let mut weights = Vec::new();
            for n in sizes {
                let (weight, bytes) = quantized(&[n, k], scheme)?;
                amount.operations += product(m, n, k, DType::BF16, 0).operations;
                amount.bytes += f64::from(m * n * 2) + bytes as f64;
                weights.push(weight);
            }
            Ok((amount, move || {
                let matrices: Vec<_> = weights.iter().map(|w| matrix(w, scheme)).collect();
                Ok(fast::linear_many(&x, &matrices)?.remove(0))
            }))
        });
    }
}

/// The products of gate and up and the operation that joins them, as one operation. The two products are never written
/// to memory.
pub fn mlp(c: &mut Criterion) {
    let (_, n, k) = UP_PROJ;
    for m in ROWS {
        let id = format!("gate, up and swiglu q4, two of [{n}, {k}], of {m} rows");
        time(c, &id, || {
            let scheme = affine(4);
            let ((gate, bytes), (up, _)) =
                (quantized(&[n, k], scheme)?, quantized(&[n, k], scheme)?);
            let x = normal(&[m, k], DType::BF16)?;
            let amount = Amount {
                operations: 2.0 * product(m, n, k, DType::BF16, 0).operations,
                bytes: product(m, n, k, DType::BF16, 2 * bytes).bytes,
            };
            Ok((amount, move || {
                fast::gated_linear(Gate::Silu, &x, &matrix(&gate, scheme), &matrix(&up, scheme))
            }))
        });
    }
}

/// Matrices of chosen experts, with the sizes of Qwen3-30B-A3B.
pub fn experts(c: &mut Criterion) {
    let (experts, chosen, n, k) = (32, 8, 768, 2048);
    for tokens in ROWS {
        let id = format!("experts q4 [{n}, {k}], {chosen} of {experts} for {tokens} tokens");
        time(c, &id, || {
            let scheme = affine(4);
            let (w, bytes) = quantized(&[experts, n, k], scheme)?;
            let x = normal(&[tokens, 1, 1, k], DType::BF16)?;
            let indices: Vec<u32> = (0..tokens * chosen)
                .map(|i| (i * 37 % experts) as u32)
                .collect();
            let indices = Array::from_slice(&indices, &[tokens, chosen])?;
            let used = experts.min(tokens * chosen);
            let read = bytes / experts as usize * used as usize;
            let amount = product(tokens * chosen, n, k, DType::BF16, read);
            Ok((amount, move || {
                let (packed, scales, biases) = (&w.packed, &w.scales, w.biases.as_ref());
                fast::quantized_experts_linear(&x, packed, scales, biases, &indices, scheme)
            }))
        });
    }
}

/// MLX's own f32 products, which reach our library as BLAS calls.
pub fn sgemm(c: &mut Criterion) {
    let (b, m, n, k) = (8, 256, 256, 128);
    for (name, turn_left, turn_right) in [
        ("a b", false, false),
        ("a bT", false, true),
        ("aT b", true, false),
    ] {
        let id = format!("matmul f32 {name}, {b} of [{m}, {k}] and [{k}, {n}]");
        time(c, &id, || {
            let sided = |rows, columns, turn: bool| match turn {
                true => normal(&[b, columns, rows], DType::F32)?.swapaxes(1, 2),
                false => normal(&[b, rows, columns], DType::F32),
            };
            let (left, right) = (sided(m, k, turn_left)?, sided(k, n, turn_right)?);
            let one = product(m, n, k, DType::F32, 0);
            let amount = Amount {
                operations: f64::from(b) * one.operations,
                bytes: (left.nbytes() + right.nbytes()) as f64 + f64::from(b * m * n * 4),
            };
            Ok((amount, move || left.matmul(&right)))
        });
    }
}
