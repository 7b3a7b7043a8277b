//! DeepSeek V4 as published: experts of 4-bit floats, other matrices of 8-bit floats, and scales beside them.

use std::path::Path;

use mlx_core::ops::quantize::{dequantize_with, quantize_with};
use mlx_core::{Array, DType, QuantMode, Result, Safetensors, Scheme};
use mlx_models::{LoadOptions, Loaded, load_from};
use serde_json::{Map, Value, json};

use super::case::Case;
use super::families::weights;
use super::renamed::{loaded, tensors};
use super::run::{log_probs, prompt_logits};

/// A tensor of a file: its name, dtype, shape and bytes.
type Stored = (String, &'static str, Vec<i32>, Vec<u8>);

fn bytes(array: &Array) -> Vec<u8> {
    let bytes = array.contiguous().unwrap().view(DType::U8).unwrap();
    bytes.to_vec::<u8>().unwrap()
}

fn write(path: &Path, tensors: &[Stored]) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        let offsets = [start, data.len()];
        let tensor = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.clone(), tensor);
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length[..], header.as_bytes(), &data].concat()).unwrap();
}

/// The dtype of codes and the scheme of a published matrix; `None` if it is not packed.
fn packing(name: &str, array: &Array) -> Option<(&'static str, Scheme)> {
    let fits = array.ndim() == 2 && array.shape()[1] % 32 == 0 && name.ends_with(".weight");
    let is_packed = ["wq_a", "wkv", "wo_a", "w1", "w3", "engram.embed"]
        .iter()
        .any(|part| name.contains(part));
    match (
        fits && is_packed,
        name.contains(".compressor."),
        name.contains(".ffn.experts."),
    ) {
        (false, ..) | (_, true, _) => None,
        (true, false, true) => Some(("I8", Scheme::default_of(QuantMode::Mxfp4))),
        (true, false, false) => Some(("F8_E4M3", Scheme::default_of(QuantMode::Mxfp8))),
    }
}

/// The model of a file in these forms, and that of the numbers that they represent. `counts` are the tensors of 4 and of 8
/// bits.
fn both(case: &Case, counts: (usize, usize)) -> Result<[Loaded; 2]> {
    let (mut stored, mut dense) = (Vec::<Stored>::new(), Vec::new());
    for (name, array) in tensors(case) {
        let Some((dtype, scheme)) = packing(&name, &array) else {
            let dtype = match array.dtype() {
                DType::I64 => "I64",
                DType::BF16 => "BF16",
                DType::F32 => "F32",
                other => panic!("{name}: {other}"),
            };
            stored.push((name.clone(), dtype, array.shape().to_vec(), bytes(&array)));
            dense.push((name, array));
            continue;
        };
        let packed = quantize_with(&array, scheme)?;
        let codes = bytes(&packed.packed);
        let rows = array.shape()[0];
        let shape = vec![rows, codes.len() as i32 / rows];
        stored.push((name.clone(), dtype, shape, codes));
        let scale = name.replace(".weight", ".scale");
        let shape = packed.scales.shape().to_vec();
        stored.push((scale, "F8_E8M0", shape, bytes(&packed.scales)));
        let wide = dequantize_with(
            &packed.packed,
            &packed.scales,
            None,
            scheme,
            Some(DType::F32),
        )?;
        dense.push((name, wide));
    }
    let forms = |form: &str| stored.iter().filter(|tensor| tensor.1 == form).count();
    assert_eq!((forms("I8"), forms("F8_E4M3")), counts);
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model.safetensors");
    write(&path, &stored);
    let mut config = case.config("config.json");
    config["quantization_config"] = json!({
        "quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [1, 32],
    });
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    let packed = load_from(&case.name, config, vec![Safetensors::open(&path)?], options)?;
    Ok([
        packed,
        loaded(&case.name, case.config("config.json"), &dense)?,
    ])
}

/// The file's model equals that of the numbers. Returns its stacks of experts of 4 bits and its other matrices of 8 bits.
fn agree(name: &str, counts: (usize, usize)) -> [usize; 2] {
    let cases = Case::all().into_iter();
    let case = cases.into_iter().find(|case| case.name == name).unwrap();
    let [packed, dense] = both(&case, counts).unwrap();
    for prompt in &case.prompts {
        let of = |model| log_probs(&prompt_logits(model, prompt).unwrap()).unwrap();
        let (found, expected) = (of(&packed), of(&dense));
        let pairs = found.iter().zip(&expected);
        let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-4, "{name}: off by {off}");
    }
    let schemes = weights(&packed)
        .into_iter()
        .filter_map(|(_, scheme)| scheme);
    let modes: Vec<QuantMode> = schemes.map(|scheme| scheme.mode).collect();
    let count = |mode| modes.iter().filter(|own| **own == mode).count();
    [QuantMode::Mxfp4, QuantMode::Mxfp8].map(count)
}

#[test]
fn deepseek_4_is_read_as_published() {
    // Stacks of experts in three layers, and the other matrices.
    assert_eq!(agree("deepseek_v4", (36, 15)), [6, 15]);
}

#[test]
fn deepseek_4_1_is_read_as_published() {
    // Also the tables of n-grams and their projections in two layers.
    assert_eq!(agree("deepseek_v41_ngrams", (36, 19)), [6, 19]);
}
