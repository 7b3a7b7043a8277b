//! In BF16, log probabilities are about as far from F32 as those of transformers in BF16 (`testdata/bf16.json`, by
//! `xtask/golden/bf16.py`). Both round the weights first.

use std::collections::BTreeMap;
use std::path::Path as File;

use mlx_core::{Array, DType, Result};
use mlx_models::{LoadOptions, Loaded};
use mlx_nn::{CacheOptions, ModelCache, Module, Param, Path, Visit, VisitMut};
use serde_json::{Value, json};

use super::case::{Case, Kind};

/// Cases with what families share: norms by weight and by weight and bias, MLPs with and without gates, attention and MLP
/// in parallel, biases, experts, recurrent layers.
const CASES: [&str; 14] = [
    "falcon_alibi",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "granitemoe",
    "granitemoehybrid",
    "llama_bias",
    "mixtral",
    "nemotron",
    "nemotron_h",
    "opt",
    "phi",
    "phi_norms",
    "qwen3_next",
];

/// Other prompts, and the order of sums of other processors, change a quotient by about a tenth.
const BOUND: f64 = 1.2;
/// The same without our CPU kernels.
const PLAIN_BOUND: f64 = 1.4;

struct Prompts {
    count: u64,
    length: usize,
}

impl Prompts {
    /// Random tokens from 3 to `largest`, the same as those of the script.
    fn tokens(&self, largest: u64) -> Vec<u32> {
        let row = |seed: u64| {
            let mut x = seed + 1;
            let next = move |_| {
                x = x
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                3 + ((x >> 33) % (largest - 2)) as u32
            };
            (0..self.length).map(next).collect::<Vec<_>>()
        };
        (0..self.count).flat_map(row).collect()
    }
}

/// The log probabilities of each token but the first of each row.
fn log_probs(model: &Loaded, tokens: &[u32], prompts: &Prompts) -> Result<Vec<f32>> {
    let rows = prompts.count as usize;
    let mut cache = ModelCache::new(model.model.states(), rows, CacheOptions::default());
    (0..rows).for_each(|row| cache.expect(row, prompts.length));
    let mut step = cache.begin(&vec![prompts.length; rows])?;
    let input = Array::from_slice(tokens, &[1, tokens.len() as i32])?;
    let hidden = model.model.hidden(&input, &mut step)?;
    let logits = model.model.logits(&hidden)?.astype(DType::F32)?;
    let (rows, length) = (rows as i32, prompts.length as i32);
    let logits = logits.reshape(&[rows, length, -1])?;
    let logits = logits.slice_axis(1, 0, length - 1)?;
    let next = input.reshape(&[rows, length])?.slice_axis(1, 1, length)?;
    let chosen = logits.take_along_axis(&next.expand_dims(-1)?, -1)?;
    chosen.subtract(logits.logsumexp(-1, true)?)?.to_vec()
}

/// The floats of a model, F32, by path.
#[derive(Default)]
struct Floats(BTreeMap<String, Array>);

impl Visit for Floats {
    fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
        if param.value().dtype().is_float() {
            let wide = param.value().astype(DType::F32)?;
            self.0.insert(path.as_str().to_owned(), wide);
        }
        Ok(())
    }
}

impl VisitMut for Floats {
    fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
        if let Some(value) = self.0.get(path.as_str())
            && param.value().dtype() == DType::F32
        {
            param.set(value.clone());
        }
        Ok(())
    }
}

/// The mean distance of log probabilities in BF16 from those in F32.
fn distance(case: &Case, prompts: &Prompts) -> Result<f64> {
    let options = LoadOptions {
        dtype: Some(DType::BF16),
        ..LoadOptions::default()
    };
    let config = case.config("config.json");
    let narrow = mlx_models::load_from(&case.name, config, case.files(), options)?;
    let mut wide = case.load("config.json", None)?;
    let mut floats = Floats::default();
    narrow.model.visit(&mut Path::default(), &mut floats)?;
    wide.model.visit_mut(&mut Path::default(), &mut floats)?;
    let largest = case.prompts.iter().flatten().max().copied();
    let tokens = prompts.tokens(u64::from(largest.unwrap_or(0)));
    let [narrow, wide] = [&narrow, &wide].map(|model| log_probs(model, &tokens, prompts));
    let (narrow, wide) = (narrow?, wide?);
    let off = narrow
        .iter()
        .zip(&wide)
        .map(|(a, b)| f64::from(a - b).abs());
    Ok(off.sum::<f64>() / narrow.len() as f64)
}

/// With `MLX_BF16_OURS`, the distances of all cases are written to this file, and nothing is compared.
#[test]
fn bf16_is_as_far_from_f32_as_in_transformers() {
    let file = File::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/bf16.json");
    let file: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let prompts = Prompts {
        count: file["prompts"].as_u64().unwrap(),
        length: file["length"].as_u64().unwrap() as usize,
    };
    let theirs = file["transformers"].as_object().unwrap();
    let out = std::env::var("MLX_BF16_OURS").ok();
    let mut ours = serde_json::Map::new();
    let mut found = Vec::new();
    for case in Case::all() {
        let is_wanted = out.is_some() || CASES.contains(&case.name.as_str());
        let Some(theirs) = theirs.get(&case.name).filter(|_| is_wanted) else {
            continue;
        };
        assert_eq!(case.kind, Kind::Float, "{}", case.name);
        let distance =
            distance(&case, &prompts).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert!(distance > 0.0, "{}: BF16 is as exact as F32", case.name);
        let quotient = distance / theirs.as_f64().unwrap();
        println!("{:<24} {distance:.3e} {quotient:.2}", case.name);
        ours.insert(case.name.clone(), json!(distance));
        found.push((quotient, case.name));
    }
    match out {
        Some(out) => std::fs::write(out, Value::Object(ours).to_string()).unwrap(),
        None => {
            assert_eq!(found.len(), CASES.len());
            // MLX's own operations round more often.
            let is_off = std::env::var("MLX_CPU_KERNELS").as_deref() == Ok("off");
            let bound = if is_off { PLAIN_BOUND } else { BOUND };
            let further: Vec<_> = found
                .iter()
                .filter(|(quotient, _)| *quotient > bound)
                .collect();
            assert!(further.is_empty(), "further than transformers: {further:?}");
        }
    }
}
