//! Checkpoints in formats of other programs: their weights equal those that torch decodes, to the
//! bit.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mlx_core::{Array, DType, QuantMode, Result, Scheme};
use mlx_models::convert::{ConvertOptions, Packing, Recipe, convert};
use mlx_models::{LoadOptions, Loaded, load};
use mlx_nn::{CacheOptions, ModelCache, Param, Visit, quantize};
use serde_json::Value;

mod adapted;
mod packed;
mod refused;

const TOLERANCE: f32 = 1e-4;

fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/stored")
        .join(case)
}

fn json(path: &Path) -> Value {
    mlx_models::config::parse(&std::fs::read(path).unwrap()).unwrap()
}

/// Each case, and how its weights are packed in memory.
fn cases() -> [(&'static str, Option<Scheme>); 7] {
    let mxfp8 = Scheme::default_of(QuantMode::Mxfp8);
    let affine = Scheme::new(32, 4, QuantMode::Affine).unwrap();
    [
        ("fp8_qwen3", None),
        ("fp8_deepseek_v3", None),
        ("fp8_deepseek_v32", Some(mxfp8)),
        ("fp8_minimax_m2", None),
        ("fp8_ministral3", None),
        ("channels_llama", None),
        ("int4_kimi_k2", Some(affine)),
    ]
}

fn loaded(dir: &Path, dtype: Option<DType>) -> Result<Loaded> {
    let options = LoadOptions {
        dtype,
        ..LoadOptions::default()
    };
    load(dir, options)
}

/// FNV-1a of the F32 bytes.
fn digest(values: &[f32]) -> String {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    let value = bytes.fold(0xcbf2_9ce4_8422_2325u64, |value, byte| {
        (value ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{value:016x}")
}

/// The digests of all matrices, and of the items of stacks.
#[derive(Default)]
struct Digests(BTreeSet<String>);

impl Visit for Digests {
    fn param(&mut self, _path: &mlx_nn::Path, param: &Param) -> Result<()> {
        let value = param.value().astype(DType::F32)?;
        let items = match *value.shape() {
            [n, _, _] => n,
            _ => 1,
        };
        let values: Vec<f32> = value.to_vec()?;
        let size = values.len() / items as usize;
        self.0.extend(values.chunks(size).map(digest));
        // Programs differ in the sign of a zero.
        let unsigned: Vec<f32> = values.iter().map(|value| value + 0.0).collect();
        self.0.extend(unsigned.chunks(size).map(digest));
        Ok(())
    }
}

fn digests(model: &Loaded) -> BTreeSet<String> {
    let mut all = Digests::default();
    let model = model.model.as_ref();
    model.visit(&mut mlx_nn::Path::default(), &mut all).unwrap();
    all.0
}

fn expected(golden: &Value) -> Vec<(&str, &str)> {
    let digests = golden["digests"].as_object().unwrap();
    let pair = digests.iter();
    pair.map(|(name, digest)| (name.as_str(), digest.as_str().unwrap()))
        .collect()
}

fn logprobs(model: &Loaded, prompt: &[u32]) -> Vec<f32> {
    let model = model.model.as_ref();
    let n = prompt.len();
    let mut cache = ModelCache::new(model.states(), 1, CacheOptions::default());
    let input = Array::from_slice(prompt, &[1, n as i32]).unwrap();
    let mut step = cache.begin(&[n]).unwrap();
    let hidden = model.hidden(&input, &mut step).unwrap();
    let last = hidden.slice_axis(1, n as i32 - 1, n as i32).unwrap();
    let logits = model.logits(&last).unwrap();
    let logits = logits.astype(DType::F32).unwrap();
    let sum = logits.logsumexp(-1, true).unwrap();
    logits.subtract(sum).unwrap().to_vec().unwrap()
}

fn check_logprobs(place: &str, model: &Loaded, golden: &Value) {
    let prompt: Vec<u32> = serde_json::from_value(golden["prompt"].clone()).unwrap();
    let wanted: Vec<f32> = serde_json::from_value(golden["logprobs"].clone()).unwrap();
    let found = logprobs(model, &prompt);
    let pairs = wanted.iter().zip(&found);
    let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(
        off < TOLERANCE,
        "{place}: log probabilities are off by {off}"
    );
}

#[test]
fn weights_are_those_of_the_reference_to_the_bit() {
    for (case, scheme) in cases() {
        let dir = folder(case);
        let golden = json(&dir.join("golden.json"));
        let mut model = loaded(&dir, Some(DType::F32)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(model.info.quantization, scheme, "{case}");
        assert!(model.info.stored.is_some(), "{case}");
        assert_eq!(model.info.unread_keys, [""; 0], "{case}");
        check_logprobs(case, &model, &golden);
        quantize::dequantize(model.model.as_mut(), Some(DType::F32)).unwrap();
        let found = digests(&model);
        for (name, digest) in expected(&golden) {
            assert!(found.contains(digest), "{case}: {name} is another matrix");
        }
    }
}

/// A weight that one of MLX's schemes represents exactly needs no more memory than in the file. The
/// others need 16 bits per element.
#[test]
fn packed_weights_stay_as_small_as_their_files() {
    for (case, scheme) in cases() {
        let dir = folder(case);
        let model = loaded(&dir, None).unwrap();
        let file = std::fs::metadata(dir.join("model.safetensors"))
            .unwrap()
            .len() as usize;
        let bytes = model.info.weight_bytes;
        match scheme {
            Some(_) => assert!(bytes < file * 11 / 10, "{case}: {bytes} of {file} bytes"),
            None => assert_eq!(model.info.dtype, DType::BF16, "{case}"),
        }
    }
}

/// A written folder describes its packing in MLX's `quantization`, or has no packing.
#[test]
fn converted_folders_compute_the_same() {
    for (case, scheme) in cases() {
        let dir = folder(case);
        let golden = json(&dir.join("golden.json"));
        for packing in [Packing::Keep, Packing::Dequantize] {
            let place = format!("{case}, {packing:?}");
            let to = tempfile::tempdir().unwrap();
            let options = ConvertOptions {
                packing,
                dtype: Some(DType::F32),
                ..ConvertOptions::default()
            };
            let weights = mlx_models::open_weights(&dir).unwrap();
            let config = json(&dir.join("config.json"));
            convert("here", config, weights, to.path(), &options, &mut |_, _| {
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{place}: {error}"));
            let config = json(&to.path().join("config.json"));
            let is_packed = scheme.is_some() && packing == Packing::Keep;
            assert_eq!(config.get("quantization").is_some(), is_packed, "{place}");
            assert_eq!(
                config.get("quantization_config").is_some(),
                is_packed,
                "{place}"
            );
            let model = loaded(to.path(), Some(DType::F32)).unwrap();
            assert_eq!(model.info.stored, None, "{place}");
            check_logprobs(&place, &model, &golden);
        }
    }
}

/// 8-bit floats are the original form of these models: they can be quantised further. Packed integers cannot.
#[test]
fn stored_weights_can_be_quantised_if_they_are_floats() {
    let scheme = Scheme::new(32, 8, QuantMode::Affine).unwrap();
    for (case, _) in cases() {
        let to = tempfile::tempdir().unwrap();
        let options = ConvertOptions {
            packing: Packing::Quantize(Recipe::uniform(scheme)),
            ..ConvertOptions::default()
        };
        let dir = folder(case);
        let weights = mlx_models::open_weights(&dir).unwrap();
        let config = json(&dir.join("config.json"));
        let done = convert("here", config, weights, to.path(), &options, &mut |_, _| {
            Ok(())
        });
        match case.starts_with("int4") {
            true => {
                let error = done.unwrap_err().to_string();
                assert!(error.contains("already quantised"), "{error}");
            }
            false => {
                let model = loaded(to.path(), None).unwrap();
                assert_eq!(model.info.quantization, Some(scheme), "{case}");
            }
        }
    }
}

/// An unknown format is refused by name, and the message lists the known ones.
#[test]
fn other_formats_are_refused_by_name() {
    let dir = folder("channels_llama");
    let refused = |settings: Value| {
        let mut config = json(&dir.join("config.json"));
        config["quantization_config"] = settings;
        let weights = mlx_models::open_weights(&dir).unwrap();
        let loaded = mlx_models::load_from("here", config, weights, LoadOptions::default());
        loaded.err().unwrap().to_string()
    };
    for method in ["hqq", "aqlm", "quark", "eetq"] {
        let error = refused(serde_json::json!({"quant_method": method, "bits": 4}));
        let known = "awq, bitnet, bitsandbytes, compressed-tensors, fp8, gptq, modelopt, mxfp4, mxfp8, torchao";
        assert!(error.contains(method) && error.contains(known), "{error}");
    }
    let other = serde_json::json!({"quant_method": "compressed-tensors", "format": "marlin-24"});
    let error = refused(other);
    assert!(
        error.contains("marlin-24") && error.contains("pack-quantized"),
        "{error}"
    );
    // Without the settings the scales are tensors without a parameter.
    let error = refused(Value::Null);
    assert!(error.contains("weight_scale"), "{error}");
}

/// The blocks and groups in the config must fit the shapes of the scales. With others, scales would
/// be applied to the wrong elements.
#[test]
fn scales_that_contradict_the_config_are_refused() {
    let refused = |case: &str, change: &dyn Fn(&mut Value)| {
        let dir = folder(case);
        let mut config = json(&dir.join("config.json"));
        change(&mut config);
        let weights = mlx_models::open_weights(&dir).unwrap();
        let loaded = mlx_models::load_from("here", config, weights, LoadOptions::default());
        loaded.err().map(|error| error.to_string())
    };
    for case in ["fp8_qwen3", "fp8_deepseek_v3"] {
        let blocks = |times: fn(i64) -> i64| {
            refused(case, &|config: &mut Value| {
                let block = &mut config["quantization_config"]["weight_block_size"];
                let rows = block[0].as_i64().unwrap();
                block[0] = times(rows).into();
            })
        };
        assert_eq!(blocks(|rows| rows), None, "{case}");
        for error in [blocks(|rows| rows * 2), blocks(|rows| rows / 2)] {
            let error = error.unwrap_or_else(|| panic!("{case} loads"));
            assert!(error.contains("do not fit a weight"), "{case}: {error}");
            assert!(
                error.contains("_scale_inv") && error.contains("in blocks of"),
                "{error}"
            );
        }
    }
    let structure = |block: Value| {
        refused("channels_llama", &|config: &mut Value| {
            let groups = &mut config["quantization_config"]["config_groups"];
            for group in groups.as_object_mut().unwrap().values_mut() {
                group["weights"]["block_structure"] = block.clone();
            }
        })
    };
    assert_eq!(structure(Value::Null), None);
    let error = structure(serde_json::json!([16, 16])).unwrap();
    assert!(error.contains("do not fit a weight"), "{error}");
    let groups = |size: i64| {
        refused("int4_kimi_k2", &|config: &mut Value| {
            let groups = &mut config["quantization_config"]["config_groups"];
            for group in groups.as_object_mut().unwrap().values_mut() {
                group["weights"]["group_size"] = size.into();
            }
        })
    };
    assert_eq!(groups(32), None);
    let error = groups(64).unwrap();
    assert!(error.contains("group_size says [64]"), "{error}");
}
