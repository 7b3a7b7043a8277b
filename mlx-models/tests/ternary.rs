//! Checkpoints of matrices of -1, 0 and 1: their form in memory, the files that are written, and
//! what is refused.

#[path = "shared/parameters.rs"]
mod shared;

use std::path::{Path, PathBuf};

use mlx_core::{Array, DType, QuantMode, Result, Scheme, random};
use mlx_models::convert::{ConvertOptions, Packing, Recipe, convert};
use mlx_models::{LoadOptions, Loaded, load_from, open_weights};
use mlx_nn::lora::{attach, fuse};
use mlx_nn::{CacheOptions, LoraConfig, ModelCache};
use serde_json::{Value, json};

use shared::{Tensors, parameters, same};

fn dir(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/models")
        .join(case)
}

fn config(dir: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap()
}

fn loaded(dir: &Path, config: Value, dtype: Option<DType>) -> Result<Loaded> {
    let options = LoadOptions {
        dtype,
        ..LoadOptions::default()
    };
    load_from("here", config, open_weights(dir)?, options)
}

fn model(dir: &Path) -> Loaded {
    loaded(dir, config(dir), Some(DType::F32)).unwrap()
}

fn tensors(dir: &Path) -> Tensors {
    let weights = open_weights(dir).unwrap();
    let file = weights.files().next().unwrap();
    let pair = |name: &str| (name.to_owned(), file.array(name).unwrap());
    file.names().map(pair).collect()
}

fn refused(dir: &Path, config: Value) -> String {
    loaded(dir, config, None).err().expect("loaded").to_string()
}

fn logits(model: &Loaded) -> Vec<f32> {
    let ids: Vec<u32> = (0..12).map(|at| (at * 11 + 5) % 60).collect();
    let mut cache = ModelCache::new(model.model.states(), 1, CacheOptions::default());
    let input = Array::from_slice(&ids, &[1, ids.len() as i32]).unwrap();
    let mut step = cache.begin(&[ids.len()]).unwrap();
    let hidden = model.model.hidden(&input, &mut step).unwrap();
    step.commit_all().unwrap();
    model.model.logits(&hidden).unwrap().to_vec().unwrap()
}

fn converted(dir: &Path, packing: Packing, dtype: Option<DType>) -> Result<tempfile::TempDir> {
    let out = tempfile::tempdir().unwrap();
    let options = ConvertOptions {
        packing,
        dtype,
        ..ConvertOptions::default()
    };
    let files = open_weights(dir)?;
    convert(
        "here",
        config(dir),
        files,
        out.path(),
        &options,
        &mut |_, _| Ok(()),
    )?;
    Ok(out)
}

const FORMS: [&str; 3] = ["bitnet_packed", "bitnet_online", "llama_ternary"];

/// Each number has two bits. Each group of 32 numbers (of 128 in longer rows) has a scale and a
/// bias.
#[test]
fn matrices_stay_packed_in_memory() {
    for case in FORMS {
        let found = loaded(&dir(case), config(&dir(case)), None).unwrap();
        let found = parameters(&found);
        let codes = &found["model.layers.1.mlp.down_proj.weight"];
        assert_eq!(
            (codes.shape(), codes.dtype()),
            (&[32, 4][..], DType::U32),
            "{case}"
        );
        let scales = &found["model.layers.1.mlp.down_proj.scales"];
        assert_eq!(
            (scales.shape(), scales.dtype()),
            (&[32, 1][..], DType::BF16),
            "{case}"
        );
    }
}

/// Written files have the published form, whatever form was read. A packed checkpoint is written
/// with the same bytes.
#[test]
fn what_is_written_is_what_is_published() {
    for case in FORMS {
        let source = dir(case);
        // A computed scale would be rounded to the dtype of the file.
        let dtype = Some(DType::F32).filter(|_| case != "bitnet_packed");
        let out = converted(&source, Packing::Keep, dtype).unwrap();
        let written = config(out.path());
        let entry = &written["quantization_config"];
        assert_eq!(entry["quant_method"], "bitnet", "{case}");
        assert_eq!(entry["linear_class"], "autobitlinear", "{case}");
        assert_eq!(entry["quantization_mode"], "offline", "{case}");
        assert_eq!(
            logits(&model(&source)),
            logits(&model(out.path())),
            "{case}"
        );
        if case != "bitnet_packed" {
            continue;
        }
        let (expected, found) = (tensors(&source), tensors(out.path()));
        let names = |tensors: &Tensors| tensors.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&expected));
        for (name, a) in &expected {
            let b = &found[name];
            assert!(a.dtype() == b.dtype() && same(a, b), "{name}");
        }
    }
}

/// When mlx-lm packs the embedding, it overwrites the config entry that names the method. Then the
/// tensors decide.
#[test]
fn a_config_without_the_method_is_read_by_its_tensors() {
    let mut given = config(&dir("bitnet_packed"));
    given["quantization_config"] = json!({"group_size": 32, "bits": 4});
    given["quantization"] = given["quantization_config"].clone();
    let found = loaded(&dir("bitnet_packed"), given, Some(DType::F32)).unwrap();
    assert!(logits(&found) == logits(&model(&dir("bitnet_packed"))));
}

#[test]
fn other_forms_are_refused_by_name() {
    let packed = dir("bitnet_packed");
    let changed = |key: &str, value: Value| {
        let mut config = config(&packed);
        config["quantization_config"][key] = value;
        config
    };
    for (key, value, words) in [
        ("use_rms_norm", json!(true), "use_rms_norm is not supported"),
        ("linear_class", json!("other"), "linear_class \"other\""),
        (
            "quantization_mode",
            json!("later"),
            "quantization_mode \"later\"",
        ),
    ] {
        let error = refused(&packed, changed(key, value));
        assert!(error.contains(words), "{error}");
    }
    let online = dir("bitnet_online");
    let mut given = config(&online);
    given["quantization_config"]["modules_to_not_convert"] = json!(["layers.*.mlp"]);
    let error = refused(&online, given);
    assert!(
        error.contains("\"layers.*.mlp\" is not supported"),
        "{error}"
    );
    // The packed form of a file that is not packed.
    let mut given = config(&online);
    given["quantization_config"] = json!({"quant_method": "bitnet"});
    let error = refused(&online, given);
    assert!(
        error.contains("no tensor ends with .weight_scale"),
        "{error}"
    );

    let scheme = Scheme::new(32, 4, QuantMode::Affine).unwrap();
    for (packing, words) in [
        (
            Packing::Dequantize,
            "inputs of ternary matrices are rounded",
        ),
        (
            Packing::Quantize(Recipe::uniform(scheme)),
            "already quantised",
        ),
    ] {
        let error = converted(&packed, packing, None).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// An adapter reads the inputs before they are rounded, so it cannot be fused into a matrix.
#[test]
fn adapters_are_not_fused() {
    let mut model = model(&dir("bitnet_packed"));
    let config = LoraConfig::default();
    let key = random::Key::new(1).unwrap();
    attach(model.model.as_mut(), &config, &key, |path| {
        path.ends_with("q_proj")
    })
    .unwrap();
    let error = fuse(model.model.as_mut(), false).unwrap_err().to_string();
    assert!(error.contains("a layer that rounds its inputs"), "{error}");
}
