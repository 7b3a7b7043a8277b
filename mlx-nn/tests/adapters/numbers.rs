//! Arrays as numbers, for comparisons.

use mlx_core::{Array, DType};

pub fn values(array: &Array) -> Vec<f32> {
    let wide = array.astype(DType::F32).unwrap();
    wide.to_vec::<f32>().unwrap()
}

pub fn bits(array: &Array) -> Vec<u32> {
    values(array).into_iter().map(f32::to_bits).collect()
}

pub fn off(a: &Array, b: &Array) -> f32 {
    let pairs = values(a).into_iter().zip(values(b));
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
