//! The tiny checkpoints of `testdata/embed/golden.json`, whose weights follow a formula.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use mlx_infer::mlx_core::{Array, save_safetensors};
use mlx_infer::{LoadOptions, LoadedModel};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The results of sentence-transformers; `xtask/golden/embed.py` wrote them.
pub static GOLDEN: LazyLock<Value> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/embed/golden.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
});

/// The case of this name.
pub fn case(name: &str) -> &'static Value {
    let cases = GOLDEN["cases"].as_array().unwrap();
    cases.iter().find(|case| case["name"] == name).unwrap()
}

/// The texts or pairs that the cases are about.
pub fn texts() -> Vec<String> {
    serde_json::from_value(GOLDEN["texts"].clone()).unwrap()
}

pub fn pairs() -> Vec<(String, String)> {
    serde_json::from_value(GOLDEN["pairs"].clone()).unwrap()
}

/// The checkpoint of a case, in a folder.
pub fn folder(case: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in case["files"].as_object().unwrap() {
        write(dir.path(), name, content);
    }
    let kind = case["tokenizer"].as_str().unwrap();
    let tokenizers = &GOLDEN["tokenizers"];
    let mut tokenizer = match &tokenizers[kind] {
        Value::Null => tokenizers["bytes"].clone(),
        found => found.clone(),
    };
    tokenizer["post_processor"] = GOLDEN["post_processors"][kind].clone();
    write(dir.path(), "tokenizer.json", &tokenizer);
    for (file, tensors) in case["tensors"].as_object().unwrap() {
        let tensors = tensors.as_array().unwrap().iter().map(tensor);
        let tensors: Vec<(String, Array)> = tensors.collect();
        fs::create_dir_all(dir.path().join(file).parent().unwrap()).unwrap();
        let named = tensors.iter().map(|(name, array)| (name.as_str(), array));
        save_safetensors(dir.path().join(file), named).unwrap();
    }
    dir
}

/// Writes a JSON file below a folder.
pub fn write(dir: &Path, name: &str, content: &Value) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content.to_string()).unwrap();
}

pub fn load(dir: &Path) -> LoadedModel {
    LoadedModel::load(dir, LoadOptions::default()).unwrap()
}

/// A tensor from its row: name, shape, center, spread, and the name that draws its values if it is another.
fn tensor(row: &Value) -> (String, Array) {
    let name = row[0].as_str().unwrap().to_owned();
    let drawn = row[4].as_str().unwrap_or(&name);
    let shape: Vec<i32> = serde_json::from_value(row[1].clone()).unwrap();
    let (center, spread) = (row[2].as_f64().unwrap(), row[3].as_f64().unwrap());
    let count = shape.iter().product::<i32>() as u32;
    let seed = drawn.bytes().fold(2_166_136_261u32, |seed, byte| {
        (seed ^ u32::from(byte)).wrapping_mul(16_777_619)
    });
    let value = |index: u32| {
        let mut x = seed.wrapping_add(index.wrapping_mul(2_654_435_761));
        x = (x ^ (x >> 16)).wrapping_mul(0x7FEB_352D);
        x = (x ^ (x >> 15)).wrapping_mul(0x846C_A68B);
        x ^= x >> 16;
        (center + 2.0 * spread * (f64::from(x >> 8) / 16_777_216.0 - 0.5)) as f32
    };
    let values: Vec<f32> = (0..count).map(value).collect();
    (name, Array::from_slice(&values, &shape).unwrap())
}

/// A case with another value of a key in a file; the last keys of the change take precedence.
pub fn mutated(case: &Value, mutation: &Value) -> Value {
    let mut case = case.clone();
    let parts = mutation.as_array().unwrap();
    let file = &mut case["files"][parts[0].as_str().unwrap()];
    for change in parts[1..].chunks(2) {
        file[change[0].as_str().unwrap()] = change[1].clone();
    }
    case
}

/// A case whose config has other entries.
pub fn with_config(case: &Value, entries: Value) -> Value {
    let mut case = case.clone();
    let config = case["files"]["config.json"].as_object_mut().unwrap();
    for (key, value) in entries.as_object().unwrap() {
        config.insert(key.clone(), value.clone());
    }
    case["mutations"] = json!([]);
    case
}

/// A case as `AutoModel` saves it: no output head, and no prefix before the names of tensors. Its head is not tied.
pub fn headless(name: &str) -> Value {
    let mut case = with_config(case(name), json!({"tie_word_embeddings": false}));
    // The values of a tensor follow from its name in the whole checkpoint.
    let tensors = case["tensors"]["model.safetensors"].as_array_mut().unwrap();
    for row in tensors {
        let name = row[0].as_str().unwrap().to_owned();
        let bare = name.strip_prefix("model.").unwrap().to_owned();
        let row = row.as_array_mut().unwrap();
        row[0] = bare.into();
        row.push(name.into());
    }
    case
}
