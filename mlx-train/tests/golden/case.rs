//! Models, data and expected results of the goldens.

use std::path::{Path, PathBuf};

use mlx_core::{DType, Safetensors, random};
use mlx_models::{LoadOptions, Model, load};
use mlx_nn::lora::{LoraConfig, attach};
use mlx_nn::trainable::set_trainable;
use mlx_nn::{Param, VisitMut};
use mlx_train::Example;
use serde_json::Value;

pub struct Case {
    pub facts: Value,
    pub arrays: Safetensors,
    pub model: Box<dyn Model>,
}

/// A file of the repository in which this program was built, or of the current folder if the
/// program was copied to another machine.
pub fn testdata(name: &str) -> PathBuf {
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata");
    let root = match built_in.exists() {
        true => built_in,
        false => PathBuf::from("testdata"),
    };
    root.join(name)
}

pub fn case(model: &str, kind: &str) -> Case {
    case_in(model, kind, DType::F32)
}

/// A case whose model has weights of another dtype. Adapters are in F32.
pub fn case_in(model: &str, kind: &str, dtype: DType) -> Case {
    let stem = format!("train/{model}-{kind}");
    let facts = std::fs::read(testdata(&format!("{stem}.json"))).unwrap();
    let facts: Value = serde_json::from_slice(&facts).unwrap();
    let arrays = Safetensors::open(testdata(&format!("{stem}.safetensors"))).unwrap();
    let options = LoadOptions {
        dtype: Some(dtype),
        ..LoadOptions::default()
    };
    let loaded = load(testdata(&format!("models/{model}")), options);
    let mut model = loaded.unwrap().model;
    if facts["lora"].is_null() {
        set_trainable(model.as_mut(), |path| !path.starts_with("mtp.")).unwrap();
    } else {
        attach_lora(model.as_mut(), &facts["lora"], kind == "dora", &arrays);
    }
    Case {
        facts,
        arrays,
        model,
    }
}

/// Adapters with the reference's initial values.
fn attach_lora(model: &mut dyn Model, facts: &Value, dora: bool, arrays: &Safetensors) {
    struct Start<'a>(&'a Safetensors);
    impl VisitMut for Start<'_> {
        fn param(&mut self, path: &mlx_nn::Path, param: &mut Param) -> mlx_core::Result<()> {
            let name = format!("start.{}", path.as_str());
            if self.0.contains(&name) {
                param.set(self.0.array(&name)?);
            }
            Ok(())
        }
    }
    let targets: Vec<String> = serde_json::from_value(facts["targets"].clone()).unwrap();
    let config = LoraConfig {
        rank: facts["rank"].as_i64().unwrap() as i32,
        scale: facts["scale"].as_f64().unwrap() as f32,
        dora,
        ..LoraConfig::default()
    };
    let key = random::Key::new(0).unwrap();
    attach(&mut *model, &config, &key, |path| {
        targets.iter().any(|target| path.ends_with(target.as_str()))
    })
    .unwrap();
    let mut start = Start(arrays);
    model
        .visit_mut(&mut mlx_nn::Path::default(), &mut start)
        .unwrap();
}

pub fn examples(facts: &Value) -> Vec<Example> {
    let rows: Vec<Vec<u32>> = serde_json::from_value(facts["rows"].clone()).unwrap();
    let prompts: Vec<usize> = serde_json::from_value(facts["prompts"].clone()).unwrap();
    let rows = rows.into_iter().zip(prompts);
    rows.map(|(tokens, prompt)| Example::new(tokens, prompt))
        .collect()
}
