//! Decoders whose files have no output head, as models for embeddings are published: tensors without the prefix
//! `model.`, and a config that does not tie the head.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mlx_core::{Array, DType, QuantMode, Safetensors, Scheme, safetensors};
use mlx_models::convert::{
    ConvertOptions, GgufType, Mixed, Packing, Recipe, convert, convert_to_gguf, save,
};
use mlx_models::{LoadOptions, Loaded, ModelTask, Registry, load};
use mlx_nn::shard::Ranks;
use mlx_nn::{CacheOptions, ModelCache};
use serde_json::{Value, json};
use tempfile::TempDir;

const PROMPT: [u32; 6] = [1, 5, 9, 17, 3, 22];
const WORDS: &str = "no output head (lm_head.weight)";

type Tensors = BTreeMap<String, Array>;

/// The config and the tensors of a golden with a head of its own.
fn whole(case: &str) -> (Value, Tensors) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/models")
        .join(case);
    let config = serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap();
    (config, tensors(&dir))
}

fn tensors(dir: &Path) -> Tensors {
    let file = Safetensors::open(dir.join("model.safetensors")).unwrap();
    let pairs = file
        .names()
        .map(|name| (name.to_owned(), file.array(name).unwrap()));
    pairs.collect()
}

/// The tensors under the names of a decoder without its head.
fn bare(tensors: &Tensors) -> Tensors {
    let named = tensors.iter().filter_map(|(name, array)| {
        let name = name.strip_prefix("model.")?;
        Some((name.to_owned(), array.clone()))
    });
    named.collect()
}

fn folder(config: &Value, tensors: &Tensors) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let arrays = tensors.iter().map(|(name, array)| (name.as_str(), array));
    let path = dir.path().join("model.safetensors");
    safetensors::save(path, arrays, &BTreeMap::new()).unwrap();
    dir
}

fn loaded(dir: &Path) -> Loaded {
    load(dir, LoadOptions::default()).unwrap()
}

fn refused(config: &Value, tensors: &Tensors) -> String {
    let dir = folder(config, tensors);
    match load(dir.path(), LoadOptions::default()) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    }
}

/// The features after the final norm.
fn hidden(loaded: &Loaded) -> Vec<f32> {
    let model = loaded.model.as_ref();
    let mut cache = ModelCache::new(model.states(), 1, CacheOptions::default());
    let input = Array::from_slice(&PROMPT, &[1, PROMPT.len() as i32]).unwrap();
    let mut step = cache.begin(&[PROMPT.len()]).unwrap();
    let hidden = model.hidden(&input, &mut step).unwrap();
    hidden.astype(DType::F32).unwrap().to_vec().unwrap()
}

/// Converts a folder into another one.
fn converted(dir: &Path, packing: Packing) -> TempDir {
    let out = tempfile::tempdir().unwrap();
    let (config, files) = mlx_models::open_checkpoint(dir).unwrap();
    let options = ConvertOptions {
        packing,
        ..ConvertOptions::default()
    };
    convert("here", config, files, out.path(), &options, &mut |_, _| {
        Ok(())
    })
    .unwrap();
    out
}

#[test]
fn features_are_those_of_the_whole_checkpoint() {
    // The config of Mistral may lack the key, and its family does not tie the head.
    for (case, has_key) in [("qwen3", true), ("mistral", true), ("mistral", false)] {
        let (mut config, tensors) = whole(case);
        assert_eq!(config["tie_word_embeddings"], json!(false));
        if !has_key {
            let keys = config.as_object_mut().unwrap();
            keys.shift_remove("tie_word_embeddings");
        }
        let expected = loaded(folder(&config, &tensors).path());
        assert_eq!(expected.info.task, ModelTask::Generate);
        let found = loaded(folder(&config, &bare(&tensors)).path());
        assert_eq!(hidden(&found), hidden(&expected), "{case}");
        assert_eq!(found.info.task, ModelTask::Headless);
        // Nothing takes the place of the matrix.
        let head = &tensors["lm_head.weight"];
        let (of, without) = (&expected.info, &found.info);
        assert_eq!(of.n_parameters - without.n_parameters, head.size());
        assert_eq!(of.weight_bytes - without.weight_bytes, head.nbytes());
        // Logits are refused, those of a copy too.
        let input = Array::from_slice(&PROMPT, &[1, PROMPT.len() as i32]).unwrap();
        for model in [found.model.duplicate().unwrap(), found.model] {
            let error = model.forward(&input, &mut model.new_cache(1)).unwrap_err();
            assert!(error.to_string().contains(WORDS), "{error}");
            let features = Array::from_slice(&[0.0f32; 32], &[1, 32]).unwrap();
            let error = model.head().first(3, &features).unwrap_err();
            assert!(error.to_string().contains(WORDS), "{error}");
        }
    }
}

#[test]
fn a_truncated_checkpoint_does_not_load() {
    let (config, tensors) = whole("qwen3");
    let mut headless = tensors.clone();
    headless.remove("lm_head.weight").unwrap();
    let error = refused(&config, &headless);
    assert!(error.contains("lm_head.weight"), "{error}");
    // Names without the prefix, beside one with it or a part of a head.
    let bare = bare(&tensors);
    for (name, missing) in [
        ("model.norm.weight", "24 missing"),
        ("lm_head.bias", "lm_head.weight"),
    ] {
        let mut mixed = bare.clone();
        mixed.insert(name.to_owned(), bare["norm.weight"].clone());
        let error = refused(&config, &mixed);
        assert!(error.contains(missing), "{error}");
    }
    let mut less = bare.clone();
    less.remove("layers.1.mlp.up_proj.weight").unwrap();
    let error = refused(&config, &less);
    assert!(error.contains("layers.1.mlp.up_proj.weight"), "{error}");
    // A head among such names is used.
    let mut with_head = bare;
    let head = tensors["lm_head.weight"].clone();
    with_head.insert("lm_head.weight".to_owned(), head);
    let found = loaded(folder(&config, &with_head).path());
    assert_eq!(found.info.task, ModelTask::Generate);
}

/// What is written has no prefix either, so that it loads again.
#[test]
fn conversions_load_again() {
    let (config, tensors) = whole("qwen3");
    let (all, without) = (folder(&config, &tensors), folder(&config, &bare(&tensors)));
    let scheme = Scheme::new(32, 4, QuantMode::Affine).unwrap();
    let mixed = Recipe::mixed(Mixed::parse("mixed_3_6").unwrap(), 32).unwrap();
    for packing in [
        Packing::Keep,
        Packing::Quantize(Recipe::uniform(scheme)),
        Packing::Quantize(mixed),
    ] {
        let expected = hidden(&loaded(converted(all.path(), packing).path()));
        let out = converted(without.path(), packing);
        let found = loaded(out.path());
        assert_eq!(found.info.task, ModelTask::Headless);
        assert_eq!(hidden(&found), expected, "{packing:?}");
        let names: Vec<String> = self::tensors(out.path()).into_keys().collect();
        assert!(names.iter().all(|name| !name.starts_with("model.")));
        // Unpacked again, or saved by a program.
        if packing != Packing::Keep {
            let dense = loaded(converted(out.path(), Packing::Dequantize).path());
            assert_eq!(dense.info.task, ModelTask::Headless);
        }
        let saved = tempfile::tempdir().unwrap();
        let written = fs::read(out.path().join("config.json")).unwrap();
        let written: Value = serde_json::from_slice(&written).unwrap();
        let settings = written.as_object().unwrap();
        save(found.model.as_ref(), settings, saved.path()).unwrap();
        assert_eq!(hidden(&loaded(saved.path())), expected, "{packing:?}");
    }
}

#[test]
fn gguf_needs_a_head() {
    let (config, tensors) = whole("qwen3");
    let dir = folder(&config, &bare(&tensors));
    let (config, files) = mlx_models::open_checkpoint(dir.path()).unwrap();
    let path = dir.path().join("x.gguf");
    let text = |_| Ok(BTreeMap::new());
    let kind = GgufType::F32;
    let made = convert_to_gguf("here", config, files, &path, kind, text, &mut |_, _| Ok(()));
    let error = made.unwrap_err().to_string();
    assert!(error.contains("without an output head"), "{error}");
    assert!(!path.exists());
}

/// Ranks divide the embedding, as one that is tied to the head.
#[test]
fn a_rank_holds_its_part() {
    let (config, tensors) = whole("qwen3");
    let dir = folder(&config, &bare(&tensors));
    let bytes = |ranks: Ranks| {
        let options = LoadOptions {
            ranks,
            ..LoadOptions::default()
        };
        let outline = Registry::default().outline(dir.path(), options).unwrap();
        assert_eq!(outline.info.task, ModelTask::Headless);
        outline.info.weight_bytes
    };
    let (one, half) = (bytes(Ranks::ALONE), bytes(Ranks::new(0, 2).unwrap()));
    assert!(half * 10 < one * 6, "{half} of {one}");
}
