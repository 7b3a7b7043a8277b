//! A step that reads only the last tokens gives the same features of these tokens as a step that
//! reads all.

#[path = "shared/checkpoints.rs"]
mod checkpoints;

use std::path::{Path, PathBuf};

use checkpoints::checkpoint;
use mlx_core::{Array, DType, Result, eval, fast};
use mlx_models::{LoadOptions, Loaded, Model, load};
use mlx_nn::{CacheOptions, ModelCache, Residual, Step, last_features};

/// The number of tokens that each row brings.
const WIDTHS: [usize; 4] = [1, 13, 5, 30];

/// The number of tokens that all rows share, for rows that begin with the same ones.
const PREFIX: usize = 9;

/// All checkpoints in testdata.
fn cases() -> Vec<PathBuf> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models");
    let entries = std::fs::read_dir(models).unwrap();
    let entries = entries.map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir());
    let names = folders.map(|folder| folder.file_name().into_string().unwrap());
    let mut cases: Vec<PathBuf> = names.map(|name| checkpoint(&name)).collect();
    cases.sort();
    assert!(cases.len() >= 30, "only {} cases were found", cases.len());
    cases
}

fn model(case: &Path, drafts: bool) -> Loaded {
    let options = LoadOptions {
        drafts,
        ..LoadOptions::default()
    };
    load(case, options).unwrap()
}

fn tokens(n: usize) -> Result<Array> {
    let tokens: Vec<u32> = (0..n).map(|at| (at * at + 7) as u32 % 60).collect();
    Array::from_slice(&tokens, &[1, n as i32])
}

/// A cache of rows that all hold the same `prefix` tokens.
fn rows(model: &dyn Model, prefix: usize) -> Result<ModelCache> {
    let options = CacheOptions::default();
    if prefix == 0 {
        return Ok(ModelCache::new(model.states(), WIDTHS.len(), options));
    }
    let mut cache = ModelCache::new(model.states(), 1, options);
    let mut step = cache.begin(&[prefix])?;
    model.hidden(&tokens(prefix)?, &mut step)?;
    step.commit_all()?;
    cache.select(&[0; WIDTHS.len()])?;
    Ok(cache)
}

/// Features of the rows' tokens, which `run` computes, and of the tokens after them.
fn features(
    model: &dyn Model,
    prefix: usize,
    run: impl Fn(&Array, &mut Step<'_>) -> Result<Array>,
) -> Result<[Vec<f32>; 2]> {
    let mut cache = rows(model, prefix)?;
    let mut step = cache.begin(&WIDTHS)?;
    let last = run(&tokens(step.tokens())?, &mut step)?;
    step.commit_all()?;
    let mut step = cache.begin(&[1; WIDTHS.len()])?;
    let next = model.hidden(&tokens(WIDTHS.len())?, &mut step)?;
    eval([&last, &next])?;
    let values = |x: Array| x.astype(DType::F32)?.to_vec::<f32>();
    Ok([values(last)?, values(next)?])
}

#[test]
fn features_of_last_tokens_are_the_same() -> Result<()> {
    let is_exact = fast::form(fast::Op::Attention)? == fast::Form::Cpu;
    for case in cases() {
        for drafts in [false, true] {
            let loaded = model(&case, drafts);
            let model = loaded.model.as_ref();
            if drafts && model.draft_head().is_none() {
                continue;
            }
            for prefix in [0, PREFIX] {
                let full = features(model, prefix, |tokens, step| {
                    last_features(&model.hidden(tokens, step)?, &WIDTHS)
                })?;
                let narrow = features(model, prefix, |tokens, step| {
                    step.read_last();
                    model.hidden(tokens, step)
                })?;
                let pairs = full.iter().flatten().zip(narrow.iter().flatten());
                let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                let place = format!("{}, prefix {prefix}, drafts {drafts}", case.display());
                assert!(
                    full == narrow || !is_exact && off < 0.1,
                    "{place}: off by {off}"
                );
            }
        }
    }
    Ok(())
}

/// After the mixing of tokens, the rest of the last layer computes one position of each row.
#[test]
fn last_layers_compute_no_other_tokens() -> Result<()> {
    for case in cases() {
        let loaded = model(&case, false);
        let model = loaded.model.as_ref();
        let last = model.geometry().layers().len() - 1;
        let mut cache = rows(model, 0)?;
        let mut step = cache.begin(&WIDTHS)?;
        step.read_last();
        let mut x = Residual::from(model.embed(&tokens(step.tokens())?)?);
        for index in 0..last {
            x = model.layer(index, x, &mut step)?;
            assert_eq!(x.shape()[1], 49, "{}, layer {index}", case.display());
        }
        step.last_layer(|step| {
            let x = model.layer(last, x, step)?;
            assert_eq!(x.shape()[1], 4, "{}", case.display());
            Ok(x)
        })?;
    }
    Ok(())
}
