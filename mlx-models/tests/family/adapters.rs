//! Adapters of the family: under the published names of modules, and on both sets of modules.

use std::collections::BTreeMap;
use std::fs;

use mlx_core::{Array, DType, random, safetensors};
use mlx_models::adapter;
use mlx_nn::LoraConfig;
use mlx_nn::lora::attach;
use serde_json::json;

use super::toy::{HIDDEN, INTERMEDIATE};
use super::{Tensors, folder, loaded, logits, off, parameters, published};

/// `name` of a published checkpoint with `scale * b @ a` added.
fn merged(mut tensors: Tensors, name: &str, a: &Array, b: &Array, scale: f32) -> Tensors {
    let delta = b.matmul(a).unwrap().multiply(scale).unwrap();
    let sum = tensors[name].add(&delta).unwrap();
    tensors.insert(name.to_owned(), sum);
    tensors
}

#[test]
fn adapters_of_published_modules_are_split_as_their_matrices() {
    let tensors = published();
    let normal = |shape: &[i32], seed| {
        random::normal_with(
            &random::Key::new(seed).unwrap(),
            shape,
            DType::F32,
            0.0,
            0.3,
        )
        .unwrap()
    };
    let (a, b) = (normal(&[4, HIDDEN], 1), normal(&[128, 4], 2));
    let module = "transformer.h.0.attn.qkv";
    let expected = merged(tensors.clone(), &format!("{module}.weight"), &a, &b, 2.0);
    let expected = logits(&loaded(folder(&expected).path()));
    let adapter = |module: &str, target: &str, a: &Array, b: &Array| {
        let dir = tempfile::tempdir().unwrap();
        let settings =
            json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": [target]});
        fs::write(dir.path().join(adapter::CONFIG), settings.to_string()).unwrap();
        let name = |part| format!("base_model.model.{module}.lora_{part}.weight");
        let arrays = [(name("A"), a), (name("B"), b)];
        let arrays = arrays.iter().map(|(name, array)| (name.as_str(), *array));
        let path = dir.path().join("adapter_model.safetensors");
        safetensors::save(path, arrays, &BTreeMap::new()).unwrap();
        dir
    };
    let mut model = loaded(folder(&tensors).path());
    let before = logits(&model);
    let read = adapter::load(adapter(module, "qkv", &a, &b).path(), model.model.as_mut()).unwrap();
    assert_eq!(read.names.len(), 6);
    let off = off(&logits(&model), &expected);
    assert!(off < 1e-4, "off by {off}");
    assert_ne!(before, expected);
    // A layer has the same inputs and outputs if files have its matrix transposed.
    let (a, b) = (normal(&[4, INTERMEDIATE], 3), normal(&[HIDDEN, 4], 4));
    let module = "transformer.h.1.mlp.down_proj";
    let name = format!("{module}.weight");
    let expected = merged(
        tensors.clone(),
        &name,
        &b.t().unwrap(),
        &a.t().unwrap(),
        2.0,
    );
    let expected = logits(&loaded(folder(&expected).path()));
    let mut model = loaded(folder(&tensors).path());
    let dir = adapter(module, "down_proj", &a, &b);
    adapter::load(dir.path(), model.model.as_mut()).unwrap();
    let off = super::off(&logits(&model), &expected);
    assert!(off < 1e-4, "off by {off}");
    assert_ne!(before, expected);
}

#[test]
fn both_sets_take_new_adapters() {
    let mut model = loaded(folder(&published()).path());
    let before = logits(&model);
    let key = random::Key::new(5).unwrap();
    let taken = attach(model.model.as_mut(), &LoraConfig::default(), &key, |_| true).unwrap();
    assert_eq!(logits(&model), before);
    for layer in [
        "mtp.fc",
        "mtp.layers.0.self_attn.q_proj",
        "model.layers.1.rec.in_proj",
    ] {
        assert!(taken.iter().any(|name| name == layer), "{layer}: {taken:?}");
    }
    // Adapters that were written for these modules can be read again.
    let dir = tempfile::tempdir().unwrap();
    let settings = json!({"fine_tune_type": "lora", "num_layers": -1,
        "lora_parameters": {"rank": 8, "scale": 20.0, "dropout": 0.0, "keys": []}});
    fs::write(dir.path().join(adapter::CONFIG), settings.to_string()).unwrap();
    let mut arrays = parameters(&model);
    arrays.retain(|name, _| mlx_nn::lora::adapt::is_adapter(name));
    let ones = |(name, array): (String, Array)| (name, array.add(0.01).unwrap());
    let arrays: Tensors = arrays.into_iter().map(ones).collect();
    let pairs = arrays.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(dir.path().join(adapter::WEIGHTS), pairs, &BTreeMap::new()).unwrap();
    let read = adapter::load(dir.path(), model.model.as_mut()).unwrap();
    assert_eq!(read.names.len(), 2 * taken.len());
    assert_ne!(logits(&model), before);
}
