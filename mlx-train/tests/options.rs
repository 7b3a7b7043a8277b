//! Options of a run, tested by the run's output.
#![cfg(feature = "cli")]

use std::fs;
use std::path::Path;
use std::process::Command;

use mlx_core::{DType, Safetensors};
use serde_json::{Value, json};

fn run(dir: &Path, line: &str) -> std::process::Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/qwen3");
    Command::new(env!("CARGO_BIN_EXE_mlx-train"))
        .current_dir(dir)
        .args(line.split_whitespace())
        .args([Path::new("--model"), &model])
        .args("--data data.jsonl --steps 4 --batch-size 2 --num-layers 2 --json".split(' '))
        .output()
        .unwrap()
}

/// The losses that a run reports.
fn losses(dir: &Path, line: &str) -> Vec<f64> {
    let output = run(dir, line);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {stderr}");
    let text = String::from_utf8(output.stdout).unwrap();
    let events = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    events
        .filter(|event| event["event"] == "step")
        .map(|event| event["loss"].as_f64().unwrap())
        .collect()
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let lines: String = (0..6)
        .map(|line| {
            let tokens: Vec<usize> = (0..9 + line).map(|at| (line * 7 + at * 3) % 60).collect();
            format!("{}\n", json!({ "tokens": tokens }))
        })
        .collect();
    fs::write(dir.path().join("data.jsonl"), lines).unwrap();
    dir
}

#[test]
fn a_head_in_parts_learns_the_same() {
    let dir = folder();
    let rate = "--learning-rate 1e-3";
    for (command, extra) in [
        ("full", ""),
        ("lora", "--keys *.q_proj,lm_head"),
        ("lora", "--grad-checkpoint"),
    ] {
        let (a, b) = (format!("{command}-whole"), format!("{command}-parts"));
        let whole = losses(dir.path(), &format!("{command} {rate} {extra} --out {a}"));
        let line = format!("{command} {rate} {extra} --ce-chunk 25 --out {b}");
        let parts = losses(dir.path(), &line);
        assert_eq!(whole.len(), 4);
        for (whole, parts) in whole.iter().zip(&parts) {
            let off = (whole - parts).abs();
            assert!(off < 1e-5 * whole, "{line}: {whole} {parts}");
        }
        for out in [a, b] {
            fs::remove_dir_all(dir.path().join(out)).unwrap();
        }
    }
    let output = run(dir.path(), "lora --ce-chunk 0 --out none");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("ce_chunk must be at least 1"), "{stderr}");
}

/// A and B in 16 bits, the optimiser's state in 32.
#[test]
fn adapters_have_the_type_that_is_asked_for() {
    let dir = folder();
    for (name, dtype) in [
        ("f32", DType::F32),
        ("bf16", DType::BF16),
        ("f16", DType::F16),
    ] {
        losses(
            dir.path(),
            &format!("lora --adapter-dtype {name} --out {name}"),
        );
        let out = dir.path().join(name);
        let file = Safetensors::open(out.join("adapters.safetensors")).unwrap();
        assert!(file.names().len() > 0);
        for tensor in file.names() {
            assert_eq!(file.info(tensor).unwrap().0, dtype, "{tensor}");
        }
        let mut moments = 0;
        for entry in walk(&out) {
            let path = entry.to_string_lossy().into_owned();
            if !path.ends_with("optimizer.safetensors") {
                continue;
            }
            let file = Safetensors::open(&entry).unwrap();
            for tensor in file.names() {
                assert_eq!(file.info(tensor).unwrap().0, DType::F32, "{tensor}");
                moments += 1;
            }
        }
        assert!(
            moments > 0,
            "no state of the optimiser in {}",
            out.display()
        );
    }
    let output = run(dir.path(), "lora --adapter-dtype f8 --out none");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("known: f32, bf16, f16"), "{stderr}");
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                walk(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// The settings file of mlx-lm 0.32, with every key of its `lora.py`.
const MLX_LM: &str = "\
train: true
fine_tune_type: lora
optimizer: Adam
optimizer_config: {adam: {}, adamw: {}, muon: {ns_steps: 5}, sgd: {}, adafactor: {clip_threshold: 1.0}}
data: data
seed: 0
num_layers: -1
batch_size: 2
iters: 7
val_batches: 1
learning_rate: 1e-5
steps_per_report: 1
steps_per_eval: 200
resume_adapter_file: null
adapter_path: out
save_every: 100
test: false
test_batches: 500
max_seq_length: 2048
config: run.yaml
grad_checkpoint: false
grad_accumulation_steps: 2
clear_cache_threshold: 1GB
lr_schedule: {name: cosine_decay, warmup: 1, warmup_init: 1e-7, arguments: [1e-5, 10, 1e-6]}
lora_parameters: {rank: 4, dropout: 0.0, scale: 20.0, keys: null}
mask_prompt: null
report_to: null
project_name: null
trust_remote_code: false
";

fn with_settings(dir: &Path, command: &str, yaml: &str) -> std::process::Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/qwen3");
    fs::write(dir.join("run.yaml"), yaml).unwrap();
    Command::new(env!("CARGO_BIN_EXE_mlx-train"))
        .current_dir(dir)
        .args([command, "--json", "--config", "run.yaml", "--model"])
        .arg(&model)
        .output()
        .unwrap()
}

#[test]
fn settings_of_mlx_lm_are_understood() {
    let dir = folder();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::rename(dir.path().join("data.jsonl"), data.join("train.jsonl")).unwrap();
    fs::copy(data.join("train.jsonl"), data.join("test.jsonl")).unwrap();
    // With the byte order mark that editors on Windows write.
    let output = with_settings(dir.path(), "lora", &format!("\u{feff}{MLX_LM}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let text = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    // Seven batches are three steps of two, at the rates of mlx-lm's own scheduler.
    let rates: Vec<f64> = events.iter().filter_map(|e| e["rate"].as_f64()).collect();
    for (rate, expected) in rates.iter().zip([1e-7, 1e-5, 1e-5]) {
        assert!((rate - expected).abs() < 1e-12, "{rates:?}");
    }
    assert_eq!(rates.len(), 3);
    assert!(!events.iter().any(|event| event["event"] == "tested"));
    let tested = MLX_LM.replace("test: false", "test: true");
    let tested = tested.replace("adapter_path: out", "adapter_path: tested");
    let output = with_settings(dir.path(), "lora", &tested);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\"event\":\"tested\""), "{text}");

    for (command, from, to, message) in [
        (
            "lora",
            "train: true",
            "train: false",
            "train: false: this command trains",
        ),
        (
            "lora",
            "type: lora",
            "type: full",
            "fine_tune_type: full is trained by mlx-train full",
        ),
        (
            "full",
            "type: lora",
            "type: dora",
            "dora is trained by mlx-train lora",
        ),
        (
            "lora",
            "type: lora",
            "type: other",
            "known: lora, dora, full",
        ),
        (
            "lora",
            "file: null",
            "file: a.safetensors",
            "resume_adapter_file: training begins",
        ),
        (
            "lora",
            "report_to: null",
            "report_to: wandb",
            "report_to: reports to services",
        ),
        (
            "lora",
            "project_name: null",
            "hf_dataset: {path: x}",
            "hf_dataset: data sets are not",
        ),
        (
            "lora",
            "project_name: null",
            "prompt_feature: q",
            "prompt_feature: other names",
        ),
        (
            "lora",
            "scale: 20.0",
            "alpha: 20.0",
            "lora_parameters.alpha: give scale",
        ),
        (
            "lora",
            "iters: 7",
            "iters: 1",
            "1 batches make no step of 2",
        ),
        (
            "lora",
            "iters: 7",
            "iters: 7\nsteps: 7",
            "steps and iters contradict",
        ),
        (
            "lora",
            "test_batches: 500",
            "test_batches: 0",
            "test_batches must be at least 1",
        ),
        ("lora", "seed: 0", "sead: 0", "unknown field `sead`"),
    ] {
        assert!(MLX_LM.contains(from), "{from}");
        let output = with_settings(dir.path(), command, &MLX_LM.replace(from, to));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{to}: {stderr}");
        assert!(stderr.contains(message), "{to}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

/// Settings that would take the parser minutes.
#[test]
fn settings_have_a_size_and_a_depth() {
    let dir = folder();
    let blanks = |n: usize| " ".repeat(n);
    let block: String = (0..300).map(|n| format!("{}a:\n", blanks(n))).collect();
    for (yaml, message) in [
        ("[".repeat(60_000), "nested deeper than 64"),
        ("{a: ".repeat(15_000), "nested deeper than 64"),
        ("- ".repeat(30_000), "run.yaml: "),
        ("? ".repeat(30_000), "run.yaml: "),
        (block, "run.yaml: "),
        ("#".repeat(70_000), "run.yaml: more than 65536 bytes"),
    ] {
        let started = std::time::Instant::now();
        let output = with_settings(dir.path(), "lora", &yaml);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains(message) && stderr.lines().count() == 1,
            "{stderr}"
        );
        let took = started.elapsed().as_secs_f64();
        assert!(took < 20.0, "{:?}: {took} s", &yaml[..8]);
    }
}

/// Data with a byte order mark, through a pipe, and with a malformed line.
#[test]
#[cfg(unix)]
fn data_is_bounded_and_may_be_a_pipe() {
    let dir = folder();
    let text = fs::read_to_string(dir.path().join("data.jsonl")).unwrap();
    fs::write(dir.path().join("data.jsonl"), format!("\u{feff}{text}")).unwrap();
    let fed = |data: &str, out: &str| {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/qwen3");
        let line = format!(
            "cat data.jsonl | \"$0\" lora --steps 1 --data {data} --out {out} --model \"$1\""
        );
        let mut shell = Command::new("sh");
        let shell = shell.current_dir(dir.path()).arg("-c").arg(line);
        let shell = shell.arg(env!("CARGO_BIN_EXE_mlx-train")).arg(model);
        let output = shell.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), stderr)
    };
    let (code, stderr) = fed("data.jsonl", "file");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("data.jsonl: 6 examples"), "{stderr}");
    let (code, stderr) = fed("/dev/stdin", "pipe");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("/dev/stdin: 6 examples"), "{stderr}");
    let long = format!("{text}{}\n", "x".repeat(9 << 20));
    fs::write(dir.path().join("data.jsonl"), long).unwrap();
    let (code, stderr) = fed("data.jsonl", "long");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stderr.contains("data.jsonl: line 7: the line is longer than 8388608 bytes"),
        "{stderr}"
    );
}

#[test]
fn a_model_may_be_a_name_of_the_hub() {
    let dir = folder();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let repo = dir.path().join("hub/models--org--name");
    let snapshot = repo.join("snapshots").join(commit);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::write(repo.join("refs/main"), commit).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/qwen3");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(model.join(file), snapshot.join(file)).unwrap();
    }
    let line = |name: &str| format!("eval --model {name} --data data.jsonl --json");
    let eval = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-train"));
        command
            .current_dir(dir.path())
            .args(line(name).split_whitespace())
            .env("HF_HUB_CACHE", "hub")
            .env("HF_HUB_OFFLINE", "1")
            .output()
            .unwrap()
    };
    let output = eval("org/name");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let output = eval("org/other");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    for part in ["org/other does not exist as a folder", "HF_HUB_OFFLINE"] {
        assert!(said.contains(part), "{said}");
    }
}
