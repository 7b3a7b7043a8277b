//! Two rows of different lengths in one cache, a draft that is rejected, and a row that leaves.

use mlx_models::mlx_core::{Array, Result};
use mlx_models::mlx_nn::ModelCache;
use mlx_models::{Model, initialised};
use serde_json::json;

/// The logits `[V]` after the last new token of each row. The tokens of all rows are one axis.
fn step(
    model: &dyn Model,
    cache: &mut ModelCache,
    rows: &[&[u32]],
    kept: &[usize],
) -> Result<Vec<Array>> {
    let widths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
    let tokens = Array::try_from(vec![rows.concat()])?;
    let mut step = cache.begin(&widths)?;
    step.read_last();
    let logits = model.logits(&model.hidden(&tokens, &mut step)?)?;
    step.commit(kept)?;
    (0..rows.len() as i32)
        .map(|row| logits.i((0, row)))
        .collect()
}

fn main() -> Result<()> {
    let config = json!({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50, "rms_norm_eps": 1e-5
    });
    let loaded = initialised("example", config, 7)?;
    let model = loaded.model.as_ref();

    let mut cache = model.new_cache(2);
    let both = step(model, &mut cache, &[&[3, 1, 4, 1], &[5, 9]], &[4, 2])?;
    println!("lengths: {:?}", cache.lens());
    let alone = step(model, &mut model.new_cache(1), &[&[5, 9]], &[2])?;
    println!(
        "a row is the same alone: {}",
        both[1].allclose(&alone[0])?.item::<bool>()?
    );

    // Row 0 tries three tokens and keeps one of them.
    step(model, &mut cache, &[&[2, 6, 5], &[7]], &[1, 1])?;
    println!("lengths: {:?}", cache.lens());
    let next = step(model, &mut cache, &[&[8], &[8]], &[1, 1])?;
    let whole = step(model, &mut model.new_cache(1), &[&[3, 1, 4, 1, 2, 8]], &[6])?;
    println!(
        "the draft left nothing: {}",
        next[0].allclose(&whole[0])?.item::<bool>()?
    );

    cache.select(&[1])?;
    println!("lengths: {:?}", cache.lens());
    Ok(())
}
