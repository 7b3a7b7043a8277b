//! Prompt caches in files: they are read back, and refused if they belong to another model, are
//! truncated or forged.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::checkpoint::{dir, load};
use mlx_core::{Array, DType, Safetensors, safetensors};
use mlx_infer::{GenerateOptions, LoadOptions, LoadedModel};
use serde_json::Value;

const PROMPT: [u32; 20] = [3; 20];

fn save(model: &LoadedModel, path: &Path) {
    let options = GenerateOptions::default();
    let cache = model.prompt_cache(PROMPT.to_vec(), &options).unwrap();
    model.save_prompt_cache(&cache, path).unwrap();
}

fn refusal(model: &LoadedModel, path: &Path) -> String {
    match model.load_prompt_cache(path) {
        Ok(_) => panic!("{} is taken", path.display()),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(&path.display().to_string()), "{text}");
            text
        }
    }
}

#[test]
fn a_file_of_another_model_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.safetensors");
    let gemma = load(dir("gemma3_text"));
    save(&gemma, &path);
    let error = refusal(&load(dir("qwen3")), &path);
    assert!(
        error.contains("its architecture is gemma3_text, that of this one qwen3"),
        "{error}"
    );
    let ring = LoadOptions {
        context_len: Some(9),
        ..LoadOptions::default()
    };
    let ring = LoadedModel::load(dir("gemma3_text"), ring).unwrap();
    let error = refusal(&ring, &path);
    assert!(
        error.contains("its context_len is unlimited, that of this one 9"),
        "{error}"
    );
    let half = LoadOptions {
        dtype: Some(DType::BF16),
        ..LoadOptions::default()
    };
    let half = LoadedModel::load(dir("gemma3_text"), half).unwrap();
    assert!(refusal(&half, &path).contains("its dtype is F32, that of this one BF16"));

    // One weight differs, as in a model that was trained further.
    let trained = folder.path().join("trained");
    std::fs::create_dir(&trained).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(dir("gemma3_text").join(name), trained.join(name)).unwrap();
    }
    let weights = trained.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let n = bytes.len();
    for byte in &mut bytes[n - 4096..] {
        *byte ^= 1;
    }
    std::fs::write(&weights, bytes).unwrap();
    let error = refusal(&load(trained), &path);
    assert!(error.contains("its weights is "), "{error}");
}

#[test]
fn damaged_and_made_up_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bad) = (folder.path().join("good"), folder.path().join("bad"));
    let model = load(dir("mistral"));
    save(&model, &path);
    let bytes = std::fs::read(&path).unwrap();
    for end in [0, 7, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&bad, &bytes[..end]).unwrap();
        refusal(&model, &bad);
    }
    refusal(&model, &dir("mistral").join("model.safetensors"));
    refusal(&model, &folder.path().join("nowhere"));

    let file = Safetensors::open(&path).unwrap();
    type Arrays = BTreeMap<String, Array>;
    type Metadata = BTreeMap<String, String>;
    let refuse = |change: &dyn Fn(&mut Arrays, &mut Metadata)| {
        let mut arrays: Arrays = file
            .names()
            .map(|name| (name.to_owned(), file.array(name).unwrap()))
            .collect();
        let mut metadata = file.metadata().clone();
        change(&mut arrays, &mut metadata);
        let arrays = arrays.iter().map(|(name, array)| (&**name, array));
        safetensors::save(&bad, arrays, &metadata).unwrap();
        refusal(&model, &bad)
    };
    let set = |key: &'static str, value: &'static str| {
        refuse(&|_, metadata| {
            metadata.insert(key.into(), value.into());
        })
    };
    assert!(set("format", "soup").contains("this is no prompt cache"));
    assert!(set("format_version", "7").contains("format_version \"7\" is not known"));
    assert!(set("written", "-1").contains("written is no number"));
    assert!(set("written", "4000000000").contains("cannot have written"));
    assert!(set("written", "19").contains("cannot have written 19"));
    assert!(set("beyond_switch", "maybe").contains("beyond_switch"));
    let keys = "layers.1.keys";
    for (expected, change) in [
        (
            "\"more\" is not known",
            (&|arrays: &mut Arrays| {
                arrays.insert("more".into(), Array::from_slice(&[1.0f32], &[1]).unwrap());
            }) as &dyn Fn(&mut Arrays),
        ),
        (keys, &|arrays| drop(arrays.remove(keys))),
        ("tokens", &|arrays| drop(arrays.remove("tokens"))),
        ("F16", &|arrays| {
            let half = arrays[keys].astype(DType::F16).unwrap();
            arrays.insert(keys.into(), half);
        }),
        ("slots", &|arrays| {
            let flat = arrays[keys].reshape(&[-1]).unwrap();
            arrays.insert(keys.into(), flat);
        }),
        ("layer 1", &|arrays| {
            let short = arrays[keys].slice_axis(2, 0, 3).unwrap();
            arrays.insert(keys.into(), short);
        }),
        ("cannot have written", &|arrays| {
            arrays.insert(
                "tokens".into(),
                Array::from_slice(&[3u32; 5], &[5]).unwrap(),
            );
        }),
        ("outside the model's vocabulary", &|arrays| {
            arrays.insert(
                "tokens".into(),
                Array::from_slice(&[99_999u32; 20], &[20]).unwrap(),
            );
        }),
        ("positions", &|arrays| {
            arrays.insert(
                "tokens".into(),
                Array::from_slice(&[3u32; 9999], &[9999]).unwrap(),
            );
        }),
        ("", &|arrays| {
            arrays.insert(
                "tokens".into(),
                Array::from_slice(&[3.0f32; 20], &[20]).unwrap(),
            );
        }),
        ("", &|arrays| {
            arrays.insert(
                "tokens".into(),
                Array::from_slice::<u32>(&[], &[0]).unwrap(),
            );
        }),
    ] {
        let error = refuse(&|arrays, _| change(arrays));
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // The unchanged file is accepted.
    assert_eq!(model.load_prompt_cache(&path).unwrap().tokens(), PROMPT);
}

/// `generate` continues from the cache that `cache` stored, with the same result as from both prompts in one.
#[test]
fn the_commands_work_together() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("story");
    let path = path.to_str().unwrap();
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_mlx-infer"))
            .args(args)
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{args:?}: {stderr}");
        (String::from_utf8(output.stdout).unwrap(), stderr)
    };
    let story = "The red fox wanders through the forest.";
    let (_, stderr) = run(&["cache", "--prompt", story, "--out", path]);
    assert!(stderr.contains(" tokens, "), "{stderr}");
    let rest = " It eats a";
    let ask = ["generate", "--max-tokens", "6", "--json"];
    let (out, _) = run(&[&ask[..], &["--prompt-cache", path, "--prompt", rest]].concat());
    let found: Value = serde_json::from_str(&out).unwrap();
    let (out, _) = run(&[&ask[..], &["--prompt", &format!("{story}{rest}")]].concat());
    let expected: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["tokens"], expected["tokens"]);
    assert!(expected["usage"].get("cached_tokens").is_none());
    let cached = found["usage"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > 5 && cached < found["usage"]["prompt_tokens"].as_u64().unwrap());
    let other = Command::new(env!("CARGO_BIN_EXE_mlx-infer"))
        .args([
            "generate",
            "--prompt",
            "x",
            "--prompt-cache",
            path,
            "--model",
        ])
        .arg(dir("qwen3"))
        .output()
        .unwrap();
    assert_eq!(other.status.code(), Some(1));
    let stderr = String::from_utf8(other.stderr).unwrap();
    assert!(stderr.contains("written with another model"), "{stderr}");
}
