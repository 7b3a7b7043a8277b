//! Every key of every family's config.json has the effect that it has in transformers, or no effect if it has none
//! there.

#[path = "shared/checkpoints.rs"]
mod checkpoints;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use checkpoints::checkpoint;
use mlx_core::{Array, DType, Result};
use mlx_models::{LoadOptions, Loaded, Registry, known_types, load_from};
use mlx_nn::{CacheOptions, ModelCache};
use serde_json::{Value, json};

const TOLERANCE: f64 = 2e-4;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models")
}

fn read(path: PathBuf) -> Value {
    mlx_models::config::parse(&std::fs::read(path).unwrap()).unwrap()
}

fn loaded(dir: &Path, config: Value) -> Result<Loaded> {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    load_from("here", config, mlx_models::open_weights(dir)?, options)
}

/// Log probabilities of the first tokens after the prompt.
fn logprobs(loaded: &Loaded, prompt: &[u32]) -> Result<Vec<f32>> {
    let model = loaded.model.as_ref();
    let n = prompt.len();
    let mut cache = ModelCache::new(model.states(), 1, CacheOptions::default());
    cache.expect(0, n);
    let input = Array::from_slice(prompt, &[1, n as i32])?;
    let mut step = cache.begin(&[n])?;
    let hidden = model.hidden(&input, &mut step)?;
    let logits = model.logits(&hidden.slice_axis(1, n as i32 - 1, n as i32)?)?;
    logits.subtract(logits.logsumexp(-1, true)?)?.to_vec()
}

fn changed(config: &Value, change: &Value) -> Value {
    let mut config = config.clone();
    let nested = config.get("text_config").is_some();
    let target = if nested {
        &mut config["text_config"]
    } else {
        &mut config
    };
    let target = target.as_object_mut().unwrap();
    for (key, value) in change.as_object().unwrap() {
        if value == "absent" {
            target.shift_remove(key);
        } else {
            target.insert(key.clone(), value.clone());
        }
    }
    config
}

/// A family without cases could ignore any key.
#[test]
fn every_family_has_cases() {
    let table = read(models().join("config_keys.json"));
    let mut found = BTreeSet::new();
    for family in table["families"].as_array().unwrap() {
        let case = family["case"].as_str().unwrap();
        let config = read(models().join(case).join("config.json"));
        let types = [&config["model_type"], &config["text_config"]["model_type"]];
        found.extend(
            types
                .into_iter()
                .filter_map(Value::as_str)
                .map(str::to_owned),
        );
    }
    let registry = Registry::default();
    let has_cases = |known: &&str| {
        let family = registry.family(known).unwrap();
        family.types.iter().any(|&name| found.contains(name))
    };
    let types = known_types().into_iter();
    // transformers has no class that reads the config of these families.
    const WITHOUT: [&str; 11] = [
        "internlm2",
        "baichuan_m1",
        "bailing_moe",
        "bailing_moe_linear",
        "bailing_moe_v2",
        "deepseek_v41",
        "deepseek_v41_text",
        "phi3small",
        "plamo2",
        "plamo3",
        "rwkv7",
    ];
    let types = types.filter(|known| !WITHOUT.contains(known));
    let missing: Vec<_> = types.filter(|known| !has_cases(known)).collect();
    assert!(missing.is_empty(), "families without cases: {missing:?}");
}

/// The cases of the golden, and the number of them that transformers computes.
#[test]
fn keys_have_the_effect_that_they_have_in_transformers() {
    let table = read(models().join("config_keys.json"));
    let prompt: Vec<u32> = serde_json::from_value(table["prompt"].clone()).unwrap();
    let mut faults = Vec::new();
    let mut compared = 0;
    for family in table["families"].as_array().unwrap() {
        let (case, file) = (
            family["case"].as_str().unwrap(),
            family["config"].as_str().unwrap(),
        );
        let dir = checkpoint(case);
        let config = read(dir.join(file));
        let change = |number: &Value| &table["changes"][number.as_u64().unwrap() as usize];
        // Where transformers fails, this project may compute a result or refuse.
        for number in family["refused"].as_array().unwrap() {
            let _ = loaded(&dir, changed(&config, change(number)));
        }
        let unchanged = &family["unchanged"];
        let same = family["same"].as_array().unwrap().iter();
        let same = same.map(|number| (change(number), unchanged));
        let others = family["others"].as_object().unwrap().iter();
        let others = others
            .map(|(number, logprobs)| (change(&json!(number.parse::<u64>().unwrap())), logprobs));
        let nothing = json!({});
        for (change, expected) in [(&nothing, unchanged)]
            .into_iter()
            .chain(same)
            .chain(others)
        {
            compared += 1;
            let found = loaded(&dir, changed(&config, change))
                .and_then(|loaded| logprobs(&loaded, &prompt));
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    faults.push(format!("{case} {file} {change}: {error}"));
                    continue;
                }
            };
            let pairs = expected.as_array().unwrap().iter().zip(&found);
            let off = pairs
                .map(|(a, b)| (a.as_f64().unwrap() - f64::from(*b)).abs())
                .fold(0.0, f64::max);
            if off.is_nan() || off > TOLERANCE {
                faults.push(format!("{case} {file} {change}: off by {off}"));
            }
        }
    }
    assert!(compared > 1000, "{compared} cases");
    assert!(
        faults.is_empty(),
        "{} of {compared}:\n{}",
        faults.len(),
        faults.join("\n")
    );
}
