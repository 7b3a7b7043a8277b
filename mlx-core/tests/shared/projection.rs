//! Projections that are split into heads, for the tests of fused operations.

use mlx_core::{Array, fast};

pub fn projection<'a>(
    x: &'a Array,
    head_dim: i32,
    norm: Option<(&'a Array, f32)>,
    dims: i32,
    freqs: &'a Array,
    offsets: &'a Array,
) -> fast::Projection<'a> {
    fast::Projection {
        x,
        head_dim,
        norm,
        dims,
        freqs,
        offsets,
    }
}
