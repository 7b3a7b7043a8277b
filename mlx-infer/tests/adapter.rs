//! `--adapter` with an adapter of PEFT gives PEFT's results.
#![cfg(feature = "cli")]

use std::path::{Path, PathBuf};
use std::process::Command;

use mlx_core::Safetensors;
use serde_json::Value;

const PROMPT: [u32; 12] = [7, 1, 30, 12, 44, 2, 19, 55, 3, 21, 9, 40];

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata")
        .join(name)
}

fn score(adapter: &str) -> std::process::Output {
    let tokens: Vec<String> = PROMPT.iter().map(u32::to_string).collect();
    Command::new(env!("CARGO_BIN_EXE_mlx-infer"))
        .args([
            "score",
            "--json",
            "--dtype",
            "f32",
            "--tokens",
            &tokens.join(","),
        ])
        .arg("--model")
        .arg(testdata("models/qwen3"))
        .arg("--adapter")
        .arg(testdata(adapter))
        .output()
        .unwrap()
}

#[test]
fn an_adapter_changes_the_model_as_its_maker_says() {
    let output = score("train/adapters/peft-qwen3");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let golden = testdata("train/adapters/peft-qwen3/golden.safetensors");
    let logits = Safetensors::open(golden).unwrap().array("logits").unwrap();
    let sums = logits.logsumexp(-1, true).unwrap();
    let expected = logits.subtract(sums).unwrap().to_vec::<f32>().unwrap();
    let vocab = expected.len() / PROMPT.len();
    for (at, &token) in PROMPT.iter().enumerate().skip(1) {
        let found = found["logprobs"][at].as_f64().unwrap();
        let expected = f64::from(expected[(at - 1) * vocab + token as usize]);
        assert!(
            (found - expected).abs() < 2e-4,
            "{at}: {found}, expected {expected}"
        );
    }
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let output = score("train/adapters/dora-llama_tied");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("no layer of the model has this name"),
        "{stderr}"
    );
}
