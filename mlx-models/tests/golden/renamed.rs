//! Families that transformers lacks and that compute the same as Llama. A golden of Llama gives the
//! same numbers when its tensors and keys have the names of the family.

use std::collections::BTreeMap;

use mlx_core::{Array, DType, Result, Safetensors, fast, ops, safetensors};
use mlx_models::{LoadOptions, Loaded, load_from};
use serde_json::Value;

use super::case::Case;
use super::run::prompt_logits;

/// The families that this file tests.
pub const FAMILIES: [&str; 1] = ["internlm2"];

/// The tensors of a case, by name.
pub fn tensors(case: &Case) -> BTreeMap<String, Array> {
    let mut found = BTreeMap::new();
    for file in case.files() {
        for name in file.names() {
            found.insert(name.to_owned(), file.array(name).unwrap());
        }
    }
    found
}

/// InternLM 2: q, k and v are one matrix, in which each head of keys follows the heads of its queries.
fn internlm2(
    mut tensors: BTreeMap<String, Array>,
    layers: usize,
    groups: i32,
) -> Vec<(String, Array)> {
    let mut renamed = Vec::new();
    for layer in 0..layers {
        let from = format!("model.layers.{layer}");
        let [q, k, v] = ["q", "k", "v"].map(|name| {
            let matrix = tensors.remove(&format!("{from}.self_attn.{name}_proj.weight"));
            let matrix = matrix.unwrap();
            let [rows, columns] = [matrix.shape()[0], matrix.shape()[1]];
            matrix.reshape(&[groups, rows / groups, columns]).unwrap()
        });
        let columns = q.shape()[2];
        let fused = ops::shape::concat(&[q, k, v], 1).unwrap();
        let fused = fused.reshape(&[-1, columns]).unwrap();
        renamed.push((format!("{from}.attention.wqkv.weight"), fused));
    }
    let names = [
        ("self_attn.o_proj", "attention.wo"),
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
        ("embed_tokens", "tok_embeddings"),
        ("lm_head", "output"),
    ];
    for (name, array) in tensors {
        let new = names
            .iter()
            .fold(name, |name, (from, to)| name.replace(from, to));
        renamed.push((new, array));
    }
    renamed
}

/// RWKV 7: the first published files have the six mixes of a layer in one tensor. A norm that only the embeddings go through
/// can be computed before, and biases of 0 can be missing.
#[test]
fn older_files_and_options_of_rwkv7() {
    let case = Case::all()
        .into_iter()
        .find(|case| case.name == "rwkv7")
        .unwrap();
    let mut config = case.config("config.json");
    let mut all = tensors(&case);
    for layer in 0..config["num_hidden_layers"].as_u64().unwrap() {
        let mixes = ["r", "w", "k", "v", "a", "g"].map(|name| {
            let name = format!("model.layers.{layer}.attn.x_{name}");
            all.remove(&name).unwrap().reshape(&[1, -1]).unwrap()
        });
        let joined = ops::shape::concat(&mixes, 0).unwrap();
        all.insert(format!("model.layers.{layer}.attn.x_x"), joined);
    }
    let named = |all: &BTreeMap<String, Array>| all.clone().into_iter().collect::<Vec<_>>();
    same_as_golden(&case, "rwkv7", config.clone(), &named(&all));
    let [weight, bias] = ["weight", "bias"].map(|part| {
        let name = format!("model.layers.0.pre_norm.{part}");
        all.remove(&name).unwrap().astype(DType::F32).unwrap()
    });
    let table = all.get_mut("model.embeddings.weight").unwrap();
    let wide = table.astype(DType::F32).unwrap();
    let eps = config["norm_eps"].as_f64().unwrap() as f32;
    *table = fast::layer_norm(&wide, Some(&weight), Some(&bias), eps).unwrap();
    config["norm_first"] = false.into();
    same_as_golden(&case, "rwkv7", config.clone(), &named(&all));
    let is_norm = |name: &str| name.ends_with("norm.bias") && !name.ends_with("g_norm.bias");
    let norms: Vec<String> = all.keys().filter(|name| is_norm(name)).cloned().collect();
    assert_eq!(norms.len(), 7);
    let mut bare = all.clone();
    for name in norms {
        bare.remove(&name);
        all.insert(name.clone(), all[&name].multiply(0.0).unwrap());
    }
    let logits = |config: &Value, all: &BTreeMap<String, Array>| {
        let model = loaded("rwkv7", config.clone(), &named(all)).unwrap();
        prompt_logits(&model, &case.prompts[0])
            .unwrap()
            .to_vec::<f32>()
            .unwrap()
    };
    let expected = logits(&config, &all);
    config["norm_bias"] = false.into();
    assert_eq!(logits(&config, &bare), expected);
}

/// Models for embeddings are published without the output head and without the prefix `model.`.
#[test]
fn names_without_the_prefix() {
    let case = Case::all()
        .into_iter()
        .find(|case| case.name == "llama_tied")
        .unwrap();
    let config = case.config("config.json");
    let bare = tensors(&case).into_iter();
    let bare: Vec<_> = bare
        .map(|(name, array)| (name.strip_prefix("model.").unwrap().to_owned(), array))
        .collect();
    same_as_golden(&case, "llama", config.clone(), &bare);
    // Without the tie there is no head.
    let mut untied = config;
    untied["tie_word_embeddings"] = false.into();
    let headless = loaded("llama", untied, &bare).unwrap();
    let error = prompt_logits(&headless, &case.prompts[0]).unwrap_err();
    assert!(error.to_string().contains("lm_head.weight"), "{error}");
}

#[test]
fn internlm2_is_llama_under_other_names() {
    let case = Case::all()
        .into_iter()
        .find(|case| case.name == "llama_llama3")
        .unwrap();
    let mut config = case.config("config.json");
    let [layers, groups] =
        ["num_hidden_layers", "num_key_value_heads"].map(|key| config[key].as_u64().unwrap());
    config["model_type"] = "internlm2".into();
    config["bias"] = false.into();
    let renamed = internlm2(tensors(&case), layers as usize, groups as i32);
    same_as_golden(&case, "internlm2", config, &renamed);
}

/// The model, in F32, of a config and of tensors that are written to a file first.
pub fn loaded(kind: &str, config: Value, tensors: &[(String, Array)]) -> Result<Loaded> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let arrays = tensors.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(&path, arrays, &BTreeMap::new()).unwrap();
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    load_from(kind, config, vec![Safetensors::open(&path)?], options)
}

/// The tensors under other names give the log probabilities of the case's prompts.
pub fn same_as_golden(case: &Case, kind: &str, config: Value, tensors: &[(String, Array)]) {
    let model = loaded(kind, config, tensors).unwrap();
    assert_eq!(model.info.model_type, kind);
    for (index, prompt) in case.prompts.iter().enumerate() {
        let golden = case.golden(index);
        let found = golden.shown(&prompt_logits(&model, prompt).unwrap());
        let off = super::super::difference(&found.unwrap(), &golden.log_probs);
        assert!(off < case.tolerance, "off by {off}");
    }
}
