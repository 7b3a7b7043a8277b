//! Views, broadcasting, indexing and reductions against plain Rust, on random shapes.

mod indexing;
mod indices;
mod model;
mod reductions;
mod views;

use model::Model;
use proptest::prelude::*;

/// A model of random shape with distinct elements.
fn models(max_ndim: usize, sizes: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Model> {
    prop::collection::vec(sizes, 0..=max_ndim).prop_map(|shape| Model::counting(&shape))
}

fn config() -> ProptestConfig {
    // A fixed seed: a failure in CI can be repeated here.
    ProptestConfig {
        cases: 256,
        failure_persistence: None,
        rng_seed: prop::test_runner::RngSeed::Fixed(7),
        ..Default::default()
    }
}
