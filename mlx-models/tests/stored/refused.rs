//! Damaged files and unknown settings are refused: the message names the tensor or the setting, what
//! was found, and what is supported.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::{Array, DType, Safetensors, safetensors};
use mlx_models::LoadOptions;
use serde_json::{Value, json};

use super::{folder, json};

/// The tensors of a case. 8-bit floats are not arrays; cases with them change only the config.
struct Damaged {
    config: Value,
    arrays: BTreeMap<String, Array>,
    metadata: BTreeMap<String, String>,
}

impl Damaged {
    fn of(case: &str) -> Self {
        let dir = folder(case);
        let file = Safetensors::open(dir.join("model.safetensors")).unwrap();
        let array = |name: &str| (name.to_owned(), file.array(name).unwrap());
        Self {
            config: json(&dir.join("config.json")),
            arrays: file.names().map(array).collect(),
            metadata: file.metadata().clone(),
        }
    }

    fn settings(&mut self) -> &mut Value {
        &mut self.config["quantization_config"]
    }

    fn change(&mut self, name: &str, change: impl Fn(&Array) -> mlx_core::Result<Array>) {
        let array = self
            .arrays
            .get_mut(name)
            .unwrap_or_else(|| panic!("no {name}"));
        *array = change(array).unwrap();
    }

    /// The error of loading the files.
    fn error(self) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        safetensors::save(&path, &self.arrays, &self.metadata).unwrap();
        self.load(dir.path()).expect("it loads")
    }

    fn load(self, dir: &Path) -> Option<String> {
        let weights = mlx_models::open_weights(dir).unwrap();
        let loaded = mlx_models::load_from("here", self.config, weights, LoadOptions::default());
        loaded.err().map(|error| error.to_string())
    }
}

const Q: &str = "model.layers.0.self_attn.q_proj";

/// A change of a case, and what the error says.
type Fault = (&'static str, fn(&mut Damaged), &'static [&'static str]);

fn fewer_rows(array: &Array) -> mlx_core::Result<Array> {
    array.slice_axis(0, 0, array.dim(0)? - 1)
}

fn in_f32(array: &Array) -> mlx_core::Result<Array> {
    array.astype(DType::F32)
}

const FAULTS: &[Fault] = &[
    // Settings.
    (
        "awq_llama",
        |d| d.settings()["version"] = "gemv".into(),
        &["version", "gemv", "known: gemm"],
    ),
    (
        "awq_llama",
        |d| d.settings()["bits"] = 8.into(),
        &["bits 8", "known: 4"],
    ),
    (
        "awq_llama",
        |d| d.settings()["group_size"] = 64.into(),
        &["groups of 128", "group_size says 64"],
    ),
    (
        "gptq_glm4",
        |d| d.settings()["bits"] = 3.into(),
        &["bits 3", "known: 4, 8"],
    ),
    (
        "gptq_glm4",
        |d| d.settings()["bits"] = 8.into(),
        &["4 bits in groups of 32", "the config says 8 bits"],
    ),
    (
        "gptq_glm4",
        |d| d.settings()["checkpoint_format"] = "marlin".into(),
        &["checkpoint_format", "marlin", "known: gptq, gptq_v2"],
    ),
    (
        "int4_order_llama",
        |d| d.settings()["config_groups"]["group_0"]["weights"]["num_bits"] = 3.into(),
        &["num_bits 3", "known: int or float of 4 or 8 bits"],
    ),
    (
        "int4_order_llama",
        |d| d.settings()["config_groups"]["group_0"]["weights"]["num_bits"] = 8.into(),
        &["weight_packed", "weight_shape says", "of 8 bits"],
    ),
    (
        "int4_order_llama",
        |d| d.settings()["config_groups"]["group_0"]["weights"]["type"] = "float".into(),
        &["weight_packed", "config_groups has only float of 4 bits"],
    ),
    (
        "int4_order_llama",
        |d| d.settings()["format"] = "mxfp6-pack-quantized".into(),
        &[
            "mxfp6-pack-quantized",
            "known: float-quantized",
            "pack-quantized",
        ],
    ),
    (
        "awq_llama",
        |d| d.arrays.retain(|name, _| name.ends_with("norm.weight")),
        &["awq packs matrices", "no tensor is a qweight"],
    ),
    (
        "nf4_llama",
        |d| d.arrays.retain(|name, _| name.ends_with("norm.weight")),
        &[
            "bitsandbytes packs matrices",
            "no tensor is a weight of U8 or I8",
        ],
    ),
    (
        "gptq8_llama",
        |d| {
            let name = format!("{Q}.qweight");
            d.change(&name, |array| array.slice_axis(0, 0, 0));
            d.change(&format!("{Q}.g_idx"), |array| array.slice_axis(0, 0, 0));
        },
        &["q_proj", "matrix [64, 0]"],
    ),
    // Tensors.
    (
        "awq_llama",
        |d| drop(d.arrays.remove(&format!("{Q}.scales"))),
        &["q_proj.scales", "is missing"],
    ),
    (
        "awq_llama",
        |d| drop(d.arrays.remove(&format!("{Q}.qzeros"))),
        &["q_proj.qzeros", "is missing"],
    ),
    (
        "awq_llama",
        |d| d.change(&format!("{Q}.qweight"), fewer_rows),
        &["q_proj.qweight", "do not fit each other"],
    ),
    (
        "awq_llama",
        |d| d.change(&format!("{Q}.qweight"), in_f32),
        &["q_proj.qweight", "F32", "expected I32"],
    ),
    (
        "gptq_glm4",
        |d| drop(d.arrays.remove(&format!("{Q}.scales"))),
        &["q_proj.scales", "is missing"],
    ),
    (
        "gptq_glm4",
        |d| d.change(&format!("{Q}.qzeros"), fewer_rows),
        &["q_proj.qzeros", "does not fit"],
    ),
    (
        "gptq_glm4",
        |d| d.change(&format!("{Q}.g_idx"), fewer_rows),
        &["q_proj.g_idx", "does not fit"],
    ),
    (
        "gptq_glm4",
        |d| {
            d.change(&format!("{Q}.g_idx"), |array| {
                array.add(Array::scalar(7i32)?)
            })
        },
        &["q_proj.g_idx", "group 7 of 2 groups"],
    ),
    (
        "int4_order_llama",
        |d| drop(d.arrays.remove(&format!("{Q}.weight_zero_point"))),
        &[
            "q_proj.weight_zero_point",
            "is missing",
            "symmetric is false",
        ],
    ),
    (
        "int4_order_llama",
        |d| drop(d.arrays.remove(&format!("{Q}.weight_scale"))),
        &["q_proj.weight_scale", "is missing"],
    ),
    (
        "int4_order_llama",
        |d| d.change(&format!("{Q}.weight_zero_point"), fewer_rows),
        &["q_proj.weight_zero_point", "does not fit"],
    ),
    (
        "nf4_llama",
        |d| drop(d.arrays.remove(&format!("{Q}.weight.absmax"))),
        &["q_proj.weight.absmax", "found None", "64 numbers"],
    ),
    (
        "nf4_llama",
        |d| {
            drop(
                d.arrays
                    .remove(&format!("{Q}.weight.quant_state.bitsandbytes__nf4")),
            )
        },
        &["quant_state.bitsandbytes__nf4", "is missing", "nf4 or fp4"],
    ),
    (
        "nf4_llama",
        |d| {
            d.change(
                &format!("{Q}.weight.quant_state.bitsandbytes__nf4"),
                fewer_rows,
            )
        },
        &["quant_state.bitsandbytes__nf4", "no JSON"],
    ),
    (
        "nf4_llama",
        |d| d.change(&format!("{Q}.weight"), fewer_rows),
        &["q_proj.weight", "expected 2048 numbers of U8"],
    ),
    (
        "int8_gpt_neox",
        |d| drop(d.arrays.remove("gpt_neox.layers.0.attention.dense.SCB")),
        &["attention.dense.SCB", "is missing"],
    ),
    (
        "int8_gpt_neox",
        |d| {
            d.change("gpt_neox.layers.0.attention.dense.weight_format", |array| {
                array.add(Array::scalar(1u8)?)
            })
        },
        &["attention.dense.weight_format", "known: 0, rows"],
    ),
    (
        "torchao_llama",
        |d| drop(d.metadata.remove(&format!("{Q}.weight"))),
        &["no class for", "q_proj.weight", "known: Int4Tensor"],
    ),
    (
        "torchao_llama",
        |d| {
            let text = r#"{"_type": "Int4TilePackedTo4dTensor"}"#;
            d.metadata.insert(format!("{Q}.weight"), text.to_owned());
        },
        &[
            "Int4TilePackedTo4dTensor",
            "known: Int4Tensor, Int8Tensor, IntxUnpackedToInt8Tensor",
        ],
    ),
    (
        "torchao_llama",
        |d| d.change(&format!("{Q}._weight_scale"), fewer_rows),
        &["_weight_scale", "do not fit"],
    ),
    (
        "global_qwen3_moe",
        |d| {
            let name = "model.layers.0.mlp.switch_mlp.up_proj.global_scale";
            d.change(name, fewer_rows);
        },
        &["up_proj.global_scale", "expected 4 numbers"],
    ),
];

#[test]
fn damaged_files_are_refused_by_the_name_of_the_tensor() {
    for (case, damage, words) in FAULTS {
        let mut damaged = Damaged::of(case);
        damage(&mut damaged);
        let error = damaged.error();
        for word in *words {
            assert!(error.contains(word), "{case}: {word:?} is not in: {error}");
        }
    }
}

/// The names of tensors in a file are changed in its bytes, because arrays have no 8-bit floats.
#[test]
fn damaged_floats_are_refused_by_the_name_of_the_tensor() {
    let renamed = |case: &str, from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let dir = folder(case);
        let mut bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
        let at = bytes
            .windows(from.len())
            .position(|part| part == from.as_bytes());
        bytes[at.unwrap()..][..from.len()].copy_from_slice(to.as_bytes());
        let file = Safetensors::from_bytes(bytes).unwrap();
        let mut weights: mlx_models::Weights = vec![file].into();
        weights.quantization = dir
            .join("hf_quant_config.json")
            .is_file()
            .then(|| json(&dir.join("hf_quant_config.json")));
        let config = json(&dir.join("config.json"));
        let loaded = mlx_models::load_from("here", config, weights, LoadOptions::default());
        loaded.err().expect("it loads").to_string()
    };
    let expert = "model.layers.0.mlp.experts.1.up_proj";
    let at = |name: &str| format!("{expert}.{name}\"");
    let error = renamed(
        "modelopt_qwen3_moe",
        &at("weight_scale_2"),
        &at("weight_scale_3"),
    );
    assert!(
        error.contains(&format!("{expert}.weight_scale_2")),
        "{error}"
    );
    assert!(error.contains("is missing"), "{error}");
    let error = renamed(
        "modelopt_qwen3_moe",
        &at("weight_scale"),
        &at("weight_scala"),
    );
    assert!(error.contains(&format!("{expert}.weight_scale")), "{error}");
    assert!(error.contains("is missing: F8_E4M3"), "{error}");
    let name = |part: &str| format!("{Q}.{part}\"");
    let factor = "weight_global_scale";
    let error = renamed("nvfp4_llama", &name(factor), &name("weight_global_scala"));
    assert!(error.contains(&format!("{Q}.{factor}")), "{error}");
    assert!(error.contains("is missing"), "{error}");
    let error = renamed(
        "mxfp8_llama",
        &name("weight_scale_inv"),
        &name("weight_scale_inw"),
    );
    assert!(error.contains(&format!("{Q}.weight_scale_inv")), "{error}");
}

#[test]
fn settings_of_modelopt_are_refused_by_name() {
    let dir = folder("modelopt_qwen3_moe");
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut weights = mlx_models::open_weights(&dir).unwrap();
        let settings = weights
            .quantization
            .as_mut()
            .expect("a file beside config.json");
        change(settings);
        let config = json(&dir.join("config.json"));
        let loaded = mlx_models::load_from("here", config, weights, LoadOptions::default());
        loaded.err().map(|error| error.to_string())
    };
    assert_eq!(refused(&|_| ()), None);
    // ModelOpt writes some names in small letters, and no algorithm where only keys and values
    // are quantised.
    for known in [json!("mixed_precision"), Value::Null] {
        let error = refused(&|settings| settings["quantization"]["quant_algo"] = known.clone());
        assert_eq!(error, None);
    }
    let error = refused(&|settings| settings["quantization"]["quant_algo"] = json!("W4A8_AWQ"));
    let error = error.expect("it loads");
    assert!(
        error.contains("W4A8_AWQ") && error.contains("MIXED_PRECISION"),
        "{error}"
    );
    let error = refused(&|settings| {
        let layers = &mut settings["quantization"]["quantized_layers"];
        let layer = "model.layers.0.self_attn.q_proj";
        layers[layer]["quant_algo"] = json!("W8A8_SQ_PER_CHANNEL");
    });
    let error = error.expect("it loads");
    assert!(
        error.contains("W8A8_SQ_PER_CHANNEL") && error.contains("q_proj"),
        "{error}"
    );
    // The settings of config.json come before those of the file.
    let weights = mlx_models::open_weights(&dir).unwrap();
    let mut config = json(&dir.join("config.json"));
    config["quantization_config"] = json!({"quant_method": "hqq"});
    let loaded = mlx_models::load_from("here", config, weights, LoadOptions::default());
    assert!(loaded.err().unwrap().to_string().contains("hqq"));
}
