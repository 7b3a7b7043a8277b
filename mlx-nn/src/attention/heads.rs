//! Reshapes between a projection of all heads and single heads.

use mlx_core::{Array, Result};

/// `[1, T, H * 2 D] -> 2 of [1, T, H * D]`: the first and the second half of each head.
pub(super) fn split_gate(x: &Array, head_dim: i32) -> Result<(Array, Array)> {
    let [b, l, width] = x.dims()?;
    let heads = x.reshape(&[b, l, width / (2 * head_dim), 2 * head_dim])?;
    let half = |from: i32| {
        let half = heads.slice_axis(-1, from, from + head_dim)?;
        half.reshape(&[b, l, width / 2])
    };
    Ok((half(0)?, half(head_dim)?))
}

/// `[1, T, H * D] -> [1, H, T, D]`
///
/// # Errors
/// The last axis is not a multiple of `head_dim`.
pub fn split_heads(x: &Array, head_dim: i32) -> Result<Array> {
    let [b, l, width] = x.dims()?;
    let heads = width / head_dim;
    if l == 1 {
        // A decode step needs one view instead of two.
        return x.reshape(&[b, heads, 1, head_dim]);
    }
    x.reshape(&[b, l, heads, head_dim])?.swapaxes(1, 2)
}

/// `[1, H, T, D] -> [1, T, H * D]`
///
/// # Errors
/// There are not four dimensions.
pub fn merge_heads(x: &Array) -> Result<Array> {
    let [b, h, l, d] = x.dims()?;
    if l == 1 {
        return x.reshape(&[b, 1, h * d]);
    }
    x.swapaxes(1, 2)?.reshape(&[b, l, h * d])
}
