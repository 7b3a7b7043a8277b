//! Adapters of mlx-lm and PEFT: their results, the written files, and the adapters that are
//! refused.

use std::fs;
use std::path::{Path, PathBuf};

use mlx_core::{Array, DType, Safetensors};
use mlx_models::adapter::{self, AdapterConfig, AdapterKind};
use mlx_models::{LoadOptions, Model, load};
use mlx_nn::trainable::trainable;
use mlx_nn::{CacheOptions, ModelCache, lora};
use serde_json::{Value, json};

#[path = "adapters/peft.rs"]
mod peft;

const PROMPT: [u32; 12] = [7, 1, 30, 12, 44, 2, 19, 55, 3, 21, 9, 40];
const CASES: [(&str, &str); 9] = [
    ("dora-llama_tied", "llama_tied"),
    ("lora-q_qwen3_b5_g32", "q_qwen3_b5_g32"),
    ("peft-qwen3", "qwen3"),
    ("peft-dora-llama_tied", "llama_tied"),
    // Experts, their router, and the embedding of a model with a separate head.
    ("lora-qwen3_moe", "qwen3_moe"),
    ("lora-q_qwen3_moe_b4_g32", "q_qwen3_moe_b4_g32"),
    // An embedding that is also the head.
    ("dora-head-llama_tied", "llama_tied"),
    ("lora-q_gemma3_text_b4_g32", "q_gemma3_text_b4_g32"),
    ("peft-llama_bias", "llama_bias"),
];

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata")
        .join(name)
}

fn folder(case: &str) -> PathBuf {
    testdata("train/adapters").join(case)
}

fn model(name: &str) -> Box<dyn Model> {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    load(testdata("models").join(name), options).unwrap().model
}

fn logits(model: &dyn Model) -> Vec<f32> {
    let mut cache = ModelCache::new(model.states(), 1, CacheOptions::default());
    let input = Array::from_slice(&PROMPT, &[1, PROMPT.len() as i32]).unwrap();
    let mut step = cache.begin(&[PROMPT.len()]).unwrap();
    let hidden = model.hidden(&input, &mut step).unwrap();
    model.logits(&hidden).unwrap().to_vec::<f32>().unwrap()
}

fn off(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn adapters_compute_what_their_makers_say() {
    for (case, name) in CASES {
        let golden = Safetensors::open(folder(case).join("golden.safetensors")).unwrap();
        let expected = golden.array("logits").unwrap().to_vec::<f32>().unwrap();
        let mut model = model(name);
        let plain = logits(model.as_ref());
        assert!(off(&plain, &expected) > 0.1, "{case}: the adapter shows");
        let adapter = adapter::load(&folder(case), model.as_mut()).unwrap();
        let found = logits(model.as_ref());
        assert!(
            off(&found, &expected) < 2e-4,
            "{case}: {}",
            off(&found, &expected)
        );
        assert_eq!(adapter.dropout, 0.1);
        let names: Vec<String> = trainable(model.as_ref())
            .unwrap()
            .into_iter()
            .map(|p| p.0)
            .collect();
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(adapter.names, sorted);
        // The file stays valid after its weights were added to the matrices.
        lora::fuse(model.as_mut(), true).unwrap();
        let fused = logits(model.as_ref());
        assert!(
            off(&fused, &expected) < 1e-3,
            "{case}: {}",
            off(&fused, &expected)
        );
    }
}

#[test]
fn what_is_written_reads_the_same() {
    for (case, name) in CASES {
        let mut model = model(name);
        let read = adapter::load(&folder(case), model.as_mut()).unwrap();
        let expected = logits(model.as_ref());
        let arrays = trainable(model.as_ref()).unwrap();
        let (_, first) = lora::detach(model.as_mut()).unwrap().remove(0);
        let dir = tempfile::tempdir().unwrap();
        let config = AdapterConfig {
            kind: read.kind,
            rank: 3,
            scale: first.scale,
            dropout: read.dropout,
            num_layers: 2,
            keys: vec!["self_attn.q_proj".to_owned()],
            facts: serde_json::Map::new(),
        };
        let pairs = arrays.iter().map(|(name, array)| (name.as_str(), array));
        adapter::write(dir.path(), &config, pairs).unwrap();
        let json: Value =
            serde_json::from_slice(&fs::read(dir.path().join("adapter_config.json")).unwrap())
                .unwrap();
        if case == "dora-llama_tied" {
            assert_eq!(
                json,
                json!({"fine_tune_type": "dora", "num_layers": 2, "lora_parameters":
                    {"rank": 3, "scale": 4.0, "dropout": 0.1, "keys": ["self_attn.q_proj"]}})
            );
        }
        let again = adapter::load(dir.path(), model.as_mut()).unwrap();
        assert_eq!(again, read);
        assert_eq!(logits(model.as_ref()), expected, "{case}");
        // No other file is left in the folder.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}

/// Parameters of the model itself, in mlx-lm's format for full fine-tuning.
#[test]
fn full_parameters_replace_the_models_own() {
    let mut target = model("qwen3");
    let before = logits(target.as_ref());
    let name = "model.layers.1.mlp.up_proj.weight";
    let dir = tempfile::tempdir().unwrap();
    let write = |array: &Array, name: &str| {
        let config = AdapterConfig {
            kind: AdapterKind::Full,
            rank: 0,
            scale: 0.0,
            dropout: 0.0,
            num_layers: -1,
            keys: Vec::new(),
            facts: serde_json::Map::new(),
        };
        adapter::write(dir.path(), &config, [(name, array)]).unwrap();
    };
    let zeros = |shape: &[i32]| mlx_core::ops::create::zeros(shape, DType::BF16).unwrap();
    write(&zeros(&[48, 32]), name);
    let adapter = adapter::load(dir.path(), target.as_mut()).unwrap();
    assert_eq!(adapter.names, [name]);
    let changed = logits(target.as_ref());
    assert!(off(&before, &changed) > 0.1);
    write(&zeros(&[32, 48]), name);
    let error = adapter::load(dir.path(), target.as_mut())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("expected [48, 32] F32, found [32, 48] BF16"),
        "{error}"
    );
    write(&zeros(&[48, 32]), "model.layers.9.mlp.up_proj.weight");
    let error = adapter::load(dir.path(), target.as_mut())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("layers.9.mlp.up_proj.weight: no parameter of the model"),
        "{error}"
    );
    assert_eq!(logits(target.as_ref()), changed);
}

/// All faults are in one report, and the model is unchanged.
#[test]
fn an_adapter_of_another_model_is_refused_whole() {
    let mut target = model("qwen3");
    let before = logits(target.as_ref());
    let error = adapter::load(&folder("dora-llama_tied"), target.as_mut())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("model.layers.2.self_attn.q_proj: no layer of the model has this name"),
        "{error}"
    );
    assert_eq!(logits(target.as_ref()), before);
}

/// A copy of a case's folder with some settings replaced.
fn patched(case: &str, patch: &Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder(case)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let file = dir.path().join("adapter_config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for (key, value) in patch.as_object().unwrap() {
        config[key] = value.clone();
    }
    fs::write(&file, config.to_string()).unwrap();
    dir
}

/// The reason why a case with other settings is refused.
fn refused(case: &str, patch: Value) -> String {
    let dir = patched(case, &patch);
    let name = CASES.iter().find(|(found, _)| *found == case).unwrap().1;
    match adapter::load(dir.path(), model(name).as_mut()) {
        Ok(_) => panic!("{case} loads with {patch}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn settings_that_change_the_result_are_refused() {
    for (case, patch, message) in [
        (
            "peft-qwen3",
            json!({"peft_type": "LOHA"}),
            "peft_type \"LOHA\" is not supported",
        ),
        (
            "peft-qwen3",
            json!({"bias": "all"}),
            "bias: \"all\" is not supported",
        ),
        (
            "peft-qwen3",
            json!({"alpha_pattern": {"k_proj": "3"}}),
            "alpha_pattern: expected a number",
        ),
        (
            "peft-qwen3",
            json!({"lora_alpha": "five"}),
            "lora_alpha: expected a number",
        ),
        (
            "peft-llama_bias",
            json!({"use_dora": true}),
            "use_dora: PEFT's magnitudes of an embedding are those of its columns",
        ),
        (
            "dora-llama_tied",
            json!({"fine_tune_type": "prefix"}),
            "known: lora, dora, full",
        ),
        (
            "dora-llama_tied",
            json!({"fine_tune_type": "lora"}),
            "no array of a lora adapter",
        ),
        (
            "dora-llama_tied",
            json!({"lora_parameters": {"rank": 3}}),
            "lora_parameters.scale",
        ),
        (
            "lora-q_qwen3_b5_g32",
            json!({"fine_tune_type": "dora"}),
            "expected m of [64], found None",
        ),
    ] {
        let error = refused(case, patch);
        assert!(error.contains(message), "{case}: {error}");
    }
}

/// Beside the adapter of an embedding PEFT writes the embedding's table, and PEFT does not adapt a
/// head that shares the table.
#[test]
fn an_embedding_of_peft_is_refused_where_it_means_something_else() {
    let refused = |dir: &Path| {
        let mut model = model("llama_tied");
        let result = adapter::load(dir, model.as_mut());
        result.unwrap_err().to_string()
    };
    let error = refused(&folder("peft-llama_bias"));
    assert!(
        error.contains("embed_tokens.base_layer.weight [64, 32] is not the model's"),
        "{error}"
    );
    let dir = tempfile::tempdir().unwrap();
    let config = folder("peft-llama_bias").join("adapter_config.json");
    fs::copy(config, dir.path().join("adapter_config.json")).unwrap();
    let file = folder("peft-llama_bias").join("adapter_model.safetensors");
    let file = Safetensors::open(file).unwrap();
    let names = file.names().filter(|name| !name.contains("base_layer"));
    let arrays: Vec<(&str, Array)> = names
        .map(|name| (name, file.array(name).unwrap()))
        .collect();
    let arrays = arrays.iter().map(|(name, array)| (*name, array));
    let to = dir.path().join("adapter_model.safetensors");
    mlx_core::safetensors::save(to, arrays, &Default::default()).unwrap();
    let error = refused(dir.path());
    assert!(error.contains("leaves a tied head alone"), "{error}");
}

/// No linear layer, embedding or expert of any architecture is computed without its adapter.
#[test]
fn every_layer_heeds_its_adapter() {
    struct Paths(Vec<String>);
    impl mlx_nn::Visit for Paths {
        fn adaptable(
            &mut self,
            path: &mlx_nn::Path,
            _layer: mlx_nn::AdaptableLayer<'_>,
        ) -> mlx_core::Result<()> {
            self.0.push(path.as_str().to_owned());
            Ok(())
        }
    }
    struct Fill;
    impl mlx_nn::VisitMut for Fill {
        fn param(
            &mut self,
            path: &mlx_nn::Path,
            param: &mut mlx_nn::Param,
        ) -> mlx_core::Result<()> {
            if path.as_str().ends_with(".lora_b") {
                let key = mlx_core::random::Key::new(4)?;
                let shape = param.shape().to_vec();
                param.set(mlx_core::random::normal(&key, &shape, DType::F32)?);
            }
            Ok(())
        }
    }
    for name in [
        "llama_bias",
        "mistral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "gemma2",
        "gemma3_text",
        "phi3",
        "q_llama_b4_g64",
        "q_phi3_b4_g64",
        "q_qwen3_moe_mxfp4",
    ] {
        let mut model = model(name);
        let plain = logits(model.as_ref());
        let mut paths = Paths(Vec::new());
        model
            .visit(&mut mlx_nn::Path::default(), &mut paths)
            .unwrap();
        assert!(paths.0.len() >= 9, "{name}: {:?}", paths.0);
        assert!(paths.0.iter().any(|path| path == "model.embed_tokens"));
        let experts = paths.0.iter().any(|path| path.contains(".switch_mlp."));
        assert_eq!(experts, name.contains("moe"));
        for path in &paths.0 {
            let key = mlx_core::random::Key::new(1).unwrap();
            let config = lora::LoraConfig::default();
            lora::attach(model.as_mut(), &config, &key, |found| found == path).unwrap();
            assert_eq!(
                logits(model.as_ref()),
                plain,
                "{name}: {path} begins with nothing"
            );
            model
                .visit_mut(&mut mlx_nn::Path::default(), &mut Fill)
                .unwrap();
            assert!(
                off(&logits(model.as_ref()), &plain) > 1e-3,
                "{name}: {path}"
            );
            lora::detach(model.as_mut()).unwrap();
        }
    }
}

/// Adapters of both formats become those of the other with the same results, and the first again.
#[test]
fn formats_are_exchanged() {
    use adapter::AdapterFormat::{MlxLm, Peft};
    let dir = tempfile::tempdir().unwrap();
    let mut exchanged = Vec::new();
    for (case, name) in CASES {
        let mut of_source = model(name);
        adapter::load(&folder(case), of_source.as_mut()).unwrap();
        let expected = logits(of_source.as_ref());
        let (there, back) = (
            dir.path().join(case),
            dir.path().join(format!("{case}-back")),
        );
        let format = match adapter::convert(&folder(case), model(name).as_mut(), Some("m"), &there)
        {
            Ok(format) => format,
            Err(error) => {
                let expected = [
                    "PEFT has no adapters of stacked experts",
                    "PEFT's magnitudes of an embedding are those of its columns",
                    "the adapter of an embedding leaves a tied head alone in PEFT",
                ];
                let error = error.to_string();
                assert!(
                    expected.iter().any(|part| error.contains(part)),
                    "{case}: {error}"
                );
                continue;
            }
        };
        assert_eq!(
            format,
            if case.starts_with("peft") {
                MlxLm
            } else {
                Peft
            },
            "{case}"
        );
        let returned = adapter::convert(&there, model(name).as_mut(), None, &back).unwrap();
        assert_eq!(
            returned,
            if format == Peft { MlxLm } else { Peft },
            "{case}"
        );
        for written in [there, back] {
            let mut read = model(name);
            adapter::load(&written, read.as_mut()).unwrap();
            let found = logits(read.as_ref());
            assert!(
                off(&found, &expected) < 1e-5,
                "{case}: {}",
                off(&found, &expected)
            );
        }
        exchanged.push(case);
    }
    assert!(exchanged.len() >= 5, "{exchanged:?}");
}

/// The one scale of mlx-lm has the sign of the largest of PEFT's.
#[test]
fn negative_alphas_are_exchanged() {
    for patch in [
        json!({"lora_alpha": -6}),
        json!({"lora_alpha": -6, "alpha_pattern": {"k_proj": 3}}),
        json!({"lora_alpha": 0}),
    ] {
        let from = patched("peft-qwen3", &patch);
        let mut of_source = model("qwen3");
        adapter::load(from.path(), of_source.as_mut()).unwrap();
        let to = from.path().join("to");
        adapter::convert(from.path(), model("qwen3").as_mut(), None, &to).unwrap();
        let mut read = model("qwen3");
        adapter::load(&to, read.as_mut()).unwrap();
        let (found, expected) = (logits(read.as_ref()), logits(of_source.as_ref()));
        assert!(found.iter().all(|x| x.is_finite()), "{patch}");
        assert!(
            off(&found, &expected) < 1e-5,
            "{patch}: {}",
            off(&found, &expected)
        );
    }
}

/// Layers of different ranks and a full fine-tuning.
#[test]
fn ranks_are_padded_and_full_parameters_refused() {
    let dir = tempfile::tempdir().unwrap();
    let expected = {
        let mut model = model("qwen3");
        adapter::load(&folder("peft-qwen3"), model.as_mut()).unwrap();
        logits(model.as_ref())
    };
    let written = dir.path().join("mlx");
    adapter::convert(
        &folder("peft-qwen3"),
        model("qwen3").as_mut(),
        None,
        &written,
    )
    .unwrap();
    let config: Value =
        serde_json::from_str(&fs::read_to_string(written.join("adapter_config.json")).unwrap())
            .unwrap();
    let rank = config["lora_parameters"]["rank"].as_i64().unwrap();
    let file = Safetensors::open(written.join("adapters.safetensors")).unwrap();
    for name in file.names() {
        let shape = file.info(name).unwrap().1.to_vec();
        let ranked = if name.ends_with("lora_a") {
            shape[1]
        } else {
            shape[0]
        };
        assert_eq!(i64::from(ranked), rank, "{name}");
    }
    let mut read = model("qwen3");
    adapter::load(&written, read.as_mut()).unwrap();
    assert!(off(&logits(read.as_ref()), &expected) < 1e-5);
    let full = dir.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(
        full.join("adapter_config.json"),
        r#"{"fine_tune_type": "full"}"#,
    )
    .unwrap();
    let weights = Array::from_slice(&[1f32; 32], &[32]).unwrap();
    let name = "model.norm.weight";
    mlx_core::save_safetensors(full.join("adapters.safetensors"), [(name, weights)]).unwrap();
    let to = dir.path().join("peft");
    let error = adapter::convert(&full, model("qwen3").as_mut(), None, &to).unwrap_err();
    assert!(
        error.to_string().contains("PEFT has no files for a full"),
        "{error}"
    );
    assert!(!to.exists());
}
