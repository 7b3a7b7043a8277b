//! The number of operations of a decode step. On a CPU each costs microseconds, however small its
//! arrays are.

use std::path::Path;

use mlx_core::{Array, DType, Result, eval, fast, graph_size};
use mlx_models::{LoadOptions, load};
use mlx_nn::{CacheOptions, ModelCache};

/// Operations of one layer, in float: 7 products, two norms with the sums before them, heads with the cache, attention, the gate,
/// and views. Values and results of attention are two views each, because heads come before tokens there.
#[test]
fn a_layer_is_few_operations() -> Result<()> {
    if fast::form(fast::Op::Attention)? == fast::Form::Plain {
        return Ok(());
    }
    for (case, most) in [
        ("qwen3", 16),
        ("gemma3_text", 16),
        ("gemma2", 16),
        ("mistral", 16),
    ] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../testdata/models")
            .join(case);
        let options = LoadOptions {
            dtype: Some(DType::F32),
            ..LoadOptions::default()
        };
        let loaded = load(&dir, options).expect("the case loads");
        let model = &loaded.model;
        let mut cache = ModelCache::new(model.states(), 2, CacheOptions::default());
        // Rows of different lengths, past every window.
        let prompt = Array::from_slice(&[1u32; 73], &[1, 73])?;
        let mut step = cache.begin(&[40, 33])?;
        eval([&model.hidden(&prompt, &mut step)?])?;
        step.commit_all()?;
        // Rings are created after the step that fills them.
        eval(cache.arrays())?;
        let token = Array::from_slice(&[1u32, 2], &[1, 2])?;
        let [_, normed] = model.norm(model.embed(&token)?.into())?;
        let outside = graph_size([&normed])?;
        let mut step = cache.begin(&[1, 1])?;
        let size = graph_size([&model.hidden(&token, &mut step)?])?;
        let layers = model.geometry().layers().len();
        println!(
            "{case}: {} a layer, {outside} outside",
            (size - outside) / layers
        );
        assert!(
            size - outside <= most * layers,
            "{case}: {size} operations, {outside} of them outside of {layers} layers"
        );
    }
    Ok(())
}
