//! Training from scratch: random weights, weighted tokens, batches by tokens, a learning rate that cools down, and the
//! parameters for which Muon uses AdamW.
#![cfg(feature = "cli")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mlx_core::{Array, DType};
use mlx_models::{LoadOptions, Model, load};
use mlx_nn::loss::cross_entropy;
use mlx_nn::trainable::{set_trainable, trainable};
use mlx_train::data::{self, DataOptions, Encoder};
use mlx_train::feed::{Feed, FeedOptions};
use mlx_train::loss::{logits, sum_loss};
use mlx_train::optim::{Adam, Muon};
use mlx_train::{Batch, Example, Method, Optimizer, Schedule, value_and_grad};
use serde_json::{Value, json};

const OPTIONS: DataOptions = DataOptions {
    max_tokens: 6,
    mask_prompt: true,
    vocab: 60,
};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/models")
        .join(name)
}

fn read(line: &Value) -> mlx_train::Result<Example> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.jsonl");
    fs::write(&path, line.to_string()).unwrap();
    data::read(&path, &Encoder::default(), &OPTIONS).map(|data| data.examples[0].clone())
}

#[test]
fn weights_come_with_tokens() {
    let line = json!({"tokens": [1, 2, 3, 4], "weights": [1, 0, 0.25, 1]});
    let example = read(&line).unwrap();
    let weights: Vec<f32> = (0..4).map(|at| example.weight(at)).collect();
    // Nothing predicts the first token.
    assert_eq!(weights, [0.0, 0.0, 0.25, 1.0]);
    assert_eq!(example.learnt(), 2);
    let long = json!({"tokens": vec![1; 9], "weights": vec![1; 9]});
    let cut = read(&long).unwrap();
    assert_eq!((cut.tokens.len(), cut.weights.unwrap().len()), (6, 6));
    for weights in [
        json!([1, 2]),
        json!([1, 2, 3, -1]),
        json!("all"),
        json!([1, 2, 3, null]),
    ] {
        let error = read(&json!({"tokens": [1, 2, 3, 4], "weights": weights})).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("data.jsonl: line 1"), "{error}");
        assert!(error.contains("weights: expected 4 numbers"), "{error}");
    }
}

/// The loss runs the head only at positions with a weight, and equals the sum of weight times loss over all positions.
#[test]
fn the_loss_is_weighted() {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    let model = load(testdata("gemma3_text"), options).unwrap().model;
    let tokens = |n: u32| (0..n).map(|at| at * 7 % 50).collect::<Vec<u32>>();
    let mut weighted = Example::new(tokens(9), 0);
    weighted.weights = Some((0..9).map(|at| [0.0, 0.5, 2.0][at % 3]).collect());
    let rows = [weighted.clone(), Example::new(tokens(5), 2)];
    let batch = Batch::new(rows.iter().map(|row| [row])).unwrap();
    let found = sum_loss(model.as_ref(), &batch, None)
        .unwrap()
        .item::<f32>();
    let losses = cross_entropy(&logits(model.as_ref(), &batch).unwrap(), &batch.targets).unwrap();
    let losses = losses.to_vec::<f32>().unwrap();
    let (mut expected, mut weight) = (0.0, 0.0);
    for (row, example) in rows.iter().enumerate() {
        for at in 1..example.tokens.len() {
            expected += example.weight(at) * losses[row * 8 + at - 1];
            weight += f64::from(example.weight(at));
        }
    }
    let found = found.unwrap();
    assert!(
        (found - expected).abs() < 1e-5 * expected,
        "{found} {expected}"
    );
    assert_eq!(batch.weight, weight);
    assert_eq!(batch.learnt, 6 + 3);
}

#[test]
fn batches_are_filled_with_rows_of_about_one_length() {
    let lengths = |index: usize| 4 + index * 13 % 29;
    let examples: Vec<Example> = (0..200)
        .map(|index| Example::new(vec![1; lengths(index)], 0))
        .collect();
    let options = FeedOptions {
        batch_size: 3,
        batch_tokens: Some(120),
        pack: None,
        seed: 5,
    };
    let mut feed = Feed::new(&examples, options);
    let (mut seen, mut padded, mut full) = (Vec::new(), 0, 0);
    while feed.position().epoch == 0 && seen.len() < examples.len() {
        let batch = feed.next_batch();
        let lengths: Vec<usize> = batch.iter().map(|row| lengths(row[0])).collect();
        let most = *lengths.iter().max().unwrap();
        padded += most * lengths.len() - lengths.iter().sum::<usize>();
        full += usize::from(most * lengths.len() >= 120);
        assert!((lengths.len() - 1) * most < 120 + most, "{lengths:?}");
        seen.extend(batch.into_iter().flatten());
    }
    let total: usize = examples.iter().map(|example| example.tokens.len()).sum();
    assert!(padded * 20 < total, "{padded} of {total}");
    assert!(full >= total / 150, "{full}");
    seen.sort_unstable();
    assert_eq!(seen, (0..examples.len()).collect::<Vec<_>>());
}

#[test]
fn the_rate_stays_and_then_falls_to_nothing() {
    let schedule = Schedule::constant(2.0)
        .with_cooldown(8, 4)
        .with_warmup(2, 0.0);
    let rates: Vec<f64> = (0..11).map(|step| schedule.rate(step)).collect();
    assert_eq!(
        rates,
        [0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0]
    );
}

/// The parameters after one step from random weights.
fn step(model: &mut dyn Model, method: Method) -> BTreeMap<String, Vec<f32>> {
    set_trainable(&mut *model, |_| true).unwrap();
    let row = Example::new((0..20).map(|at| at * 3 % 40).collect(), 0);
    let batch = Batch::new([[&row]]).unwrap();
    let mut optimizer = Optimizer::new(method, Schedule::constant(0.01)).unwrap();
    let (_, grads) = value_and_grad(&mut *model, |model| {
        Ok(vec![sum_loss(model, &batch, None)?])
    })
    .unwrap();
    optimizer.apply_lazily(&mut *model, &grads).unwrap();
    let numbers = |(name, array): (String, Array)| (name, array.to_vec::<f32>().unwrap());
    let params = trainable(model).unwrap().into_iter();
    params.map(numbers).collect()
}

fn initialised(name: &str, seed: u64) -> Box<dyn Model> {
    let text = fs::read(testdata(name).join("config.json")).unwrap();
    let config = serde_json::from_slice(&text).unwrap();
    mlx_models::initialised(name, config, seed).unwrap().model
}

/// Vectors, embeddings and heads take AdamW's step to the bit, and hidden matrices take Muon's;
/// `others_of` chooses which ones.
#[test]
fn muon_is_for_hidden_matrices() {
    let adam = Adam {
        betas: [0.8, 0.95],
        ..Adam::default()
    };
    let muon = Muon {
        others: adam,
        ..Muon::default()
    };
    let named = Muon {
        others_of: vec!["*.q_proj.weight".to_owned()],
        ..muon.clone()
    };
    let of = |method| step(initialised("qwen3", 1).as_mut(), method);
    let adam = of(Method::AdamW(adam));
    let (muon, named) = (of(Method::Muon(muon)), of(Method::Muon(named)));
    let same = |all: &BTreeMap<String, Vec<f32>>, name: &str| all[name] == adam[name];
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        assert!(same(&muon, name) && !same(&named, name), "{name}");
    }
    assert!(same(&muon, "model.norm.weight") && same(&named, "model.norm.weight"));
    let query = "model.layers.0.self_attn.q_proj.weight";
    assert!(!same(&muon, query) && same(&named, query));
    assert!(!same(&muon, "model.layers.0.mlp.up_proj.weight"));
}

/// Every architecture can be initialised: norms that scale by 1, matrices with the documented spread,
/// and the same numbers from the same seed.
#[test]
fn every_architecture_begins_from_a_seed() {
    for name in [
        "llama_bias",
        "qwen3",
        "qwen3_moe",
        "gemma2",
        "gemma3_text",
        "phi3",
    ] {
        let values = |seed| {
            let mut model = initialised(name, seed);
            set_trainable(model.as_mut(), |_| true).unwrap();
            trainable(model.as_ref()).unwrap()
        };
        let (one, other) = (values(3), values(4));
        let offset = if name.starts_with("gemma") { 0.0 } else { 1.0 };
        let mut differ = 0;
        for (((name, value), (_, again)), (_, other)) in one.iter().zip(&values(3)).zip(&other) {
            let numbers = value.to_vec::<f32>().unwrap();
            assert_eq!(numbers, again.to_vec::<f32>().unwrap(), "{name}");
            if name.ends_with("norm.weight") || name.contains("layernorm") {
                assert!(numbers.iter().all(|&x| x == offset), "{name}");
            } else if name.ends_with("bias") {
                assert!(numbers.iter().all(|&x| x == 0.0), "{name}");
            } else {
                let squares: f32 = numbers.iter().map(|x| x * x).sum();
                let deviation = (squares / numbers.len() as f32).sqrt();
                let expected = if name.contains("embed_tokens") {
                    0.02
                } else {
                    (*value.shape().last().unwrap() as f32).powf(-0.5)
                };
                assert!(
                    (deviation / expected - 1.0).abs() < 0.1,
                    "{name}: {deviation} {expected}"
                );
                differ += usize::from(numbers != other.to_vec::<f32>().unwrap());
            }
        }
        assert!(differ > 5, "{name}");
    }
    let mut config: Value =
        serde_json::from_slice(&fs::read(testdata("qwen3").join("config.json")).unwrap()).unwrap();
    config["quantization"] = json!({"group_size": 32, "bits": 4});
    let error = mlx_models::initialised("x", config, 0).err().unwrap();
    assert!(
        error.to_string().contains("cannot be initialised"),
        "{error}"
    );
}

/// The steps that make the built-in model: init, full, fuse as bf16.
#[test]
fn a_model_is_made_from_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let start = dir.path().join("start");
    fs::create_dir(&start).unwrap();
    fs::copy(
        testdata("gemma3_text").join("config.json"),
        start.join("config.json"),
    )
    .unwrap();
    let lines: String = (0..40)
        .map(|index| {
            let tokens: Vec<usize> = (0..5 + index % 7).map(|at| (index + at) % 60).collect();
            let weights: Vec<f32> = tokens.iter().map(|_| 0.5).collect();
            format!("{}\n", json!({"tokens": tokens, "weights": weights}))
        })
        .collect();
    fs::write(dir.path().join("data.jsonl"), lines).unwrap();
    let run = |line: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_mlx-train"))
            .current_dir(dir.path())
            .args(line.split_whitespace())
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    };
    run("init --model start --seed 5 --out initial");
    run(
        "full --model initial --data data.jsonl --out run --optimizer muon --learning-rate 0.01 \
         --batch-tokens 100 --steps 20 --cooldown 10 --warmup 2",
    );
    run("fuse --model initial --adapter run --dtype bf16 --out model");
    let config: Value =
        serde_json::from_slice(&fs::read(dir.path().join("model/config.json")).unwrap()).unwrap();
    let dtype = config.get("torch_dtype").or(config.get("dtype"));
    assert!(dtype.is_none_or(|dtype| dtype == "bfloat16"), "{config}");
    let loaded = load(dir.path().join("model"), LoadOptions::default()).unwrap();
    assert_eq!(loaded.info.dtype, DType::BF16);
    let metrics = fs::read_to_string(dir.path().join("run/metrics.jsonl")).unwrap();
    let losses: Vec<f64> = metrics
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64())
        .collect();
    assert_eq!(losses.len(), 20);
    // Random weights give all tokens the same probability, so the loss begins there, and then falls.
    assert!(
        (losses[0] - 60f64.ln()).abs() < 0.5 && losses[19] < 0.8 * losses[0],
        "{losses:?}"
    );
}
