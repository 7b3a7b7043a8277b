//! A program on `mlx-infer` without its default features, but with the built-in model. Options that need a feature come
//! in JSON, and are refused by its name.

use std::ops::ControlFlow;

use mlx_infer::{GenerateOptions, LoadedModel, RequestOptions, Result};

fn main() -> Result<()> {
    let model = LoadedModel::load_default()?;
    let options = GenerateOptions {
        max_tokens: 8,
        ..Default::default()
    };
    let mut generation = model.generate("47 + 38 =", &options)?;
    let answer = generation.run(|_| ControlFlow::Continue(()))?;
    let wanted = RequestOptions {
        regex: Some("[0-9]+".to_owned()),
        ..Default::default()
    };
    let refused = model.generate("47 + 38 =", &wanted.over(&options));
    let reason = refused
        .err()
        .map_or(String::new(), |error| error.to_string());
    let names_it = reason.contains("regex: structured output needs the feature `grammar`");
    println!("{} {names_it}", answer.text.unwrap_or_default());
    Ok(())
}
