//! The CPU's kernels one by one: the time of each, and its share of the machine's limits.
//!
//! ```text
//! cargo bench -p mlx-core --bench kernels                                # all kernels
//! cargo bench -p mlx-core --bench kernels -- --quick "linear q4"         # a short run of the kernels with this in
//! their name
//! ```
//!
//! Each report of criterion is followed by a line with operations and bytes a second of the fastest run, compared
//! with the machine's limits, which `xtask/bench/limits.cpp` measures just before.

mod attention;
mod choose;
#[path = "../shared/inputs.rs"]
mod inputs;
mod layer;
mod matmul;
mod peaks;
mod timed;
mod training;

use criterion::{criterion_group, criterion_main};

use inputs::{affine, matrix, normal, product, quantized};

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
    attention::paged,
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
