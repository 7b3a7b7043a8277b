//! Weights that AWQ, GPTQ, ModelOpt, compressed-tensors, bitsandbytes, torchao and MLX have packed.

use mlx_core::fast::{self, Form, Op};
use mlx_core::{Array, DType, QuantMode, Scheme};
use mlx_models::Loaded;
use mlx_models::convert::{ConvertOptions, Packing, Recipe, convert};
use mlx_nn::{CacheOptions, ModelCache, Param, Visit, quantize};
use serde_json::Value;

use super::{check_logprobs, digests, expected, folder, json, loaded};

/// A case: its folder, the scheme of most of its weights, and words of the description that `info`
/// shows.
type Case = (&'static str, Option<(QuantMode, i32, i32)>, &'static str);

const CASES: [Case; 15] = [
    (
        "awq_llama",
        Some((QuantMode::Affine, 4, 128)),
        "AWQ, kept as affine with a factor",
    ),
    (
        "awq_qwen3_moe",
        Some((QuantMode::Affine, 4, 32)),
        "AWQ, kept as affine with scales and biases in F32",
    ),
    (
        "gptq_glm4",
        Some((QuantMode::Affine, 4, 32)),
        "GPTQ, kept as affine with scales and biases in F32",
    ),
    (
        "gptq8_llama",
        Some((QuantMode::Affine, 8, 64)),
        "8-bit integers of GPTQ, kept as affine",
    ),
    ("gptq_order_llama", None, "GPTQ, dequantised to"),
    (
        "modelopt_qwen3_moe",
        Some((QuantMode::Nvfp4, 4, 16)),
        "ModelOpt, kept as nvfp4; 8-bit floats",
    ),
    (
        "nvfp4_llama",
        Some((QuantMode::Nvfp4, 4, 16)),
        "compressed-tensors, kept as nvfp4",
    ),
    (
        "mixed_llama",
        Some((QuantMode::Mxfp4, 4, 32)),
        "4-bit floats of compressed-tensors, kept as mxfp4; 4 and 8-bit integers",
    ),
    (
        "int4_order_llama",
        None,
        "columns of a group are not in order",
    ),
    (
        "nf4_llama",
        None,
        "4-bit codes of bitsandbytes, dequantised to",
    ),
    (
        "nf4_bf16_llama",
        None,
        "4-bit codes of bitsandbytes, dequantised to",
    ),
    (
        "int8_gpt_neox",
        Some((QuantMode::Affine, 8, 64)),
        "bitsandbytes, kept as affine with a factor",
    ),
    (
        "torchao_llama",
        Some((QuantMode::Affine, 8, 64)),
        "torchao, kept as affine with scales and biases in F32",
    ),
    ("global_qwen3_moe", Some((QuantMode::Nvfp4, 4, 16)), ""),
    (
        "mxfp8_llama",
        Some((QuantMode::Mxfp8, 8, 32)),
        "kept as mxfp8",
    ),
];

fn scheme(case: Case) -> Option<Scheme> {
    case.1
        .map(|(mode, bits, group)| Scheme::new(group, bits, mode).unwrap())
}

/// The greedy continuation of a prompt. Each token is computed from the whole text before it.
fn tokens(model: &Loaded, prompt: &[u32], n: usize) -> Vec<u32> {
    let model = model.model.as_ref();
    let mut ids = prompt.to_vec();
    for _ in 0..n {
        let mut cache = ModelCache::new(model.states(), 1, CacheOptions::default());
        let input = Array::from_slice(&ids, &[1, ids.len() as i32]).unwrap();
        let mut step = cache.begin(&[ids.len()]).unwrap();
        let hidden = model.hidden(&input, &mut step).unwrap();
        let last = hidden.slice_axis(1, -1, ids.len() as i32).unwrap();
        let logits = model.logits(&last).unwrap();
        ids.push(
            logits
                .flatten()
                .unwrap()
                .argmax(-1, false)
                .unwrap()
                .item()
                .unwrap(),
        );
    }
    ids.split_off(prompt.len())
}

/// The first rows of all matrices, and of the items of stacks.
#[derive(Default)]
struct Rows(Vec<Vec<f32>>);

impl Visit for Rows {
    fn param(&mut self, _path: &mlx_nn::Path, param: &Param) -> mlx_core::Result<()> {
        let value = param.value().astype(DType::F32)?;
        if value.ndim() >= 2 {
            let shape = value.shape().to_vec();
            let [.., rows, columns] = shape[..] else {
                unreachable!()
            };
            let all: Vec<f32> = value.to_vec()?;
            self.0.extend(
                all.chunks((rows * columns) as usize)
                    .map(|item| item[..8].to_vec()),
            );
        }
        Ok(())
    }
}

/// Some matrix begins with numbers that are these within the rounding of F32.
fn check_samples(case: &str, model: &Loaded, golden: &Value) {
    let mut rows = Rows::default();
    let path = &mut mlx_nn::Path::default();
    model.model.visit(path, &mut rows).unwrap();
    for (name, sample) in golden["samples"].as_object().unwrap() {
        let sample: Vec<f32> = serde_json::from_value(sample.clone()).unwrap();
        let largest = sample.iter().fold(0.0f32, |a, b| a.max(b.abs()));
        let is_close = |row: &Vec<f32>| {
            let mut pairs = row.iter().zip(&sample);
            pairs.all(|(a, b)| (a - b).abs() <= 1e-6 * largest)
        };
        assert!(largest > 0.0, "{case}: {name}");
        assert!(
            rows.0.iter().any(is_close),
            "{case}: {name} is another matrix"
        );
    }
}

fn check_weights(case: &str, mut model: Loaded, golden: &Value) {
    quantize::dequantize(model.model.as_mut(), Some(DType::F32)).unwrap();
    if golden.get("samples").is_some() {
        return check_samples(case, &model, golden);
    }
    let found = digests(&model);
    for (name, digest) in expected(golden) {
        assert!(found.contains(digest), "{case}: {name} is another matrix");
    }
}

#[test]
fn packed_weights_and_tokens_are_those_of_the_reference() {
    for case in CASES {
        let (name, _, described) = case;
        let dir = folder(name);
        let golden = json(&dir.join("golden.json"));
        let model = loaded(&dir, Some(DType::F32)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(model.info.quantization, scheme(case), "{name}");
        let stored = model.info.stored.clone().unwrap_or_default();
        assert!(stored.contains(described), "{name}: {stored}");
        assert_eq!(model.info.unread_keys, [""; 0], "{name}");
        check_logprobs(name, &model, &golden);
        let prompt: Vec<u32> = serde_json::from_value(golden["prompt"].clone()).unwrap();
        let wanted: Vec<u32> = serde_json::from_value(golden["tokens"].clone()).unwrap();
        assert_eq!(tokens(&model, &prompt, wanted.len()), wanted, "{name}");
        check_weights(name, model, &golden);
    }
}

/// In the dtype of the files the activations have 16 bits, and the weights keep all of their
/// digits.
#[test]
fn packed_weights_are_exact_in_sixteen_bits() {
    let mut exact = Vec::new();
    for case in CASES {
        let name = case.0;
        let dir = folder(name);
        let golden = json(&dir.join("golden.json"));
        let model = loaded(&dir, None).unwrap();
        let dtype = match name.contains("gptq") || name.contains("awq") {
            true => DType::F16,
            false => DType::BF16,
        };
        assert_eq!(model.info.dtype, dtype, "{name}");
        let input = Array::from_slice(&[9u32, 17, 30], &[1, 3]).unwrap();
        let mut cache = ModelCache::new(model.model.states(), 1, CacheOptions::default());
        let mut step = cache.begin(&[3]).unwrap();
        let hidden = model.model.hidden(&input, &mut step).unwrap();
        assert_eq!(hidden.dtype(), dtype, "{name}: activations");
        let off = off(&model, &golden);
        assert!(off < 0.25, "{name}: log probabilities are off by {off}");
        // Dense weights are rounded to 16 bits, and MLX unpacks scales of 16 bits in that dtype.
        let form = model.info.stored.clone().unwrap_or_default();
        if form.contains("a factor")
            || form.contains("residues")
            || form.contains("F32")
            || form.contains("nvfp4") && !form.contains(';')
        {
            exact.push(name);
            check_weights(name, model, &golden);
        }
    }
    let wanted = [
        "awq_llama",
        "awq_qwen3_moe",
        "gptq_glm4",
        "nvfp4_llama",
        "mixed_llama",
        "int8_gpt_neox",
        "torchao_llama",
    ];
    assert_eq!(exact, wanted);
}

/// In a model of another dtype of 16 bits the weights keep the digits of the file's scales.
#[test]
fn packed_weights_are_exact_in_another_dtype() {
    for (name, dtype) in [
        ("awq_llama", DType::BF16),
        ("awq_qwen3_moe", DType::BF16),
        ("gptq8_llama", DType::BF16),
        ("gptq_glm4", DType::BF16),
        ("mixed_llama", DType::F16),
        ("nvfp4_llama", DType::F16),
        ("int8_gpt_neox", DType::F16),
    ] {
        let dir = folder(name);
        let golden = json(&dir.join("golden.json"));
        let model = loaded(&dir, Some(dtype)).unwrap();
        let input = Array::from_slice(&[9u32, 17, 30], &[1, 3]).unwrap();
        let mut cache = ModelCache::new(model.model.states(), 1, CacheOptions::default());
        let mut step = cache.begin(&[3]).unwrap();
        let hidden = model.model.hidden(&input, &mut step).unwrap();
        assert_eq!(hidden.dtype(), dtype, "{name}: activations");
        let off = off(&model, &golden);
        // MLX's own products round each of their partial sums to the dtype.
        let most = match fast::form(Op::Linear).unwrap() {
            Form::Plain => 1.5,
            _ => 0.25,
        };
        assert!(off < most, "{name}: log probabilities are off by {off}");
        check_weights(name, model, &golden);
    }
}

fn off(model: &Loaded, golden: &Value) -> f32 {
    let prompt: Vec<u32> = serde_json::from_value(golden["prompt"].clone()).unwrap();
    let wanted: Vec<f32> = serde_json::from_value(golden["logprobs"].clone()).unwrap();
    let found = super::logprobs(model, &prompt);
    let pairs = wanted.iter().zip(&found);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn convert_to(
    dir: &std::path::Path,
    case: &str,
    packing: Packing,
    dtype: Option<DType>,
) -> Result<(), String> {
    let from = folder(case);
    let options = ConvertOptions {
        packing,
        dtype,
        ..ConvertOptions::default()
    };
    let weights = mlx_models::open_weights(&from).unwrap();
    let config = json(&from.join("config.json"));
    let done = convert("here", config, weights, dir, &options, &mut |_, _| Ok(()));
    done.map(|_| ()).map_err(|error| error.to_string())
}

/// A converted folder is in MLX's form: packed with `quantization`, or dense.
#[test]
fn converted_packed_folders_compute_the_same() {
    for case in CASES {
        let name = case.0;
        let golden = json(&folder(name).join("golden.json"));
        for packing in [Packing::Keep, Packing::Dequantize] {
            let place = format!("{name}, {packing:?}");
            let to = tempfile::tempdir().unwrap();
            convert_to(to.path(), name, packing, Some(DType::F32))
                .unwrap_or_else(|error| panic!("{place}: {error}"));
            let config = json(&to.path().join("config.json"));
            let is_packed = case.1.is_some() && packing == Packing::Keep;
            assert_eq!(config.get("quantization").is_some(), is_packed, "{place}");
            let method = &config["quantization_config"]["quant_method"];
            assert_eq!(*method, Value::Null, "{place}");
            let model = loaded(to.path(), Some(DType::F32))
                .unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_eq!(model.info.stored, None, "{place}");
            let packed = if is_packed { scheme(case) } else { None };
            assert_eq!(model.info.quantization, packed, "{place}");
            check_logprobs(&place, &model, &golden);
            let file = mlx_core::Safetensors::open(to.path().join("model.safetensors")).unwrap();
            // MLX's files have no factors; nvfp4 of single matrices needs them.
            let has_factors = file.names().any(|name| name.ends_with(".factor"));
            let needs = name == "nvfp4_llama" && packing == Packing::Keep;
            assert_eq!(has_factors, needs, "{place}");
            if name == "int8_gpt_neox" {
                // The names that mlx-lm reads.
                assert!(
                    file.contains("model.h.0.mlp.dense_4h_to_h.weight"),
                    "{place}"
                );
            }
        }
        // Weights of few numbers are not quantised again.
        let to = tempfile::tempdir().unwrap();
        let recipe = Recipe::uniform(Scheme::new(32, 8, QuantMode::Affine).unwrap());
        let done = convert_to(to.path(), name, Packing::Quantize(recipe), None);
        match name {
            // 8-bit floats may be.
            "mxfp8_llama" => assert_eq!(done, Ok(()), "{name}"),
            _ => {
                let error = done.unwrap_err();
                assert!(error.contains("already quantised"), "{name}: {error}");
            }
        }
    }
}

/// Unpacking in the dtype of the files rounds the weights of the reference once.
#[test]
fn unpacked_weights_are_rounded_once() {
    for name in [
        "awq_llama",
        "gptq8_llama",
        "int8_gpt_neox",
        "nvfp4_llama",
        "torchao_llama",
    ] {
        let to = tempfile::tempdir().unwrap();
        convert_to(to.path(), name, Packing::Dequantize, None).unwrap();
        let half = loaded(to.path(), None).unwrap();
        let dtype = half.info.dtype;
        assert_ne!(dtype, DType::F32, "{name}");
        let mut whole = loaded(&folder(name), Some(DType::F32)).unwrap();
        quantize::dequantize(whole.model.as_mut(), Some(DType::F32)).unwrap();
        let (half, whole) = (parameters(&half), parameters(&whole));
        assert_eq!(half.len(), whole.len(), "{name}");
        for ((path, half), (_, whole)) in half.iter().zip(&whole) {
            let rounded = whole.astype(dtype).unwrap();
            let same: bool = rounded.array_equal(half).unwrap().item().unwrap();
            assert!(same && half.dtype() == dtype, "{name}: {path}");
        }
    }
}

/// All parameters, by their paths.
pub(super) fn parameters(model: &Loaded) -> Vec<(String, Array)> {
    let mut all = Parameters::default();
    let path = &mut mlx_nn::Path::default();
    model.model.visit(path, &mut all).unwrap();
    all.0
}

#[derive(Default)]
struct Parameters(Vec<(String, Array)>);

impl Visit for Parameters {
    fn param(&mut self, path: &mlx_nn::Path, param: &Param) -> mlx_core::Result<()> {
        self.0
            .push((path.as_str().to_owned(), param.value().clone()));
        Ok(())
    }
}

/// Experts with a factor are written as MLX writes them: `global_scale`, one number for each.
#[test]
fn factors_of_experts_are_written_as_global_scales() {
    for case in ["global_qwen3_moe", "modelopt_qwen3_moe"] {
        let to = tempfile::tempdir().unwrap();
        convert_to(to.path(), case, Packing::Keep, None).unwrap();
        let file = mlx_core::Safetensors::open(to.path().join("model.safetensors")).unwrap();
        let name = "model.layers.0.mlp.switch_mlp.up_proj.global_scale";
        assert_eq!(file.info(name).unwrap(), (DType::F32, &[4][..]), "{case}");
        assert!(
            !file
                .names()
                .any(|name| name.ends_with("switch_mlp.up_proj.factor")),
            "{case}"
        );
        assert!(!to.path().join("hf_quant_config.json").exists());
    }
    let scales = |path: &std::path::Path| -> Vec<f32> {
        let file = mlx_core::Safetensors::open(path.join("model.safetensors")).unwrap();
        let name = "model.layers.0.mlp.switch_mlp.down_proj.global_scale";
        file.array(name).unwrap().to_vec().unwrap()
    };
    let to = tempfile::tempdir().unwrap();
    convert_to(to.path(), "global_qwen3_moe", Packing::Keep, None).unwrap();
    for (a, b) in scales(to.path())
        .iter()
        .zip(scales(&folder("global_qwen3_moe")))
    {
        assert!((a - b).abs() <= 1e-6 * b, "{a} {b}");
    }
}
