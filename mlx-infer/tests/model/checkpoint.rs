//! The tiny checkpoints of `testdata/models`, and the reference results for them.

use std::path::{Path, PathBuf};

use mlx_core::{DType, Safetensors};
use mlx_infer::{LoadOptions, LoadedModel};
use serde_json::Value;
use tempfile::TempDir;

/// A folder of `testdata`.
pub fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata")
        .join(path)
}

/// The folder of a checkpoint.
pub fn dir(case: &str) -> PathBuf {
    testdata("models").join(case)
}

/// A prompt, the 24 greedy tokens after it, and the logits of the prompt `[L, V]` and of each step `[24, V]`.
pub struct Golden {
    pub prompt: Vec<u32>,
    pub tokens: Vec<u32>,
    pub logits: Vec<Vec<f32>>,
    pub step_logits: Vec<Vec<f32>>,
}

/// The goldens of a checkpoint.
pub fn goldens(case: &str) -> Vec<Golden> {
    let text = std::fs::read_to_string(dir(case).join("golden.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let prompts: Vec<Vec<u32>> = serde_json::from_value(json["prompts"].clone()).unwrap();
    let file = Safetensors::open(dir(case).join("golden.safetensors")).unwrap();
    let rows = |name: String| {
        let array = file.array(&name).unwrap();
        let width = array.dim(-1).unwrap() as usize;
        let flat = array.to_vec::<f32>().unwrap();
        flat.chunks(width).map(<[f32]>::to_vec).collect()
    };
    let golden = |(i, prompt)| {
        let tokens = file.array(&format!("tokens.{i}")).unwrap();
        let tokens = tokens.to_vec::<i32>().unwrap();
        Golden {
            prompt,
            tokens: tokens.into_iter().map(|id| id as u32).collect(),
            logits: rows(format!("logits.{i}")),
            step_logits: rows(format!("step_logits.{i}")),
        }
    };
    prompts.into_iter().enumerate().map(golden).collect()
}

/// Log probabilities of logits.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    logits
        .iter()
        .map(|l| f64::from(l - max) - sum.ln())
        .collect()
}

/// Loads in single precision, as the goldens were made.
pub fn load(dir: impl AsRef<Path>) -> LoadedModel {
    load_ring(dir, None)
}

/// The same with caches of this many tokens.
pub fn load_ring(dir: impl AsRef<Path>, context_len: Option<usize>) -> LoadedModel {
    let options = LoadOptions {
        context_len,
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    LoadedModel::load(dir, options).unwrap()
}

/// A copy of a checkpoint's model with the files of a tokenizer of `testdata/text/tokenizers`.
pub fn with_tokenizer(case: &str, tokenizer: &str) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(dir(case).join(name), copy.path().join(name)).unwrap();
    }
    let from = testdata("text/tokenizers").join(tokenizer);
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(name), copy.path().join(name)).unwrap();
    }
    copy
}

/// A copy of a checkpoint's model with a changed config.json.
pub fn with_config(case: &str, change: impl FnOnce(&mut Value)) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(
        dir(case).join("model.safetensors"),
        copy.path().join("model.safetensors"),
    )
    .unwrap();
    let text = std::fs::read_to_string(dir(case).join("config.json")).unwrap();
    let mut config = serde_json::from_str(&text).unwrap();
    change(&mut config);
    std::fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    copy
}
