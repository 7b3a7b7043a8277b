//! The CPU's kernels one by one: the time of each, and its share of the machine's limits.
//!
//! ```text
//! cargo bench -p mlx-core --bench kernels                                # all kernels
//! cargo bench -p mlx-core --bench kernels -- --quick "linear q4"         # a short run of the kernels with this in
//! their name
//! ```
//!
//! Each report of criterion is followed by a line of ours: operations and bytes a second of the fastest run, compared
//! with the machine's limits, which `xtask/bench/limits.cpp` measures just before.

mod attention;
mod choose;
mod layer;
mod matmul;
mod peaks;
mod timed;
mod training;

use criterion::{criterion_group, criterion_main};
use mlx_core::ops::quantize::{self, QuantMode, Quantized, Scheme};
use mlx_core::{Array, DType, Result, random};

/// Random numbers, evaluated.
fn normal(shape: &[i32], dtype: DType) -> Result<Array> {
    let array = random::normal(&random::Key::new(7)?, shape, DType::F32, 0.0, 1.0)?;
    let array = array.astype(dtype)?;
    mlx_core::eval([&array])?;
    Ok(array)
}

fn affine(bits: i32) -> Scheme {
    Scheme {
        mode: QuantMode::Affine,
        bits,
        group_size: 64,
    }
}

/// A quantised matrix, evaluated, and its bytes.
fn quantized(shape: &[i32], scheme: Scheme) -> Result<(Quantized, usize)> {
    let weight = quantize::quantize(&normal(shape, DType::BF16)?, scheme)?;
    let biases = weight.biases.as_ref();
    let parts = [Some(&weight.packed), Some(&weight.scales), biases];
    mlx_core::eval(parts.into_iter().flatten())?;
    let bytes = parts.into_iter().flatten().map(Array::nbytes).sum();
    Ok((weight, bytes))
}

criterion_group!(
    kernels,
    matmul::linear,
    matmul::quantized_linear,
    matmul::other_schemes,
    matmul::together,
    matmul::mlp,
    matmul::experts,
    matmul::sgemm,
    attention::attention,
    attention::packed,
    attention::store,
    layer::norms,
    layer::heads,
    layer::activations,
    layer::embedding,
    choose::choose,
    training::training
);
criterion_main!(kernels);
