//! A program on `mlx-nn` alone, which names arrays by its re-export.

use mlx_nn::mlx_core::{Array, Result};
use mlx_nn::{CacheOptions, LayerKind, Linear, ModelCache, Module};

#[derive(Module)]
struct Net {
    l1: Linear,
}

fn main() -> Result<()> {
    let x = Array::from_slice(&[0.0f32, 1.0], &[1, 2])?;
    let mut cache = ModelCache::new(&[LayerKind::Full], 2, CacheOptions::default());
    cache.begin(&[3, 1])?.commit(&[2, 1])?;
    let net = Net {
        l1: Linear::new(2, 3, false)?,
    };
    let names: Vec<String> = net.parameters().into_keys().collect();
    println!("{:?} {:?} {}", x.shape(), cache.lens(), names.join(" "));
    Ok(())
}
