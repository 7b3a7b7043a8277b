//! A family that a program adds (the one of mlx-models' tests): its layers differ in heads, head size and state.

#[path = "../../../mlx-models/tests/family/toy.rs"]
mod toy;

use std::ops::ControlFlow;

use mlx_core::{QuantMode, Scheme};
use mlx_infer::{
    ErrorKind, Files, GenerateOptions, Generated, Limits, LoadOptions, LoadedModel, Request, Result,
};
use mlx_models::{Registry, convert};
use serde_json::{Value, json};

use crate::checkpoint;
use crate::command::mlx_infer;

fn registry() -> Registry {
    Registry::default().with(toy::FAMILY)
}

/// A checkpoint of random weights.
fn folder() -> tempfile::TempDir {
    let config = json!({"model_type": "toy", "sliding_window": 8, "initializer_range": 1.0});
    let made = registry().initialised("toy", config.clone(), 11).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let Value::Object(config) = config else {
        unreachable!("an object is written above");
    };
    convert::save(made.model.as_ref(), &config, dir.path()).unwrap();
    dir
}

fn load(dir: &tempfile::TempDir, options: LoadOptions) -> Result<LoadedModel> {
    let files = Files::directory(dir.path())?;
    LoadedModel::load_with(&registry(), files, options, &mut |_, _| ())
}

fn prompt(n: u32, seed: u32) -> Vec<u32> {
    (0..n)
        .map(|at| (at * at * 7 + at * seed + 3) % toy::VOCAB as u32)
        .collect()
}

fn greedy() -> GenerateOptions {
    GenerateOptions {
        max_tokens: 12,
        ignore_eos: true,
        ..Default::default()
    }
}

fn ids(generated: &Generated) -> Vec<u32> {
    generated.tokens.iter().map(|choice| choice.id).collect()
}

#[test]
fn it_generates_alone_in_a_batch_and_from_a_prompt_cache() {
    let dir = folder();
    // The command and the functions without a registry do not support the family.
    let error = LoadedModel::load(dir.path(), LoadOptions::default())
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let model = load(&dir, LoadOptions::default()).unwrap();
    let prompts = [prompt(20, 1), prompt(3, 2), prompt(11, 5)];
    let alone: Vec<Vec<u32>> = prompts
        .iter()
        .map(|prompt| {
            let mut generation = model.generate(prompt.clone(), &greedy()).unwrap();
            ids(&generation.run(|_| ControlFlow::Continue(())).unwrap())
        })
        .collect();
    let requests = prompts
        .iter()
        .map(|prompt| Request::new(prompt.clone(), greedy()));
    let batch = model
        .batch_generate(requests.collect(), &Limits::default())
        .unwrap();
    for (result, alone) in batch.iter().zip(&alone) {
        assert!(result.error.is_none());
        let ids: Vec<u32> = result.tokens.iter().map(|choice| choice.id).collect();
        assert_eq!(&ids, alone);
    }
    let kept = model
        .prompt_cache(prompts[0][..15].to_vec(), &greedy())
        .unwrap();
    let path = dir.path().join("cache.safetensors");
    model.save_prompt_cache(&kept, &path).unwrap();
    let kept = model.load_prompt_cache(&path).unwrap();
    let generation = model.generate(prompts[0].clone(), &greedy()).unwrap();
    let mut generation = generation.with_prompt_cache(&kept).unwrap();
    let generated = generation.run(|_| ControlFlow::Continue(())).unwrap();
    assert_eq!(generated.metrics.cached_tokens, 15);
    assert_eq!(ids(&generated), alone[0]);
}

#[test]
fn its_caches_cost_what_each_layer_keeps() {
    let dir = folder();
    let model = load(&dir, LoadOptions::default()).unwrap();
    let costs = model.state_costs();
    let bytes: Vec<(usize, usize)> = costs
        .iter()
        .map(|cost| (cost.row_bytes, cost.position_bytes))
        .collect();
    // The layers: 2 heads of 16 features; three inputs and a sum of 64; 1 head of 32. Keys and
    // values in F32.
    assert_eq!(bytes, [(0, 256), (1024, 0), (0, 256)]);
    // Heads of 16 cannot be divided into groups of 32: the error names the layer.
    let options = LoadOptions {
        kv_quantization: Some(Scheme::new(32, 8, QuantMode::Affine).unwrap()),
        ..LoadOptions::default()
    };
    let error = load(&dir, options).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(
        text.contains("keys and values of toy, head_dim 16 of cache 0"),
        "{text}"
    );
}

/// Latent attention stores one compressed vector for each position and layer, and it cannot be packed.
#[test]
fn compressed_caches_tell_what_they_keep() {
    let model = checkpoint::dir("deepseek_v3");
    let args = ["info", "--json", "--model", model.to_str().unwrap()];
    let found = serde_json::from_slice::<Value>(&mlx_infer(&args).stdout).unwrap();
    let cache = &found["caches"][0];
    assert_eq!(
        (&cache["kind"], &cache["layers"]),
        (&json!("compressed"), &json!(3))
    );
    // 24 compressed features and 8 rotated ones, in bf16.
    assert_eq!(
        (&cache["kv_heads"], &cache["head_dim"]),
        (&json!(1), &json!(32))
    );
    assert_eq!(cache["bytes_per_position"], 2 * 32);
    assert_eq!(found["memory"]["cache_bytes_per_position"], 3 * 2 * 32);
    let refused = mlx_infer(&[&args[..], &["--kv-bits", "8", "--kv-group-size", "32"]].concat());
    assert_eq!(refused.status.code(), Some(1));
    let stderr = String::from_utf8(refused.stderr).unwrap();
    for word in ["error: ", "deepseek_v3", "one compressed vector"] {
        assert!(stderr.contains(word), "{stderr}");
    }
}
