//! A program on `mlx-nn` alone, which names arrays by its re-export.

use mlx_nn::mlx_core::{Array, Result};
use mlx_nn::{CacheOptions, LayerKind, ModelCache};

fn main() -> Result<()> {
    let x = Array::from_slice(&[0.0f32, 1.0], &[1, 2])?;
    let mut cache = ModelCache::new(&[LayerKind::Full], 2, CacheOptions::default());
    cache.begin(&[3, 1])?.commit(&[2, 1])?;
    println!("{:?} {:?}", x.shape(), cache.lens());
    Ok(())
}
