//! The files of a checkpoint decide: heads, indexes, extra tensors, and sizes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use mlx_core::{Array, DType, Safetensors, safetensors};
use mlx_models::convert::{ConvertOptions, convert};
use mlx_models::{LoadOptions, Loaded, load};
use mlx_nn::{CacheOptions, ModelCache};
use serde_json::{Value, json};

const PROMPT: [u32; 6] = [1, 5, 9, 17, 3, 22];

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models")
}

fn config(case: &str) -> Value {
    serde_json::from_slice(&fs::read(models().join(case).join("config.json")).unwrap()).unwrap()
}

fn tensors(case: &str) -> BTreeMap<String, Array> {
    let file = Safetensors::open(models().join(case).join("model.safetensors")).unwrap();
    let pairs = file
        .names()
        .map(|name| (name.to_owned(), file.array(name).unwrap()));
    pairs.collect()
}

fn save(path: PathBuf, tensors: &BTreeMap<String, Array>) {
    let arrays = tensors.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(path, arrays, &BTreeMap::new()).unwrap();
}

/// A checkpoint folder.
fn folder(config: &Value, tensors: &BTreeMap<String, Array>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    save(dir.path().join("model.safetensors"), tensors);
    dir
}

fn loaded(dir: &Path) -> Loaded {
    load(dir, LoadOptions::default()).unwrap()
}

fn refused(dir: &Path) -> String {
    match load(dir, LoadOptions::default()) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    }
}

fn logits(loaded: &Loaded) -> Vec<f32> {
    let model = loaded.model.as_ref();
    let mut cache = ModelCache::new(model.states(), 1, CacheOptions::default());
    let input = Array::from_slice(&PROMPT, &[1, PROMPT.len() as i32]).unwrap();
    let mut step = cache.begin(&[PROMPT.len()]).unwrap();
    let hidden = model.hidden(&input, &mut step).unwrap();
    let logits = model.logits(&hidden).unwrap();
    logits.astype(DType::F32).unwrap().to_vec().unwrap()
}

/// A tied config, the same config untied, and the tensors of the checkpoint with a head.
fn with_head(case: &str, head: Array) -> (Value, Value, BTreeMap<String, Array>) {
    let mut tied = config(case);
    tied["tie_word_embeddings"] = json!(true);
    let mut untied = tied.clone();
    untied["tie_word_embeddings"] = json!(false);
    let mut tensors = tensors(case);
    tensors.insert("lm_head.weight".to_owned(), head);
    (tied, untied, tensors)
}

fn embedding(case: &str) -> Array {
    tensors(case)["model.embed_tokens.weight"].clone()
}

#[test]
fn a_head_that_differs_from_the_embedding_is_used_and_kept() {
    for case in ["llama_tied", "gemma2"] {
        let embedding = embedding(case);
        let other = embedding.multiply(-0.5).unwrap();
        let (mut tied, untied, tensors) = with_head(case, other);
        if case == "gemma2" {
            // Gemma's default is a tied head.
            tied.as_object_mut()
                .unwrap()
                .shift_remove("tie_word_embeddings");
        }
        let expected = logits(&loaded(folder(&untied, &tensors).path()));
        let dir = folder(&tied, &tensors);
        assert_eq!(logits(&loaded(dir.path())), expected, "{case}");

        // The converted config has the key, for readers that would otherwise ignore the head.
        let out = tempfile::tempdir().unwrap();
        let files = mlx_models::open_weights(dir.path()).unwrap();
        let options = ConvertOptions::default();
        let (config, out) = (tied.clone(), out.path());
        convert("here", config, files, out, &options, &mut |_, _| Ok(())).unwrap();
        let written: Value =
            serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
        assert_eq!(written["tie_word_embeddings"], json!(false), "{case}");
        assert_eq!(logits(&loaded(out)), expected, "{case}");
    }
}

#[test]
fn a_copy_of_the_embedding_is_no_head_of_its_own() {
    let plain = loaded(&models().join("llama_tied"));
    let (tied, _, tensors) = with_head("llama_tied", embedding("llama_tied"));
    let copy = loaded(folder(&tied, &tensors).path());
    assert_eq!(copy.info.n_parameters, plain.info.n_parameters);
    assert_eq!(logits(&copy), logits(&plain));
}

#[test]
fn a_head_without_an_embedding_is_both() {
    let (tied, _, mut tensors) = with_head("llama_tied", embedding("llama_tied"));
    tensors.remove("model.embed_tokens.weight").unwrap();
    let plain = loaded(&models().join("llama_tied"));
    let found = loaded(folder(&tied, &tensors).path());
    assert_eq!(logits(&found), logits(&plain));
}

/// As in transformers: `model.safetensors` takes precedence over an index, whatever the index lists.
#[test]
fn a_whole_file_goes_before_an_index() {
    let dir = folder(&config("llama_tied"), &tensors("llama_tied"));
    let expected = logits(&loaded(dir.path()));
    let index = dir.path().join("model.safetensors.index.json");
    let shard = "model-00001-of-00002.safetensors";
    let map = json!({"weight_map": {"model.norm.weight": shard}});
    for text in [map.to_string(), "{".to_owned()] {
        fs::write(&index, text).unwrap();
        assert_eq!(logits(&loaded(dir.path())), expected);
    }
    fs::write(&index, map.to_string()).unwrap();
    fs::write(dir.path().join(shard), b"no safetensors").unwrap();
    assert_eq!(logits(&loaded(dir.path())), expected);
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    assert!(refused(dir.path()).contains(shard));
}

#[test]
fn extra_tensors_are_refused_in_every_dtype() {
    for case in ["llama_tied", "qwen3", "q_llama_b4_g64"] {
        for name in [
            "lm_head.bias",
            "model.layers.0.mlp.extra.weight",
            "model.layers.9.mlp.up_proj.weight",
            "visual.patch_embed.weight",
            "model.embed_tokens.bias",
        ] {
            for dtype in [
                DType::F32,
                DType::BF16,
                DType::F16,
                DType::I32,
                DType::U8,
                DType::Bool,
            ] {
                let mut tensors = tensors(case);
                let extra = Array::from_slice(&[0.0f32; 64], &[64]).unwrap();
                tensors.insert(name.to_owned(), extra.astype(dtype).unwrap());
                let error = refused(folder(&config(case), &tensors).path());
                let expected = format!("1 unexpected: {name}");
                assert!(error.contains(&expected), "{case}, {dtype}: {error}");
            }
        }
    }
}

/// Python writes numbers that JSON does not allow.
#[test]
fn numbers_of_python_in_a_config_are_read() {
    let dir = folder(&config("llama_tied"), &tensors("llama_tied"));
    let expected = logits(&loaded(dir.path()));
    let text = config("llama_tied").to_string();
    for extra in [
        "\"limit\": [0.0, Infinity]",
        "\"limit\": -Infinity",
        "\"limit\": NaN",
        "\"limit\": {\"__float__\": \"Infinity\"}",
    ] {
        let text = format!("{{{extra}, {}", &text[1..]);
        fs::write(dir.path().join("config.json"), text).unwrap();
        assert_eq!(logits(&loaded(dir.path())), expected, "{extra}");
    }
    let text = text.replace("\"rms_norm_eps\":0.02", "\"rms_norm_eps\":Infinity");
    fs::write(dir.path().join("config.json"), text).unwrap();
    assert!(refused(dir.path()).contains("rms_norm_eps"));
}

/// YaRN multiplies the original context length by its factor, even if `max_position_embeddings` is
/// the original length.
#[test]
fn yarn_extends_the_context() {
    let scaling =
        json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128});
    for case in ["llama_tied", "qwen3", "gemma2", "gemma3_text"] {
        for (given, expected) in [(json!(160), Some(512)), (json!(1024), Some(1024))] {
            let mut config = config(case);
            config["max_position_embeddings"] = given;
            config["rope_scaling"] = scaling.clone();
            let found = loaded(folder(&config, &tensors(case)).path());
            assert_eq!(found.info.max_positions, expected, "{case}");
        }
    }
}

/// Keys that a wrapper config leaves out have the defaults of the text model's own class. The sizes
/// of the caches follow from them too.
#[test]
fn a_wrapper_may_leave_keys_out() {
    let mut config = config("gemma3");
    let text = config["text_config"].as_object_mut().unwrap();
    for key in [
        "num_key_value_heads",
        "head_dim",
        "num_attention_heads",
        "vocab_size",
        "hidden_size",
    ] {
        text.shift_remove(key);
    }
    // Gemma 3's defaults differ from the fixture's sizes: the tensors do not fit, and the report names the sizes.
    let files = mlx_models::open_weights(&models().join("gemma3")).unwrap();
    let result = mlx_models::load_from("here", config, files, LoadOptions::default());
    let Err(error) = result else { panic!("loaded") };
    let error = error.to_string();
    assert!(error.contains("expected [2048, 2304]"), "{error}");
}

/// The sizes of such a model, which caches and `info` use, are those of its tensors: 4 KV heads of
/// size 256.
#[test]
fn sizes_of_a_wrapper_without_keys_are_those_of_its_class() {
    let mut config = config("gemma3");
    let text = config["text_config"].as_object_mut().unwrap();
    for key in ["num_key_value_heads", "head_dim", "num_attention_heads"] {
        text.shift_remove(key);
    }
    text.insert("num_hidden_layers".to_owned(), json!(2));
    let built = mlx_models::initialised("here", config, 1).unwrap();
    let layers = built.model.geometry().layers();
    assert_eq!(layers.len(), 2);
    for layer in layers {
        let kv = layer.kv.unwrap();
        assert_eq!((layer.heads, kv.heads, kv.key_dim), (8, 4, 256));
    }
    // The keys that a layer stores have these sizes.
    assert_eq!(logits(&built).len(), PROMPT.len() * 64);
    let model = built.model.as_ref();
    let mut cache = ModelCache::new(model.states(), 1, CacheOptions::default());
    let input = Array::from_slice(&PROMPT, &[1, PROMPT.len() as i32]).unwrap();
    let mut step = cache.begin(&[PROMPT.len()]).unwrap();
    model.hidden(&input, &mut step).unwrap();
    step.commit_all().unwrap();
    let arrays = cache.arrays();
    let keys = arrays[0].shape();
    assert_eq!((keys[1], keys[3]), (4, 256));
}

/// Models compute in F32 at most: F64 tensors are rounded to it, as transformers does with `torch_dtype: float32`.
#[test]
fn tensors_in_f64_load_as_f32() {
    let mut tensors = tensors("llama_tied");
    let expected = logits(&loaded(folder(&config("llama_tied"), &tensors).path()));
    let f32s = |name: &str, tensors: &BTreeMap<String, Array>| {
        tensors[name]
            .astype(DType::F32)
            .unwrap()
            .to_vec::<f32>()
            .unwrap()
    };
    let norm = "model.norm.weight";
    let before = f32s(norm, &tensors);
    for array in tensors.values_mut() {
        let numbers = array.astype(DType::F32).unwrap().to_vec::<f32>().unwrap();
        let numbers: Vec<f64> = numbers.into_iter().map(f64::from).collect();
        *array = Array::from_slice(&numbers, array.shape()).unwrap();
        assert_eq!(array.dtype(), DType::F64);
    }
    let dir = folder(&config("llama_tied"), &tensors);
    let found = loaded(dir.path());
    assert_eq!(found.info.dtype, DType::F32);
    assert_eq!(logits(&found), expected);
    // Rounded to nearest, not truncated.
    let fine: Vec<f64> = before
        .iter()
        .map(|&n| f64::from(n) * (1.0 - 1e-9))
        .collect();
    let shape = [fine.len() as i32];
    tensors.insert(norm.to_owned(), Array::from_slice(&fine, &shape).unwrap());
    assert_eq!(
        logits(&loaded(folder(&config("llama_tied"), &tensors).path())),
        expected
    );
    // The converted file has the tensors in F32.
    let out = tempfile::tempdir().unwrap();
    let files = mlx_models::open_weights(dir.path()).unwrap();
    let options = ConvertOptions::default();
    convert(
        "here",
        config("llama_tied"),
        files,
        out.path(),
        &options,
        &mut |_, _| Ok(()),
    )
    .unwrap();
    let file = Safetensors::open(out.path().join("model.safetensors")).unwrap();
    assert!(
        file.names()
            .all(|name| file.info(name).unwrap().0 == DType::F32)
    );
}

/// The bias of a head that shares the embedding's matrix is used, and a converted folder has both.
#[test]
fn a_tied_head_may_have_a_bias() {
    for case in ["phi", "ernie4_5_moe"] {
        let (mut config, mut own) = (config(case), tensors(case));
        assert!(own.contains_key("lm_head.bias"), "{case}");
        let embedding = own["model.embed_tokens.weight"].clone();
        own.insert("lm_head.weight".to_owned(), embedding);
        config["tie_word_embeddings"] = false.into();
        let untied = folder(&config, &own);
        let expected = logits(&loaded(untied.path()));
        own.remove("lm_head.weight");
        config["tie_word_embeddings"] = true.into();
        let tied = folder(&config, &own);
        assert_eq!(logits(&loaded(tied.path())), expected, "{case}");
        let out = tempfile::tempdir().unwrap();
        let files = vec![Safetensors::open(tied.path().join("model.safetensors")).unwrap()];
        let options = ConvertOptions::default();
        let to = out.path();
        convert(case, config, files, to, &options, &mut |_, _| Ok(())).unwrap();
        assert_eq!(logits(&loaded(out.path())), expected, "{case}, converted");
    }
}
