//! `--resume`: what it repairs, what it refuses, and two runs with the same folder.
#![cfg(feature = "cli")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use mlx_core::{Array, DType, Safetensors, safetensors};
use mlx_infer::output::Claim;
use serde_json::{Value, json};
use tempfile::TempDir;

const BASE: &str = "lora --data data.jsonl --rank 2 --dtype f32 --learning-rate 1e-3";

fn testdata(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../testdata/models").join(name)
}

fn folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let lines: String = (0..9)
        .map(|line| format!("{}\n", json!({"tokens": [line, 5, 9, 2 * line + 1, 4]})))
        .collect();
    fs::write(dir.path().join("data.jsonl"), lines).unwrap();
    dir
}

fn run(dir: &TempDir, flags: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mlx-train"))
        .current_dir(dir.path())
        .args(BASE.split(' '))
        .args([Path::new("--model"), &testdata("qwen3")])
        .args(flags.split_whitespace())
        .output()
        .unwrap()
}

fn ok(dir: &TempDir, flags: &str) -> String {
    let output = run(dir, flags);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{flags}: {stderr}");
    stderr
}

/// The single error line of a run that fails.
fn refused(dir: &TempDir, flags: &str) -> String {
    let output = run(dir, flags);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{flags}: {stderr}");
    let errors: Vec<_> = stderr
        .lines()
        .filter(|l| l.starts_with("error: "))
        .collect();
    assert_eq!(errors.len(), 1, "{stderr}");
    errors[0].to_owned()
}

/// A kill at any moment of the last save leaves one of these states.
#[test]
fn the_result_is_that_of_the_last_checkpoint_after_any_kill() {
    let dir = folder();
    let at = |name: &str| dir.path().join("out").join(name);
    let bytes = || fs::read(at("adapters.safetensors")).unwrap();
    let run = "--out out --steps 4 --save-every 2";
    ok(&dir, "--out out --steps 2 --save-every 2");
    let before = bytes();
    ok(&dir, &format!("{run} --resume"));
    let result = bytes();
    assert!(before != result);
    // The checkpoint has its final name, but the adapter files are those of the save before, or
    // missing.
    fs::write(at("adapters.safetensors"), &before).unwrap();
    ok(&dir, &format!("{run} --resume"));
    assert!(bytes() == result);
    fs::remove_file(at("adapters.safetensors")).unwrap();
    fs::remove_file(at("adapter_config.json")).unwrap();
    ok(&dir, &format!("{run} --resume"));
    assert!(bytes() == result && at("adapter_config.json").exists());
    // The adapter files are written but the checkpoint is not; an old checkpoint and hidden folders
    // are half removed.
    fs::rename(at("checkpoints/00000004"), at("checkpoints/.saving")).unwrap();
    fs::create_dir(at("checkpoints/.removed")).unwrap();
    fs::create_dir(at("checkpoints/.adapter")).unwrap();
    fs::write(at(".mlx-lock"), "").unwrap();
    let said = ok(&dir, &format!("{run} --resume"));
    assert!(said.contains("resumed after step 2"), "{said}");
    assert!(bytes() == result);
    let mut left: Vec<_> = fs::read_dir(at("checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["00000002", "00000004"]);
    let mut left: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["data.jsonl", "out"]);
}

fn arrays(path: &Path) -> BTreeMap<String, Array> {
    let file = Safetensors::open(path).unwrap();
    let copy = |name: &str| {
        let array = file.array(name).unwrap();
        let numbers = array.to_vec::<f32>().unwrap();
        Array::from_slice(&numbers, array.shape()).unwrap()
    };
    file.names()
        .map(|name| (name.to_owned(), copy(name)))
        .collect()
}

#[test]
fn moments_that_do_not_fit_are_refused_by_name() {
    let dir = folder();
    for (method, slot) in [
        ("adamw", "m"),
        ("lion", "m"),
        ("adafactor", "row"),
        ("muon", "momentum"),
    ] {
        let run = |steps| format!("--out {method} --steps {steps} --optimizer {method}");
        ok(&dir, &run(2));
        let path = dir.path().join(method);
        let path = path.join("checkpoints/00000002/optimizer.safetensors");
        let whole = arrays(&path);
        let suffix = format!("/{slot}");
        let name = whole.keys().find(|name| name.ends_with(&suffix)).unwrap();
        let array = &whole[name];
        let longer = [array.shape(), &[1]].concat();
        let other = [
            None,
            Some(array.reshape(&longer).unwrap()),
            Some(array.astype(DType::I32).unwrap()),
            Some(array.astype(DType::F16).unwrap()),
        ];
        for other in other {
            let mut changed = whole.clone();
            match &other {
                Some(other) => changed.insert(name.clone(), other.clone()),
                None => changed.remove(name),
            };
            let pairs = changed.iter().map(|(name, array)| (name.as_str(), array));
            safetensors::save(&path, pairs, &BTreeMap::new()).unwrap();
            let error = refused(&dir, &format!("{} --resume", run(3)));
            assert!(error.contains(name.as_str()), "{method}: {error}");
            assert!(error.contains("optimizer.safetensors"), "{error}");
        }
        let mut more = whole.clone();
        more.insert("model.other/m".to_owned(), array.clone());
        let pairs = more.iter().map(|(name, array)| (name.as_str(), array));
        safetensors::save(&path, pairs, &BTreeMap::new()).unwrap();
        let error = refused(&dir, &format!("{} --resume", run(3)));
        assert!(error.contains("model.other/m"), "{error}");
        let pairs = whole.iter().map(|(name, array)| (name.as_str(), array));
        safetensors::save(&path, pairs, &BTreeMap::new()).unwrap();
        ok(&dir, &format!("{} --resume", run(3)));
    }
}

/// A model whose embedding of token 50 is NaN. The training data does not contain that token.
fn model_with_nan(dir: &Path) {
    let model = dir.join("model");
    fs::create_dir(&model).unwrap();
    let source = testdata("qwen3");
    fs::copy(source.join("config.json"), model.join("config.json")).unwrap();
    let file = Safetensors::open(source.join("model.safetensors")).unwrap();
    let mut all: BTreeMap<String, Array> = file
        .names()
        .map(|name| {
            (
                name.to_owned(),
                file.array(name).unwrap().astype(DType::F32).unwrap(),
            )
        })
        .collect();
    let name = "model.embed_tokens.weight";
    let shape = all[name].shape().to_vec();
    let mut numbers = all[name].to_vec::<f32>().unwrap();
    let width = shape[1] as usize;
    numbers[50 * width..51 * width].fill(f32::NAN);
    all.insert(
        name.to_owned(),
        Array::from_slice(&numbers, &shape).unwrap(),
    );
    let pairs = all.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(model.join("model.safetensors"), pairs, &BTreeMap::new()).unwrap();
}

/// A validation loss of NaN does not count as the best, and a later number can.
#[test]
fn a_nan_in_validation_stops_nothing() {
    let dir = folder();
    model_with_nan(dir.path());
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::rename(dir.path().join("data.jsonl"), data.join("train.jsonl")).unwrap();
    let line = "{\"tokens\":[5,50,6]}\n";
    fs::write(data.join("valid.jsonl"), line).unwrap();
    let base = "--data data --model model --out out --eval-every 1 --save-every 1";
    let command = |flags: &str| {
        let flags = format!("lora {base} --batch-size 2 --rank 2 {flags}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-train"));
        let output = command.current_dir(dir.path()).args(flags.split(' '));
        let output = output.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{stderr}");
    };
    let state = |step: &str| {
        let path = dir
            .path()
            .join("out/checkpoints")
            .join(step)
            .join("state.json");
        serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap()["progress"].clone()
    };
    command("--steps 2");
    assert_eq!(state("00000002")["best"], Value::Null);
    assert_eq!(state("00000002")["since_best"], 2);
    fs::write(data.join("valid.jsonl"), "{\"tokens\":[5,7,6]}\n").unwrap();
    command("--steps 3 --resume");
    assert_eq!(state("00000003")["best"][1], 3);
    assert_eq!(state("00000003")["since_best"], 0);
}

#[test]
fn one_run_at_a_time_in_a_folder() {
    let dir = folder();
    let claim = Claim::new(&dir.path().join("out")).unwrap();
    // The folder is refused before the model is read.
    let error = refused(&dir, "--out out --steps 1");
    assert!(
        error.contains("out is being written by another process"),
        "{error}"
    );
    for command in ["fuse --adapter none", "init --model ."] {
        let mut train = Command::new(env!("CARGO_BIN_EXE_mlx-train"));
        let line = format!("{command} --out out");
        let output = train.current_dir(dir.path()).args(line.split(' '));
        let output = output.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("by another process"), "{stderr}");
    }
    drop(claim);
    ok(&dir, "--out out --steps 1");
}

#[test]
fn absurd_numbers_are_no_panic() {
    let dir = folder();
    let huge = 1u64 << 60;
    ok(&dir, &format!("--out a --steps 1 --batch-size {huge}"));
    ok(
        &dir,
        &format!(
            "--out b --steps 1 --batch-tokens {huge} --warmup {}",
            u64::MAX
        ),
    );
    ok(
        &dir,
        &format!("--out c --steps 1 --max-seq-length {} --pack", u64::MAX),
    );
}

/// The result is saved, and the run fails with the same error as `eval`.
#[test]
fn a_nan_in_the_test_is_an_error() {
    let dir = folder();
    model_with_nan(dir.path());
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::rename(dir.path().join("data.jsonl"), data.join("train.jsonl")).unwrap();
    let train = "lora --data data --model model --out out --steps 1 --batch-size 2 --rank 2";
    for (tokens, status, word) in [
        ("5,6,7", 0, "test: loss "),
        ("5,50,6", 1, "model.embed_tokens.weight has NaN"),
    ] {
        fs::write(
            data.join("test.jsonl"),
            format!("{{\"tokens\":[{tokens}]}}\n"),
        )
        .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-train"));
        let output = command.current_dir(dir.path()).args(train.split(' '));
        let output = output.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{stderr}");
        assert!(stderr.contains(word), "{stderr}");
        assert!(dir.path().join("out/adapters.safetensors").is_file());
        fs::remove_dir_all(dir.path().join("out")).unwrap();
    }
}

/// Each of these flags changes the bits of later steps, so none may change on `--resume`.
#[test]
fn other_settings_are_refused_by_name() {
    let dir = folder();
    ok(&dir, "--out out --steps 1 --dropout 0.1 --scale 4");
    let same = "--out out --steps 2 --resume --dropout 0.1 --scale 4";
    // clap refuses a repeated flag, so each case has its own line.
    for (flags, word) in [
        ("--dropout 0.1 --scale 3", "its scale is 4.0, not 3.0"),
        ("--dropout 0.3 --scale 4", "its dropout is"),
        ("--dropout 0.1", "its scale is 4.0, not 20.0"),
        ("--dropout 0.1 --scale 4 --dora", "its fine_tune_type is"),
        ("--dropout 0.1 --scale 4 --keys mlp.*", "its keys is"),
        ("--dropout 0.1 --scale 4 --adapter-dtype bf16", "lora"),
        ("--dropout 0.1 --scale 4 --seed 1", "its seed is 0, not 1"),
    ] {
        let error = refused(&dir, &format!("--out out --steps 2 --resume {flags}"));
        assert!(error.contains("cannot be resumed"), "{flags}: {error}");
        assert!(error.contains(word), "{flags}: {error}");
    }
    // A model of other weights, and one of another dtype.
    let with = |model: &Path, dtype: &str| {
        let line = same.replace("--resume", &format!("--resume --dtype {dtype}"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-train"));
        let output = command
            .current_dir(dir.path())
            .args("lora --data data.jsonl --rank 2 --learning-rate 1e-3".split(' '))
            .args([Path::new("--model"), model])
            .args(line.split(' '))
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), stderr)
    };
    let (status, stderr) = with(&testdata("qwen3"), "f16");
    assert_eq!(status, Some(1), "{stderr}");
    assert!(stderr.contains("(--dtype)"), "{stderr}");
    model_with_nan(dir.path());
    let file = dir.path().join("model/model.safetensors");
    let mut weights = arrays(&file);
    let name = "model.layers.0.mlp.up_proj.weight";
    let other = weights[name].add(0.001f32).unwrap();
    weights.insert(name.to_owned(), other);
    let pairs = weights.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(&file, pairs, &BTreeMap::new()).unwrap();
    let (status, stderr) = with(&dir.path().join("model"), "f32");
    assert_eq!(status, Some(1), "{stderr}");
    assert!(stderr.contains("(--model)"), "{stderr}");
    // A checkpoint of the first format.
    let state = dir.path().join("out/checkpoints/00000001/state.json");
    let text = fs::read_to_string(&state).unwrap();
    fs::write(&state, text.replace("\"format\": 2", "\"format\": 1")).unwrap();
    let error = refused(&dir, same);
    assert!(error.contains("expected format 2, found 1"), "{error}");
    fs::write(&state, text).unwrap();
    ok(&dir, same);
}
