//! Checkpoints that are malformed, by accident or on purpose: one clear error, never a panic.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mlx_core::{Array, ErrorKind, Safetensors, safetensors};
use mlx_models::{LoadOptions, load, load_from};
use proptest::prelude::*;
use serde_json::{Value, json};

fn dir(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/models")
        .join(case)
}

fn config(case: &str) -> Value {
    serde_json::from_slice(&std::fs::read(dir(case).join("config.json")).unwrap()).unwrap()
}

fn files(case: &str) -> Vec<Safetensors> {
    vec![Safetensors::open(dir(case).join("model.safetensors")).unwrap()]
}

fn refusal(config: Value, files: Vec<Safetensors>) -> String {
    match load_from("here", config, files, LoadOptions::default()) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    }
}

fn with(case: &str, key: &str, value: Value) -> Value {
    let mut config = config(case);
    config[key] = value;
    config
}

#[test]
fn unknown_things_are_refused_by_name_with_what_is_known() {
    let cases: [(&str, &str, Value, &[&str]); 9] = [
        (
            "llama_tied",
            "model_type",
            json!("mamba"),
            &["\"mamba\"", " llama, ", " mistral, qwen2, "],
        ),
        (
            "llama_tied",
            "rope_scaling",
            json!({"rope_type": "spiral"}),
            &["\"spiral\"", "default, linear, dynamic, llama3, yarn"],
        ),
        (
            "llama_tied",
            "rope_scaling",
            json!({"type": "dynamic"}),
            &["rope_scaling", "factor is missing"],
        ),
        (
            "llama_tied",
            "hidden_act",
            json!("mish"),
            &["hidden_act", "\"mish\"", "silu"],
        ),
        (
            "qwen3",
            "layer_types",
            json!(["full_attention", "linear_attention"]),
            &["\"linear_attention\"", "full_attention, sliding_attention"],
        ),
        (
            "gemma3_text",
            "use_bidirectional_attention",
            json!(true),
            &["use_bidirectional_attention"],
        ),
        (
            "q_llama_b4_g64",
            "quantization",
            json!({"group_size": 64, "bits": 4, "mode": "zip"}),
            &["\"zip\"", "affine, mxfp4"],
        ),
        (
            "q_llama_b4_g64",
            "quantization",
            json!({"group_size": 48, "bits": 4}),
            &["group sizes", "48"],
        ),
        (
            "llama_tied",
            "quantization_config",
            json!({"quant_method": "hqq", "bits": 4}),
            &["\"hqq\"", "not supported"],
        ),
    ];
    for (case, key, value, expected) in cases {
        let message = refusal(with(case, key, value.clone()), files(case));
        for part in expected {
            assert!(message.contains(part), "{case}, {key} = {value}: {message}");
        }
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for (key, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-64)),
        ("hidden_size", json!(4_000_000_000u64)),
        ("hidden_size", json!("64")),
        ("hidden_size", json!(null)),
        ("num_hidden_layers", json!(100_000)),
        ("num_attention_heads", json!(16_000_000)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(16_000_000)),
        ("vocab_size", json!(1e300)),
        ("rope_theta", json!(-1.0)),
        ("rms_norm_eps", json!(-1e-6)),
    ] {
        let message = refusal(
            with("llama_head_dim", key, value.clone()),
            files("llama_head_dim"),
        );
        assert!(
            message.contains(key) || message.contains("heads"),
            "{key} = {value}: {message}"
        );
        assert!(!message.contains('\n'), "{key} = {value}: {message}");
    }
    let message = refusal(json!([1, 2]), files("llama_tied"));
    assert!(message.contains("expected a JSON object"), "{message}");
}

#[test]
fn one_report_names_every_tensor_that_does_not_fit() {
    let file = &files("qwen3")[0];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let wrong = Array::from_slice(&[0.0f32; 6], &[2, 3]).unwrap();
    let mut arrays: BTreeMap<String, Array> = file
        .names()
        .map(|name| (name.to_owned(), file.array(name).unwrap()))
        .collect();
    arrays.remove("model.layers.1.mlp.up_proj.weight").unwrap();
    arrays.insert(
        "model.layers.0.self_attn.q_proj.weight".to_owned(),
        wrong.clone(),
    );
    arrays.insert("model.layers.0.extra".to_owned(), wrong);
    safetensors::save(
        &path,
        arrays.iter().map(|(name, array)| (name.as_str(), array)),
        &BTreeMap::new(),
    )
    .unwrap();
    let message = refusal(config("qwen3"), vec![Safetensors::open(&path).unwrap()]);
    for part in [
        "1 missing: model.layers.1.mlp.up_proj.weight",
        "1 unexpected: model.layers.0.extra",
        "1 misshapen: model.layers.0.self_attn.q_proj.weight: expected",
        "found [2, 3]",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn an_index_cannot_leave_its_folder() {
    for file in [
        "../outside.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "model.bin",
        "absent.safetensors",
        "",
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), config("qwen3").to_string()).unwrap();
        let index = json!({"weight_map": {"model.norm.weight": file}});
        std::fs::write(
            dir.path().join("model.safetensors.index.json"),
            index.to_string(),
        )
        .unwrap();
        let Err(error) = load(dir.path(), LoadOptions::default()) else {
            panic!("{file:?} loaded")
        };
        assert!(
            error.to_string().contains("model.norm.weight"),
            "{file:?}: {error}"
        );
    }
}

#[test]
fn folders_without_a_checkpoint_say_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let message = |dir: &Path| load(dir, LoadOptions::default()).err().unwrap().to_string();
    assert!(message(dir.path()).contains("config.json"));
    std::fs::write(dir.path().join("config.json"), "{").unwrap();
    assert!(message(dir.path()).contains("config.json"));
    std::fs::write(dir.path().join("config.json"), "[".repeat(100_000)).unwrap();
    assert!(message(dir.path()).contains("config.json"));
    std::fs::write(dir.path().join("config.json"), config("qwen3").to_string()).unwrap();
    assert!(message(dir.path()).contains("no model*.safetensors"));
    std::fs::write(dir.path().join("model.safetensors"), b"short").unwrap();
    assert!(message(dir.path()).contains("model.safetensors"));
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|b| json!(b)),
        any::<i64>().prop_map(|n| json!(n)),
        (-4i64..70).prop_map(|n| json!(n)),
        any::<f64>().prop_map(|n| json!(n)),
        "[a-z_0-9]{0,12}".prop_map(|s| json!(s)),
        prop::collection::vec(-3i64..9, 0..4).prop_map(|v| json!(v)),
        Just(json!({})),
        Just(json!({"rope_type": "yarn", "factor": 0.0, "original_max_position_embeddings": 0})),
        Just(
            json!({"rope_type": "llama3", "factor": 1e308, "low_freq_factor": 1e-308, "high_freq_factor": 1.0, "original_max_position_embeddings": 1})
        ),
        Just(json!({"type": "longrope", "long_factor": [1.0], "short_factor": []})),
        Just(json!({"bits": 4, "group_size": 32, "model.layers.0.mlp.up_proj": {"bits": 3}})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any value at any key gives a model or an error.
    #[test]
    fn no_config_panics(
        case in prop::sample::select(vec!["llama_bias", "qwen3_moe", "gemma2", "gemma3_text_v5", "phi3_longrope", "q_qwen3_mixed", "mistral", "qwen3_5_moe", "qwen3_next"]),
        key in any::<prop::sample::Index>(),
        value in value(),
    ) {
        let mut config = config(case);
        let keys: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        config[keys[key.index(keys.len())].as_str()] = value;
        if let Err(error) = load_from("here", config, files(case), LoadOptions::default()) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

/// `Io` is an error of the system, `Format` is wrong content.
#[test]
fn an_absent_file_and_a_wrong_one_are_of_different_kinds() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let kind = || match load(folder.path(), LoadOptions::default()) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.kind(),
    };
    assert_eq!(kind(), ErrorKind::Io, "no config.json");
    std::fs::copy(dir("qwen3").join("config.json"), at("config.json")).unwrap();
    assert_eq!(kind(), ErrorKind::Io, "no tensors");
    for bytes in ["", "no safetensors", "\u{2}\0\0\0\0\0\0\0{}"] {
        std::fs::write(at("model.safetensors"), bytes).unwrap();
        assert_eq!(kind(), ErrorKind::Format, "{bytes:?}");
    }
    std::fs::remove_file(at("model.safetensors")).unwrap();
    let index = json!({"weight_map": {"a": "b.safetensors"}}).to_string();
    for index in ["{", "[]", &index] {
        std::fs::write(at("model.safetensors.index.json"), index).unwrap();
        assert_eq!(kind(), ErrorKind::Format, "{index}");
    }
    for config in ["{", "[]", r#"{"model_type": "qwen3", "hidden_size": -1}"#] {
        std::fs::write(at("config.json"), config).unwrap();
        std::fs::copy(
            dir("qwen3").join("model.safetensors"),
            at("model.safetensors"),
        )
        .unwrap();
        assert_eq!(kind(), ErrorKind::Format, "{config}");
    }
}
