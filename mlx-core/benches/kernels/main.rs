//! The CPU's kernels one by one: time, and what part of the machine's limits that is.
//!
//! ```text
//! cargo bench -p mlx-core --bench kernels                    # all of it
//! cargo bench -p mlx-core --bench kernels -- "linear q4"     # what has this in its name
//! ```
//!
//! Below criterion's lines stands one of ours: arithmetic and bytes a second of the fastest run, beside what
//! `xtask/bench/limits.cpp` finds this machine to do at most, a moment before.

mod peaks;
mod timed;

use criterion::{Criterion, criterion_group, criterion_main};
use mlx_core::fast::{self, Mask, Rope};
use mlx_core::ops::quantize::{self, QuantMode, Scheme};
use mlx_core::{Array, DType, Result, random};
use peaks::Peaks;
use timed::{Amount, Bench};

/// Rows of a product: one token, a batch of 8 and of 32, a prompt.
const ROWS: [i32; 4] = [1, 8, 32, 512];
/// Outputs and inputs of matrices of Qwen3-0.6B and Gemma3-1B: attention in, MLP in and out.
const MATRICES: [(&str, i32, i32); 4] = [
    ("qwen3 q_proj", 2048, 1024),
    ("qwen3 up_proj", 3072, 1024),
    ("gemma3 up_proj", 6912, 1152),
    ("gemma3 down_proj", 1152, 6912),
];

fn normal(shape: &[i32], dtype: DType) -> Result<Array> {
    let array = random::normal(&random::Key::new(7)?, shape, DType::F32, 0.0, 1.0)?;
    let array = array.astype(dtype)?;
    mlx_core::eval([&array])?;
    Ok(array)
}

fn linear(c: &mut Criterion) {
    run(c, |bench| {
        for dtype in [DType::F32, DType::BF16] {
            for (name, n, k) in MATRICES {
                let weight = normal(&[n, k], dtype)?;
                for m in ROWS {
                    let x = normal(&[m, k], dtype)?;
                    let amount = product(m, n, k, dtype, weight.nbytes());
                    let id = format!("linear {dtype} {name} [{n}, {k}] of {m} rows");
                    bench.time(&id, amount, || fast::linear(&x, &weight))?;
                }
            }
        }
        Ok(())
    });
}

fn quantized(c: &mut Criterion) {
    run(c, |bench| {
        for bits in [4, 8] {
            let scheme = Scheme {
                mode: QuantMode::Affine,
                bits,
                group_size: 64,
            };
            for (name, n, k) in MATRICES {
                let weight = quantize::quantize(&normal(&[n, k], DType::BF16)?, scheme)?;
                let biases = weight.biases.as_ref();
                let parts = [Some(&weight.packed), Some(&weight.scales), biases];
                mlx_core::eval(parts.into_iter().flatten())?;
                let bytes = parts.into_iter().flatten().map(Array::nbytes).sum();
                for m in ROWS {
                    let x = normal(&[m, k], DType::BF16)?;
                    let amount = product(m, n, k, DType::BF16, bytes);
                    let id = format!("linear q{bits} {name} [{n}, {k}] of {m} rows");
                    bench.time(&id, amount, || {
                        let (packed, scales) = (&weight.packed, &weight.scales);
                        quantize::quantized_matmul(&x, packed, scales, biases, true, scheme)
                    })?;
                }
            }
        }
        Ok(())
    });
}

/// `[m, k]` times a matrix `[n, k]` of so many bytes.
fn product(m: i32, n: i32, k: i32, dtype: DType, weight: usize) -> Amount {
    Amount {
        operations: 2.0 * f64::from(m) * f64::from(n) * f64::from(k),
        bytes: (weight + (m * (n + k)) as usize * dtype.size()) as f64,
    }
}

fn attention(c: &mut Criterion) {
    // Rows, new tokens, stored tokens; heads, kv heads and head size of the two shapes.
    let steps = [(1, 1, 128), (1, 1, 2048), (32, 1, 128), (1, 512, 512)];
    let shapes = [("qwen3", 16, 8, 128), ("gemma3", 4, 1, 256)];
    run(c, |bench| {
        for dtype in [DType::F32, DType::BF16] {
            for (name, heads, kv_heads, size) in shapes {
                for (b, l, s) in steps {
                    let q = normal(&[b, heads, l, size], dtype)?;
                    let k = normal(&[b, kv_heads, s, size], dtype)?;
                    let v = normal(&[b, kv_heads, s, size], dtype)?;
                    let (mask, seen) = match l {
                        1 => (Mask::None, f64::from(s)),
                        // Half of the square.
                        _ => (Mask::Causal, f64::from(s + 1) / 2.0),
                    };
                    let amount = Amount {
                        operations: 4.0 * f64::from(b * heads * l * size) * seen,
                        bytes: (k.nbytes() + v.nbytes() + 2 * q.nbytes()) as f64,
                    };
                    let scale = (size as f32).sqrt().recip();
                    let id = format!("attention {dtype} {name}: {b} rows, {l} new of {s}");
                    bench.time(&id, amount, || {
                        fast::scaled_dot_product_attention(&q, &k, &v, scale, mask, None)
                    })?;
                }
            }
        }
        Ok(())
    });
}

fn the_rest(c: &mut Criterion) {
    run(c, |bench| {
        for dtype in [DType::F32, DType::BF16] {
            for rows in [1, 32, 512] {
                let x = normal(&[rows, 1, 1024], dtype)?;
                let weight = normal(&[1024], dtype)?;
                // A product and a sum for the mean of squares, two products for the result.
                let amount = elementwise(&[&x, &x], 4.0);
                let id = format!("rms_norm {dtype} of {rows} rows of 1024");
                bench.time(&id, amount, || fast::rms_norm(&x, Some(&weight), 1e-6))?;

                let q = normal(&[rows, 16, 1, 128], dtype)?;
                let at = Array::from_slice(&vec![100u32; rows as usize], &[rows])?;
                let rope = Rope {
                    dims: 128,
                    traditional: false,
                    base: Some(1e6),
                    scale: 1.0,
                    freqs: None,
                };
                let id = format!("rope {dtype} of {rows} rows of 16 heads of 128");
                bench.time(&id, elementwise(&[&q, &q], 3.0), || {
                    fast::rope(&q, &rope, &at)
                })?;

                let (gate, up) = (normal(&[rows, 3072], dtype)?, normal(&[rows, 3072], dtype)?);
                let id = format!("swiglu {dtype} of {rows} rows of 3072");
                let amount = elementwise(&[&gate, &up, &gate], 4.0);
                bench.time(&id, amount, || fast::swiglu(&gate, &up))?;
            }
        }
        let logits = normal(&[32, 151_936], DType::F32)?;
        bench.time(
            "argmax f32 of 32 rows of 151936",
            elementwise(&[&logits], 1.0),
            || logits.argmax(-1, false),
        )
    });
}

/// Arrays that are read or written once, and so many operations for each number of the first.
fn elementwise(arrays: &[&Array], operations: f64) -> Amount {
    Amount {
        operations: operations * arrays[0].size() as f64,
        bytes: arrays.iter().map(|array| array.nbytes() as f64).sum(),
    }
}

/// Runs a group; a failure is that of the program.
fn run(c: &mut Criterion, group: impl FnOnce(&mut Bench<'_>) -> Result<()>) {
    let mut bench = Bench::new(c, Peaks::get());
    if let Err(error) = group(&mut bench) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

criterion_group!(kernels, linear, quantized, attention, the_rest);
criterion_main!(kernels);
