//! A family that is not part of this crate, added through the public API. `toy.rs` has the family.
//! This file tests it like the crate's own families.

mod adapters;
#[path = "../shared/parameters.rs"]
#[allow(dead_code, reason = "shared with tests of checkpoints")]
mod shared;
mod toy;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mlx_core::{Array, DType, QuantMode, Safetensors, Scheme, random, safetensors};
use mlx_models::convert::{ConvertOptions, Converted, Packing, Recipe, convert_with};
use mlx_models::{LoadOptions, Loaded, Registry, open_weights};
use mlx_nn::{CacheOptions, LayerKind, ModelCache};
use serde_json::{Value, json};
use shared::{Tensors, parameters};
use toy::{HIDDEN, INTERMEDIATE, LARGE, SMALL, VOCAB};

fn registry() -> Registry {
    Registry::default().with(toy::FAMILY)
}

fn config() -> Value {
    json!({"model_type": "toy", "sliding_window": 8})
}

/// The tensors of a published checkpoint. The random numbers of each have its name as their seed.
fn published() -> Tensors {
    let mut tensors = Tensors::new();
    let mut add = |name: &str, shape: &[i32], deviation: f32| {
        let seed = name
            .bytes()
            .fold(7u64, |seed, byte| seed * 31 % 1_000_003 + u64::from(byte));
        let key = random::Key::new(seed).unwrap();
        let array = random::normal_with(&key, shape, DType::F32, 0.0, deviation).unwrap();
        tensors.insert(name.to_owned(), array);
    };
    let matrix = 0.15;
    add("transformer.wte.weight", &[VOCAB, HIDDEN], 0.7);
    add("transformer.norm.weight", &[HIDDEN], 0.3);
    let layers = [
        ("transformer.h.0", Some(SMALL)),
        ("transformer.h.1", None),
        ("transformer.h.2", Some(LARGE)),
        ("mtp.layers.0", Some(LARGE)),
    ];
    for (layer, attention) in layers {
        let mut add = |name: &str, shape: &[i32], deviation| {
            add(&format!("{layer}.{name}"), shape, deviation);
        };
        match attention {
            Some([heads, kv, dim]) => {
                add("attn.qkv.weight", &[(heads + 2 * kv) * dim, HIDDEN], matrix);
                add("attn.qkv.bias", &[(heads + 2 * kv) * dim], 0.5);
                add("attn.out.weight", &[HIDDEN, heads * dim], matrix);
                add("attn.mask", &[1, 1], 1.0);
            }
            None => {
                add("rec.in_proj.weight", &[HIDDEN, HIDDEN], matrix);
                add("rec.conv1d.weight", &[HIDDEN, 1, 4], 0.5);
                add("rec.decay", &[HIDDEN], 1.0);
                add("rec.out_proj.weight", &[HIDDEN, HIDDEN], matrix);
            }
        }
        add("input_layernorm.weight", &[HIDDEN], 0.3);
        add("post_attention_layernorm.weight", &[HIDDEN], 0.3);
        add("mlp.gate_up.weight", &[2 * INTERMEDIATE, HIDDEN], matrix);
        add("mlp.down_proj.weight", &[INTERMEDIATE, HIDDEN], matrix);
    }
    add("mtp.fc.weight", &[HIDDEN, 2 * HIDDEN], matrix);
    for norm in ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"] {
        add(&format!("mtp.{norm}.weight"), &[HIDDEN], 0.3);
    }
    tensors
}

fn folder(tensors: &Tensors) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config().to_string()).unwrap();
    let arrays = tensors.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(
        dir.path().join("model.safetensors"),
        arrays,
        &BTreeMap::new(),
    )
    .unwrap();
    dir
}

fn loaded(dir: &Path) -> Loaded {
    registry().load(dir, LoadOptions::default()).unwrap()
}

fn refused(tensors: &Tensors) -> String {
    match registry().load(folder(tensors).path(), LoadOptions::default()) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    }
}

fn cache(model: &Loaded, rows: usize) -> ModelCache {
    ModelCache::new(model.model.states(), rows, CacheOptions::default())
}

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32)
        .map(|at| (at * at * 5 + at * seed + seed) % VOCAB as u32)
        .collect()
}

/// The logits of each row's tokens.
fn step(model: &Loaded, cache: &mut ModelCache, rows: &[&[u32]]) -> Vec<Vec<f32>> {
    let widths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
    let ids = rows.concat();
    let input = Array::from_slice(&ids, &[1, ids.len() as i32]).unwrap();
    let mut step = cache.begin(&widths).unwrap();
    let hidden = model.model.hidden(&input, &mut step).unwrap();
    step.commit_all().unwrap();
    let logits = model
        .model
        .logits(&hidden)
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    let mut rest = logits.as_slice();
    let rows = widths.iter().map(|&width| {
        let own;
        (own, rest) = rest.split_at(width * VOCAB as usize);
        own.to_vec()
    });
    rows.collect()
}

fn logits(model: &Loaded) -> Vec<f32> {
    step(model, &mut cache(model, 1), &[&tokens(20, 3)]).remove(0)
}

fn off(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

fn converted(from: &Path, to: &Path, packing: Packing) -> Converted {
    let config = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    let options = ConvertOptions {
        packing,
        ..ConvertOptions::default()
    };
    let files = open_weights(from).unwrap();
    convert_with(
        &registry(),
        "here",
        config,
        files,
        to,
        &options,
        &mut |_, _| Ok(()),
    )
    .unwrap()
}

#[test]
fn published_tensors_become_parameters() {
    let tensors = published();
    let model = loaded(folder(&tensors).path());
    assert_eq!(model.info.model_type, "toy");
    assert_eq!(model.info.unread_keys, Vec::<String>::new());
    let found = parameters(&model);
    let (raw, same) = (
        |name: &str| &tensors[name],
        |a: &Array, b: &Array| a.array_equal(b).unwrap().item::<bool>().unwrap(),
    );
    // Two groups of [q q k v], heads of 16.
    let fused = raw("transformer.h.0.attn.qkv.weight")
        .reshape(&[2, 4, 16, HIDDEN])
        .unwrap();
    let part = |from, to| {
        fused
            .slice_axis(1, from, to)
            .unwrap()
            .reshape(&[-1, HIDDEN])
            .unwrap()
    };
    let attention = "model.layers.0.self_attn";
    assert!(same(
        &found[&format!("{attention}.q_proj.weight")],
        &part(0, 2)
    ));
    assert!(same(
        &found[&format!("{attention}.k_proj.weight")],
        &part(2, 3)
    ));
    assert!(same(
        &found[&format!("{attention}.v_proj.weight")],
        &part(3, 4)
    ));
    let up = raw("mtp.layers.0.mlp.gate_up.weight");
    let up = up.slice_axis(0, INTERMEDIATE, 2 * INTERMEDIATE).unwrap();
    assert!(same(&found["mtp.layers.0.mlp.up_proj.weight"], &up));
    let down = raw("transformer.h.1.mlp.down_proj.weight").t().unwrap();
    assert!(same(&found["model.layers.1.mlp.down_proj.weight"], &down));
    let norm = raw("mtp.pre_fc_norm_hidden.weight").add(1.0).unwrap();
    assert!(same(&found["mtp.pre_fc_norm_hidden.weight"], &norm));
    let kernel = raw("transformer.h.1.rec.conv1d.weight")
        .reshape(&[HIDDEN, 4, 1])
        .unwrap();
    assert!(same(&found["model.layers.1.rec.conv1d.weight"], &kernel));
    // Without the family the type is unknown.
    let error = mlx_models::load(folder(&tensors).path(), LoadOptions::default());
    let error = error.err().unwrap().to_string();
    assert!(
        error.contains("\"toy\" is not supported; known: llama"),
        "{error}"
    );
}

#[test]
fn decode_equals_prefill_and_a_batch_its_rows() {
    let model = loaded(folder(&published()).path());
    let rows: Vec<Vec<u32>> = [3, 17, 9]
        .iter()
        .zip(1..)
        .map(|(&n, seed)| tokens(n + 6, seed))
        .collect();
    let whole: Vec<Vec<f32>> = rows
        .iter()
        .map(|row| step(&model, &mut cache(&model, 1), &[row]).remove(0))
        .collect();
    let mut batch = cache(&model, rows.len());
    let mut found = vec![Vec::new(); rows.len()];
    for at in 0..=6 {
        let part = |row: &'_ Vec<u32>| -> std::ops::Range<usize> {
            let prompt = row.len() - 6;
            if at == 0 {
                0..prompt
            } else {
                prompt + at - 1..prompt + at
            }
        };
        let parts: Vec<&[u32]> = rows.iter().map(|row| &row[part(row)]).collect();
        for (found, new) in found.iter_mut().zip(step(&model, &mut batch, &parts)) {
            found.extend(new);
        }
    }
    for (found, expected) in found.iter().zip(&whole) {
        let off = off(found, expected);
        assert!(off < 1e-4, "off by {off}");
    }
}

#[test]
fn layers_of_different_geometry_cost_what_they_say() {
    let model = loaded(folder(&published()).path());
    let sizes = model.model.geometry();
    let kinds = [
        LayerKind::Window(8),
        LayerKind::Recurrent(toy::STATE),
        LayerKind::Full,
    ];
    assert_eq!(model.model.states(), kinds);
    let options = CacheOptions {
        ..CacheOptions::default()
    };
    let costs = sizes.costs(DType::F32, &options).unwrap();
    let bytes: Vec<(usize, usize)> = costs
        .iter()
        .map(|cost| (cost.row_bytes, cost.position_bytes))
        .collect();
    // Keys and values: 2 heads of 16, and 1 head of 32; three inputs and a sum of 64.
    assert_eq!(bytes, [(0, 256), (1024, 0), (0, 256)]);
    let mut cache = ModelCache::new(model.model.states(), 1, options);
    step(&model, &mut cache, &[&tokens(20, 3)]);
    let expected: usize = costs.iter().map(|cost| cost.bytes(20)).sum();
    assert_eq!(cache.nbytes(), expected);
}

#[test]
fn a_conversion_has_the_form_of_mlx_and_loads_the_same() {
    let (raw, [dense, packed, again, back]) = (
        folder(&published()),
        [(); 4].map(|()| tempfile::tempdir().unwrap()),
    );
    let expected = logits(&loaded(raw.path()));
    converted(raw.path(), dense.path(), Packing::Keep);
    let file = Safetensors::open(dense.path().join("model.safetensors")).unwrap();
    let shape = |name: &str| file.info(name).map(|(_, shape)| shape.to_vec()).unwrap();
    // The matrix that is fused in MLX's files is fused again, and the other tensors are as in the model.
    assert_eq!(shape("model.layers.0.attn.qkv.weight"), [128, HIDDEN]);
    assert_eq!(shape("model.layers.0.attn.qkv.bias"), [128]);
    assert_eq!(
        shape("mtp.layers.0.mlp.up_proj.weight"),
        [INTERMEDIATE, HIDDEN]
    );
    assert_eq!(shape("model.layers.1.rec.conv1d.weight"), [HIDDEN, 4, 1]);
    assert!(
        !file
            .names()
            .any(|name| name.contains("q_proj") || name.contains("mask"))
    );
    assert_eq!(logits(&loaded(dense.path())), expected);

    let recipe = Recipe::uniform(Scheme::new(32, 4, QuantMode::Affine).unwrap());
    let told = converted(raw.path(), packed.path(), Packing::Quantize(recipe));
    assert_eq!(told.left_dense, Vec::<String>::new());
    let config: Value =
        serde_json::from_slice(&fs::read(packed.path().join("config.json")).unwrap()).unwrap();
    // The second set of modules has its own rule: 8 bits for its layer, and a dense fc.
    let eight = json!({"group_size": 64, "bits": 8, "mode": "affine"});
    assert_eq!(config["quantization"]["mtp.layers.0.attn.qkv"], eight);
    let quantized = loaded(packed.path());
    let found = parameters(&quantized);
    assert_eq!(found["mtp.fc.weight"].dtype(), DType::F32);
    assert_eq!(
        found["mtp.layers.0.self_attn.k_proj.weight"].shape(),
        [32, 16]
    );
    assert_eq!(
        found["model.layers.2.self_attn.k_proj.weight"].shape(),
        [32, 8]
    );
    let rounded = logits(&quantized);
    assert_ne!(rounded, expected);
    converted(packed.path(), again.path(), Packing::Keep);
    assert_eq!(logits(&loaded(again.path())), rounded);
    converted(packed.path(), back.path(), Packing::Dequantize);
    let off = off(&logits(&loaded(back.path())), &rounded);
    assert!(off < 1e-3, "off by {off}");
    // Saving the model from memory writes the same form.
    let saved = tempfile::tempdir().unwrap();
    let Value::Object(config) = config else {
        panic!("an object was written");
    };
    mlx_models::convert::save(quantized.model.as_ref(), &config, saved.path()).unwrap();
    assert_eq!(logits(&loaded(saved.path())), rounded);
}

#[test]
fn a_second_set_is_there_absent_or_an_error() {
    let tensors = published();
    let both = loaded(folder(&tensors).path());
    let without: Tensors = tensors
        .iter()
        .filter(|(name, _)| !name.starts_with("mtp."))
        .map(|(name, array)| (name.clone(), array.clone()))
        .collect();
    let plain = loaded(folder(&without).path());
    assert!(plain.info.n_parameters < both.info.n_parameters);
    assert_eq!(logits(&plain), logits(&both));
    // One report covers both sets.
    let mut half = tensors.clone();
    half.remove("mtp.fc.weight").unwrap();
    half.remove("transformer.norm.weight").unwrap();
    half.insert(
        "mtp.norm.weight".into(),
        Array::from_slice(&[1.0f32; 3], &[3]).unwrap(),
    );
    half.insert(
        "mtp.extra".into(),
        Array::from_slice(&[1.0f32; 3], &[3]).unwrap(),
    );
    let error = refused(&half);
    for part in [
        "2 missing: model.norm.weight [64]; mtp.fc.weight [64, 128]",
        "1 unexpected: mtp.extra",
        "1 misshapen: mtp.norm.weight: expected [64], found [3]",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let made = registry().initialised("here", config(), 3).unwrap();
    assert_eq!(made.info.n_parameters, plain.info.n_parameters);
}
