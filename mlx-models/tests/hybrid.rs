//! Decoders with recurrent layers: the forms of their checkpoints, and the checkpoints that are
//! refused.

#[path = "shared/parameters.rs"]
mod shared;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mlx_core::{Array, DType, Result, Safetensors, safetensors};
use mlx_models::{LoadOptions, Loaded, load_from, open_weights};
use mlx_nn::{CacheOptions, LayerKind, ModelCache};
use serde_json::{Value, json};

use shared::{Tensors, parameters, same};

fn dir(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/models")
        .join(case)
}

fn config(case: &str) -> Value {
    serde_json::from_slice(&std::fs::read(dir(case).join("config.json")).unwrap()).unwrap()
}

/// The tensors of a case, in F32.
fn published(case: &str) -> Tensors {
    let mut tensors = Tensors::new();
    for file in open_weights(&dir(case)).unwrap().files() {
        for name in file.names() {
            let array = file.array(name).unwrap().astype(DType::F32).unwrap();
            tensors.insert(name.to_owned(), array);
        }
    }
    tensors
}

fn from(config: Value, tensors: &Tensors, dtype: Option<DType>) -> Result<Loaded> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let arrays = tensors.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(&path, arrays, &BTreeMap::new())?;
    let files = vec![Safetensors::open(&path)?];
    let options = LoadOptions {
        dtype,
        ..LoadOptions::default()
    };
    load_from("here", config, files, options)
}

fn loaded(config: Value, tensors: &Tensors) -> Loaded {
    from(config, tensors, None).unwrap()
}

fn refused(config: Value, tensors: &Tensors) -> String {
    match from(config, tensors, None) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    }
}

fn logits(model: &Loaded) -> Vec<f32> {
    let ids: Vec<u32> = (0..40).map(|at| (at * 11 + 5) % 60).collect();
    let mut cache = ModelCache::new(model.model.states(), 1, CacheOptions::default());
    let input = Array::from_slice(&ids, &[1, ids.len() as i32]).unwrap();
    let mut step = cache.begin(&[ids.len()]).unwrap();
    let hidden = model.model.hidden(&input, &mut step).unwrap();
    step.commit_all().unwrap();
    let logits = model.model.logits(&hidden).unwrap();
    logits.astype(DType::F32).unwrap().to_vec().unwrap()
}

/// The rows of one part of a matrix that is stored in `groups` groups of `[parts…]`.
fn rows(matrix: &Array, groups: i32, (from, to): (i32, i32)) -> Array {
    let [n, width] = matrix.dims().unwrap();
    let grouped = matrix.reshape(&[groups, n / groups, width]).unwrap();
    let part = grouped.slice_axis(1, from, to).unwrap();
    part.reshape(&[-1, width]).unwrap()
}

/// Projections that are stored head by head give the same results as separate ones, which this test
/// splits for the later family.
#[test]
fn fused_projections_equal_separate_ones() {
    let mut tensors = published("qwen3_next");
    let fused = loaded(config("qwen3_next"), &tensors);
    let (keys, values) = (8, 2 * 8);
    for layer in [0, 2] {
        let name = |part: &str| format!("model.layers.{layer}.linear_attn.{part}.weight");
        let qkvz = tensors.remove(&name("in_proj_qkvz")).unwrap();
        let ba = tensors.remove(&name("in_proj_ba")).unwrap();
        let part = |from, to| rows(&qkvz, 2, (from, to));
        let qkv = [
            part(0, keys),
            part(keys, 2 * keys),
            part(2 * keys, 2 * keys + values),
        ];
        let qkv = mlx_core::ops::concat(&qkv, 0).unwrap();
        tensors.insert(name("in_proj_qkv"), qkv);
        tensors.insert(
            name("in_proj_z"),
            part(2 * keys + values, 2 * (keys + values)),
        );
        tensors.insert(name("in_proj_b"), rows(&ba, 2, (0, 2)));
        tensors.insert(name("in_proj_a"), rows(&ba, 2, (2, 4)));
    }
    let separate = loaded(config("qwen3_next"), &tensors);
    assert_eq!(logits(&separate), logits(&fused));
    let found = parameters(&fused);
    let name = "model.layers.2.linear_attn.in_proj_qkv.weight";
    assert!(same(&found[name], &tensors[name]));
}

/// Published files and MLX's files give the same model. MLX's files have other axes of
/// convolutions, norms stored without `- 1`, stacked experts, and another prefix.
#[test]
fn both_storage_forms_are_one_model() {
    for (case, prefix) in [("qwen3_5_moe", "language_model."), ("qwen3_next", "")] {
        let tensors = published(case);
        let plain = loaded(config(case), &tensors);
        let expected = logits(&plain);
        // mlx-lm stores tensors in the forms of the model, except for fused projections.
        let stored: Tensors = parameters(&plain)
            .into_iter()
            .map(|(name, array)| (format!("{prefix}{name}"), array))
            .collect();
        let conv = &stored[&format!("{prefix}model.layers.0.linear_attn.conv1d.weight")];
        assert_eq!(conv.shape(), [64, 4, 1], "{case}");
        let norm = |name: &str| stored[&format!("{prefix}model.{name}.weight")].clone();
        let raw = tensors.iter().find(|(name, _)| {
            name.starts_with("model.") && name.ends_with("layers.0.input_layernorm.weight")
        });
        let expected_norm = raw.unwrap().1.add(1.0).unwrap();
        assert!(same(&norm("layers.0.input_layernorm"), &expected_norm));
        let gated = &stored[&format!("{prefix}model.layers.0.linear_attn.norm.weight")];
        let raw = tensors.iter().find(|(name, _)| {
            name.starts_with("model.") && name.ends_with("layers.0.linear_attn.norm.weight")
        });
        assert!(same(gated, raw.unwrap().1), "the gated norm is as it is");
        let mut config = config(case);
        config["mtp_norm_offset"] = json!(0);
        if !config["text_config"].is_null() {
            config["text_config"]["mtp_norm_offset"] = json!(0);
        }
        assert_eq!(logits(&loaded(config, &stored)), expected, "{case}");
    }
}

/// The text model's config alone, under each of its type names.
#[test]
fn a_text_model_needs_no_wrapper() {
    for case in ["qwen3_5", "qwen3_5_moe"] {
        let tensors = published(case);
        let expected = loaded(config(case), &tensors);
        let wrapped = logits(&expected);
        let mut text = config(case)["text_config"].clone();
        text["tie_word_embeddings"] = config(case)["tie_word_embeddings"].clone();
        for name in [case, &format!("{case}_text")] {
            text["model_type"] = json!(name);
            let model = loaded(text.clone(), &tensors);
            assert_eq!(model.info.model_type, name);
            assert_eq!(model.info.unread_keys, Vec::<String>::new());
            assert_eq!(logits(&model), wrapped, "{name}");
        }
        // The head is tied by either config, or because the files have none.
        if case == "qwen3_5" {
            let mut inside = config(case);
            inside["tie_word_embeddings"] = Value::Null;
            inside["text_config"]["tie_word_embeddings"] = json!(true);
            assert_eq!(logits(&loaded(inside, &tensors)), wrapped);
        }
    }
}

#[test]
fn a_head_for_more_tokens_is_a_module_set_of_its_own() {
    let tensors = published("qwen3_5_moe");
    let model = loaded(config("qwen3_5_moe"), &tensors);
    let expected = logits(&model);
    let found = parameters(&model);
    let head: Vec<&String> = found
        .keys()
        .filter(|name| name.starts_with("mtp."))
        .collect();
    assert_eq!(head.len(), 20, "{head:?}");
    assert_eq!(found["mtp.fc.weight"].shape(), [32, 64]);
    let raw = &tensors["mtp.pre_fc_norm_hidden.weight"];
    assert!(same(
        &found["mtp.pre_fc_norm_hidden.weight"],
        &raw.add(1.0).unwrap()
    ));
    let gate = rows(
        &tensors["mtp.layers.0.mlp.experts.gate_up_proj"]
            .flatten_with(0, 1)
            .unwrap(),
        4,
        (0, 8),
    );
    let stacked = found["mtp.layers.0.mlp.switch_mlp.gate_proj.weight"]
        .flatten_with(0, 1)
        .unwrap();
    assert!(same(&stacked, &gate));

    // The head is present as a whole or not at all, and changes no result of the model.
    let without: Tensors = tensors
        .clone()
        .into_iter()
        .filter(|(name, _)| !name.starts_with("mtp."))
        .collect();
    assert_eq!(logits(&loaded(config("qwen3_5_moe"), &without)), expected);
    let mut partial = tensors.clone();
    partial.remove("mtp.layers.0.self_attn.k_proj.weight");
    let error = refused(config("qwen3_5_moe"), &partial);
    assert!(
        error.contains("1 missing: mtp.layers.0.self_attn.k_proj.weight"),
        "{error}"
    );
    let mut dedicated = config("qwen3_5_moe");
    dedicated["text_config"]["mtp_use_dedicated_embeddings"] = json!(true);
    let error = refused(dedicated.clone(), &tensors);
    assert!(
        error.contains("mtp_use_dedicated_embeddings is not supported"),
        "{error}"
    );
    loaded(dedicated, &without);
}

/// Beside a model in MLX's form, the numbers of a head's norms decide in which form they are
/// stored.
#[test]
fn norms_of_a_head_tell_how_they_are_stored() {
    let case = "qwen3_5_text";
    let stored = parameters(&loaded(config(case), &published(case)));
    let with = |mean: f32| -> Tensors {
        let changed = |(name, array): (&String, &Array)| {
            let is_norm = name.starts_with("mtp.") && name.contains("norm");
            let array = match is_norm {
                true => array
                    .subtract(array.mean(.., false).unwrap())
                    .unwrap()
                    .add(mean)
                    .unwrap(),
                false => array.clone(),
            };
            (name.clone(), array)
        };
        stored.iter().map(changed).collect()
    };
    let norm = |tensors: &Tensors, config: Value| {
        let found = parameters(&loaded(config, tensors));
        found["mtp.norm.weight"]
            .mean(.., false)
            .unwrap()
            .item::<f32>()
            .unwrap()
    };
    for (mean, expected) in [(0.05, 1.05), (1.1, 1.1)] {
        let found = norm(&with(mean), config(case));
        assert!((found - expected).abs() < 1e-5, "{mean}: {found}");
    }
    let error = refused(config(case), &with(0.5));
    assert!(
        error.contains(
            "mean weight of 0.50, which is neither near 0 nor near 1; set mtp_norm_offset"
        ),
        "{error}"
    );
    for (offset, expected) in [(0, 0.5), (1, 1.5)] {
        let mut told = config(case);
        told["mtp_norm_offset"] = json!(offset);
        let found = norm(&with(0.5), told);
        assert!((found - expected).abs() < 1e-5, "{offset}: {found}");
    }
}

/// Tensors whose results are computed from F32 numbers stay F32 in files of 16 bits, and the others have the model's
/// dtype.
#[test]
fn decays_are_not_rounded() {
    let tensors = published("qwen3_5");
    let model = from(config("qwen3_5"), &tensors, Some(DType::BF16)).unwrap();
    for (name, array) in parameters(&model) {
        let expected = if name.ends_with("A_log") {
            DType::F32
        } else {
            DType::BF16
        };
        assert_eq!(array.dtype(), expected, "{name}");
    }
    let exact = logits(&loaded(config("qwen3_5"), &tensors));
    let rounded = logits(&model);
    let largest = exact.iter().fold(0f32, |most, x| most.max(x.abs()));
    let off = exact
        .iter()
        .zip(&rounded)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(off < 0.1 * largest, "off by {off} of {largest}");
}

/// Whatever the length of a row, its state in each recurrent layer is a window of inputs and a
/// recurrent state. Any number of a step's tokens can be committed without extra memory.
#[test]
fn layers_keep_what_they_say() {
    let model = loaded(config("qwen3_5_text"), &published("qwen3_5_text"));
    let layers = model.model.states();
    let replays = layers.iter().map(|kind| match kind {
        LayerKind::Recurrent(shape) => Some(shape.can_rerun()),
        _ => None,
    });
    assert_eq!(replays.collect::<Vec<_>>(), [Some(true), None, Some(true)]);
    let costs = model
        .model
        .geometry()
        .costs(DType::BF16, &CacheOptions::default())
        .unwrap();
    let bytes: Vec<[usize; 2]> = costs
        .iter()
        .map(|cost| [cost.row_bytes, cost.position_bytes])
        .collect();
    let recurrent = 3 * 64 * 2 + 4 * 8 * 8 * 4;
    assert_eq!(bytes, [[recurrent, 0], [0, 2 * 16 * 2], [recurrent, 0]]);
}

#[test]
fn configs_of_other_forms_are_refused_by_name() {
    let tensors = published("qwen3_5_text");
    for (key, value, message) in [
        (
            "attn_output_gate",
            json!(false),
            "attn_output_gate false is not supported",
        ),
        (
            "output_gate_type",
            json!("relu"),
            "output_gate_type \"relu\" is not supported; known: swish, silu",
        ),
        (
            "layer_types",
            json!(["mamba", "full_attention", "mamba"]),
            "layer type \"mamba\" is unknown; known: full_attention, linear_attention",
        ),
        (
            "layer_types",
            json!(["full_attention"]),
            "layer_types has 1 entries for 3 layers",
        ),
        (
            "linear_num_value_heads",
            json!(3),
            "linear_num_value_heads 3 is not a multiple of linear_num_key_heads 2",
        ),
        (
            "linear_conv_kernel_dim",
            json!(1),
            "linear_conv_kernel_dim must be in 2..=64, found 1",
        ),
        (
            "linear_key_head_dim",
            json!(9000),
            "2 heads of 9000 are more than any model has",
        ),
        (
            "full_attention_interval",
            json!(0),
            "full_attention_interval must be in",
        ),
    ] {
        let mut wrong = config("qwen3_5_text");
        wrong[key] = value;
        let error = refused(wrong, &tensors);
        assert!(error.contains(message), "{error}");
    }
    let mut wrong = tensors.clone();
    let name = "model.layers.0.linear_attn.conv1d.weight";
    wrong.insert(name.to_owned(), tensors[name].slice_axis(0, 0, 60).unwrap());
    let error = refused(config("qwen3_5_text"), &wrong);
    assert!(
        error.contains("1 misshapen: model.layers.0.linear_attn.conv1d.weight"),
        "{error}"
    );
}
