//! A program on `mlx-infer` without its default features, but with the built-in model.

use std::ops::ControlFlow;

use mlx_infer::{GenerateOptions, LoadedModel, Result};

fn main() -> Result<()> {
    let model = LoadedModel::load_default()?;
    let options = GenerateOptions {
        max_tokens: 8,
        ..Default::default()
    };
    let mut generation = model.generate("47 + 38 =", &options)?;
    let answer = generation.run(|_| ControlFlow::Continue(()))?;
    println!("{}", answer.text.unwrap_or_default());
    Ok(())
}
