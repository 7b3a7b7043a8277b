//! Adapters on packed weights: they compute and train as on the same weights unpacked.

use mlx_core::{Array, DType, random};
use mlx_models::Loaded;
use mlx_nn::lora::{adapt, attach, fuse};
use mlx_nn::{CacheOptions, Gradients, LoraConfig, ModelCache, Param, VisitMut, quantize};

use serde_json::Value;

use super::packed::parameters;
use super::{folder, json, loaded};

/// A case of each form in memory: factors of rows, F32 biases, nvfp4 with factors, experts of both.
const CASES: [&str; 6] = [
    "awq_llama",
    "awq_qwen3_moe",
    "gptq_glm4",
    "nvfp4_llama",
    "int8_gpt_neox",
    "modelopt_qwen3_moe",
];
const PROMPT: [u32; 5] = [9, 17, 30, 12, 44];

fn logits(model: &Loaded) -> mlx_core::Result<Array> {
    let model = model.model.as_ref();
    let mut cache = ModelCache::new(model.states(), 1, CacheOptions::default());
    let input = Array::from_slice(&PROMPT, &[1, PROMPT.len() as i32])?;
    let mut step = cache.begin(&[PROMPT.len()])?;
    let hidden = model.hidden(&input, &mut step)?;
    model.logits(&hidden)
}

/// The largest distance of two arrays, in parts of the largest number.
fn off(a: &Array, b: &Array) -> f32 {
    let (a, b): (Vec<f32>, Vec<f32>) = (a.to_vec().unwrap(), b.to_vec().unwrap());
    let largest = a.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let pairs = a.iter().zip(&b);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

/// A saved model has MLX's `quantization`, wherever the settings of its files were.
#[test]
fn saved_models_describe_their_packing() {
    for case in CASES {
        let model = loaded(&folder(case), Some(DType::F32)).unwrap();
        let before = logits(&model).unwrap();
        let Value::Object(config) = json(&folder(case).join("config.json")) else {
            panic!("{case}: config.json is no object");
        };
        let to = tempfile::tempdir().unwrap();
        mlx_models::convert::save(model.model.as_ref(), &config, to.path()).unwrap();
        let again = loaded(to.path(), Some(DType::F32)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again.info.quantization, model.info.quantization, "{case}");
        assert_eq!(again.info.stored, None, "{case}");
        let found = off(&before, &logits(&again).unwrap());
        assert!(found < 1e-5, "{case}: off by {found}");
    }
}

/// Gives adapters random numbers instead of B = 0.
struct Draw;

impl VisitMut for Draw {
    fn param(&mut self, path: &mlx_nn::Path, param: &mut Param) -> mlx_core::Result<()> {
        if adapt::is_adapter(path.as_str()) && path.as_str().ends_with("lora_b") {
            let key = random::Key::new(3)?;
            let drawn = random::normal_with(&key, param.shape(), DType::F32, 0.0, 0.05)?;
            param.set(drawn);
        }
        Ok(())
    }
}

fn adapted(case: &str, unpacked: bool) -> Loaded {
    adapted_in(case, unpacked, Some(DType::F32))
}

fn adapted_in(case: &str, unpacked: bool, dtype: Option<DType>) -> Loaded {
    let mut model = loaded(&folder(case), dtype).unwrap();
    if unpacked {
        quantize::dequantize(model.model.as_mut(), dtype).unwrap();
    }
    let key = random::Key::new(5).unwrap();
    let select = |path: &str| path.ends_with("_proj");
    attach(model.model.as_mut(), &LoraConfig::default(), &key, select).unwrap();
    let path = &mut mlx_nn::Path::default();
    model.model.visit_mut(path, &mut Draw).unwrap();
    model
}

fn gradients(model: &mut Loaded) -> Gradients {
    let Loaded { model, .. } = model;
    let (loss, gradients) = mlx_nn::value_and_grad(model.as_mut(), |model| {
        let mut cache = ModelCache::new(model.states(), 1, CacheOptions::default());
        let input = Array::from_slice(&PROMPT, &[1, PROMPT.len() as i32])?;
        let mut step = cache.begin(&[PROMPT.len()])?;
        let hidden = model.hidden(&input, &mut step)?;
        let logits = model.logits(&hidden)?.astype(DType::F32)?;
        logits.square()?.mean_all()
    })
    .unwrap();
    assert!(loss.item::<f32>().unwrap() > 0.0);
    gradients
}

#[test]
fn adapters_compute_and_train_as_on_unpacked_weights() {
    for case in CASES {
        let (mut packed, mut dense) = (adapted(case, false), adapted(case, true));
        assert!(packed.info.quantization.is_some(), "{case}");
        let found = off(&logits(&dense).unwrap(), &logits(&packed).unwrap());
        assert!(found < 1e-4, "{case}: logits are off by {found}");
        let (packed, dense) = (gradients(&mut packed), gradients(&mut dense));
        assert!(dense.len() > 4 && packed.keys().eq(dense.keys()), "{case}");
        for (name, dense) in &dense {
            let found = off(dense, &packed[name]);
            assert!(
                found < 1e-3,
                "{case}: the gradient of {name} is off by {found}"
            );
        }
    }
}

/// In 16 bits the forms have more steps: residues, factors, products in F32.
#[test]
fn adapters_train_in_sixteen_bits() {
    for case in CASES {
        let (mut packed, mut dense) = (adapted_in(case, false, None), adapted(case, true));
        let (packed, dense) = (gradients(&mut packed), gradients(&mut dense));
        assert!(packed.keys().eq(dense.keys()), "{case}");
        for (name, dense) in &dense {
            let packed = packed[name].astype(DType::F32).unwrap();
            let found = off(dense, &packed);
            assert!(
                found < 0.2,
                "{case}: the gradient of {name} is off by {found}"
            );
        }
    }
}

#[test]
fn adapters_are_fused_into_packed_weights() {
    for case in CASES {
        let mut model = adapted(case, false);
        let before = logits(&model).unwrap();
        before.eval().unwrap();
        assert!(fuse(model.model.as_mut(), true).unwrap() > 3, "{case}");
        let found = off(&before, &logits(&model).unwrap());
        // nvfp4 is fused into BF16.
        let least = if case.contains("nvfp4") || case.contains("modelopt") {
            0.05
        } else {
            1e-4
        };
        assert!(found < least, "{case}: unpacked, off by {found}");
        // Packing rounds each matrix to the few numbers of its scheme again.
        let mut packed = adapted(case, false);
        fuse(packed.model.as_mut(), false).unwrap();
        quantize::dequantize(packed.model.as_mut(), Some(DType::F32)).unwrap();
        quantize::dequantize(model.model.as_mut(), Some(DType::F32)).unwrap();
        let (packed, dense) = (parameters(&packed), parameters(&model));
        assert!(packed.len() == dense.len() && !dense.is_empty(), "{case}");
        for ((path, packed), (_, dense)) in packed.iter().zip(&dense) {
            let dense = dense.astype(DType::F32).unwrap();
            let norm = |array: &Array| -> f32 {
                let sum = array.square().unwrap().sum_all().unwrap();
                sum.item::<f32>().unwrap().sqrt()
            };
            let found = norm(&packed.subtract(&dense).unwrap()) / norm(&dense);
            assert!(found < 0.12, "{case}: {path} is off by {found}");
        }
    }
}
