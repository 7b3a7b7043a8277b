//! A program on `mlx-models` alone: the next token of a checkpoint, whose folder is the argument.

use mlx_models::mlx_core::{Array, Result};
use mlx_models::mlx_nn::{CacheOptions, ModelCache};
use mlx_models::{LoadOptions, load};

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_default();
    let loaded = load(std::path::Path::new(&folder), LoadOptions::default())?;
    let mut cache = ModelCache::new(loaded.model.states(), 1, CacheOptions::default());
    let prompt = Array::from_slice(&[5u32, 9, 2], &[1, 3])?;
    let mut step = cache.begin(&[3])?;
    let hidden = loaded.model.hidden(&prompt, &mut step)?;
    step.commit_all()?;
    println!("{:?}", loaded.model.logits(&hidden)?.shape());
    Ok(())
}
