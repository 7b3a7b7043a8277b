//! Options of a run, seen in what it writes.

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

/// The losses that a run tells.
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

/// A and B in 16 bits, what the optimiser remembers of them in 32.
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
