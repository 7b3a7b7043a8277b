//! The loss of heads for multi-token prediction.
#![cfg(feature = "cli")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mlx_core::{Array, DType};
use mlx_models::{LoadOptions, Model, load};
use mlx_nn::trainable::set_trainable;
use mlx_nn::{CacheOptions, ModelCache};
use mlx_train::loss::{Ahead, sum_loss, sum_losses};
use mlx_train::recompute::sum_loss_and_grads;
use mlx_train::{Batch, Example, value_and_grad};
use serde_json::{Value, json};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/models")
        .join(name)
}

fn model(name: &str) -> Box<dyn Model> {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        drafts: true,
        ..LoadOptions::default()
    };
    load(testdata(name), options).unwrap().model
}

fn text(n: u32, seed: u32) -> Vec<u32> {
    (0..n).map(|at| (at * 11 + seed) % 60).collect()
}

fn number(array: &Array) -> f32 {
    array.item().unwrap()
}

#[test]
fn targets_are_one_further_and_end_with_their_document() {
    let weighted = Example {
        weights: Some(vec![0.0, 1.0, 0.5, 0.25, 2.0]),
        ..Example::new(vec![1, 2, 3, 4, 5], 0)
    };
    let other = Example::new(vec![11, 12, 13], 0);
    let batch = Batch::new([vec![&weighted, &other], vec![&other]]).unwrap();
    let ahead = batch.ahead().unwrap();
    let next = batch.targets.to_vec::<u32>().unwrap();
    assert_eq!(next, [2, 3, 4, 5, 12, 13, 12, 13, 0, 0, 0, 0]);
    let targets = ahead.targets.to_vec::<u32>().unwrap();
    let weights = ahead.weights.to_vec::<f32>().unwrap();
    let learnt = |at: usize| (targets[at], weights[at]);
    assert_eq!([0, 1, 2].map(learnt), [(3, 0.5), (4, 0.25), (5, 2.0)]);
    assert_eq!([4, 6].map(learnt), [(13, 1.0), (13, 1.0)]);
    assert_eq!(ahead.places.to_vec::<u32>().unwrap(), [0, 1, 2, 4, 6]);
    assert_eq!((ahead.learnt, ahead.weight), (5, 4.75));
    let short = Batch::new([[&Example::new(vec![1, 2], 0)]]).unwrap();
    assert_eq!(short.ahead().unwrap().learnt, 0);
}

/// Training and drafting use the head in the same way: the head is called at each position as the
/// engine calls it, and the losses of its predictions add up to the training loss.
#[test]
fn the_loss_is_that_of_the_drafts() {
    for name in ["qwen3_5_text", "qwen3_5_moe"] {
        let model = model(name);
        let tokens = text(14, 3);
        let mut cache = ModelCache::new(model.states(), 1, CacheOptions::default());
        let mut expected = 0.0;
        for at in 0..tokens.len() - 2 {
            let read = |token: u32| Array::from_slice(&[token], &[1, 1]).unwrap();
            let mut step = cache.begin(&[1]).unwrap();
            model.hidden(&read(tokens[at]), &mut step).unwrap();
            step.commit_all().unwrap();
            let mut step = cache.begin(&[1]).unwrap();
            let head = model.drafting().unwrap();
            let features = head.follow(&read(tokens[at + 1]), None, &mut step).unwrap();
            let logits = model.logits(&features).unwrap();
            let logits = logits.astype(DType::F32).unwrap().to_vec::<f32>().unwrap();
            let largest = logits.iter().fold(f32::MIN, |max, x| max.max(*x));
            let sum: f32 = logits.iter().map(|x| (x - largest).exp()).sum();
            expected += sum.ln() + largest - logits[tokens[at + 2] as usize];
        }
        let batch = Batch::new([[&Example::new(tokens, 0)]]).unwrap();
        let ahead = Ahead::new(model.as_ref(), &batch, 0.5).unwrap();
        let losses = sum_losses(model.as_ref(), &batch, &ahead, None).unwrap();
        let [total, of_model, of_head] = [0, 1, 2].map(|at| number(&losses[at]));
        assert!(
            (of_head - expected).abs() < 1e-4 * expected,
            "{name}: {of_head} {expected}"
        );
        let plain = number(&sum_loss(model.as_ref(), &batch, None).unwrap());
        assert_eq!(of_model, plain, "{name}");
        assert!(
            (total - (plain + 0.5 * of_head)).abs() < 1e-5 * total,
            "{name}"
        );
    }
}

#[test]
fn layer_by_layer_the_gradients_are_the_same() {
    let mut model = model("qwen3_5_text");
    set_trainable(model.as_mut(), |_| true).unwrap();
    let rows = [Example::new(text(9, 1), 2), Example::new(text(21, 5), 3)];
    let batch = Batch::new(rows.iter().map(|row| [row])).unwrap();
    let ahead = Ahead::new(model.as_ref(), &batch, 0.3).unwrap();
    let (values, whole) = value_and_grad(model.as_mut(), |model| {
        sum_losses(model, &batch, &ahead, None)
    })
    .unwrap();
    assert!(
        whole
            .keys()
            .any(|name| name.starts_with("mtp.layers.0.self_attn"))
    );
    for chunk in [None, Some(25)] {
        let (losses, parts) =
            sum_loss_and_grads(model.as_mut(), &batch, Some(&ahead), chunk).unwrap();
        for (found, expected) in losses.iter().zip(&values[1..]) {
            let (found, expected) = (number(found), number(expected));
            assert!(
                (found - expected).abs() < 1e-5 * expected,
                "{found} {expected}"
            );
        }
        assert!(whole.keys().eq(parts.keys()));
        for (name, whole) in &whole {
            let most = number(&whole.abs().unwrap().max(.., false).unwrap());
            let off = whole.subtract(&parts[name]).unwrap().abs().unwrap();
            let off = number(&off.max(.., false).unwrap());
            assert!(off <= 2e-5 * most.max(1e-3), "{name}: {off} of {most}");
        }
    }
    // The head alone can be trained as well, and the embedding gets the gradients of both.
    set_trainable(model.as_mut(), |name| name.starts_with("mtp.")).unwrap();
    let (_, of_head) = value_and_grad(model.as_mut(), |model| {
        sum_losses(model, &batch, &ahead, None)
    })
    .unwrap();
    for (name, grad) in of_head {
        let (found, expected) = (grad.to_vec::<f32>(), whole[&name].to_vec::<f32>());
        assert_eq!(found.unwrap(), expected.unwrap(), "{name}");
    }
}

fn run(dir: &Path, model: &Path, line: &str) -> (bool, String, Vec<Value>) {
    let output = Command::new(env!("CARGO_BIN_EXE_mlx-train"))
        .current_dir(dir)
        .args(line.split_whitespace())
        .args([Path::new("--model"), model])
        .output()
        .unwrap();
    let events = String::from_utf8(output.stdout).unwrap();
    let events = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.success(), stderr, events.collect())
}

/// Trains a model from a config only, with a head for multi-token prediction; the head is written,
/// read again, and has learnt.
#[test]
fn heads_are_drawn_and_trained() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let start = dir.join("start");
    fs::create_dir(&start).unwrap();
    fs::copy(
        testdata("qwen3_5_text").join("config.json"),
        start.join("config.json"),
    )
    .unwrap();
    let lines: Vec<String> = (0..8)
        .map(|line| json!({"tokens": text(12, line)}).to_string())
        .collect();
    fs::write(dir.join("data.jsonl"), lines.join("\n")).unwrap();
    let (done, stderr, _) = run(dir, &start, "init --seed 3 --out drawn");
    assert!(done, "{stderr}");
    let drawn = dir.join("drawn");
    assert!(drawn.join("mtp.safetensors").is_file());
    let line = "full --data data.jsonl --steps 12 --learning-rate 5e-3 --json --mtp=0.5 --out run";
    let (done, stderr, events) = run(dir, &drawn, line);
    assert!(done, "{stderr}");
    let losses: Vec<f64> = events
        .iter()
        .filter_map(|event| event["mtp_loss"].as_f64())
        .collect();
    assert!(
        losses.len() == 12 && losses[11] < 0.8 * losses[0],
        "{losses:?}"
    );
    let (done, stderr, _) = run(dir, &drawn, "fuse --adapter run --out fused");
    assert!(done, "{stderr}");
    assert!(dir.join("fused/mtp.safetensors").is_file());

    // Adapters can be added to the head's layers as well.
    let line = "lora --data data.jsonl --steps 2 --json --mtp --grad-checkpoint --out adapters";
    let (done, stderr, events) = run(dir, &drawn, line);
    assert!(done, "{stderr}");
    assert!(events[0]["mtp_loss"].as_f64().is_some());
    let adapters = fs::read_to_string(dir.join("adapters/adapter_config.json")).unwrap();
    assert!(
        adapters.contains("mtp.layers.0.self_attn.q_proj"),
        "{adapters}"
    );

    for (model, line, expected) in [
        (
            testdata("qwen3"),
            "--mtp",
            "the model has no head for multi-token prediction",
        ),
        (drawn, "--mtp=0", "mtp must be a number above 0, given 0"),
    ] {
        let line = format!("full --data data.jsonl --steps 2 {line} --out refused");
        let (done, stderr, _) = run(dir, &model, &line);
        assert!(!done && stderr.contains(expected), "{stderr}");
    }
}
