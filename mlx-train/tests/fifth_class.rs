//! The README's example, shortened: the built-in model's classifier learns a fifth class.
#![cfg(feature = "cli")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn succeeded(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn mlx_train(dir: &Path, line: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-train"));
    succeeded(command.current_dir(dir).args(line.split_whitespace()))
}

/// The fraction of the examples of these files whose whole answer is the likeliest.
fn accuracy(dir: &Path, data: &str, adapter: &str) -> f64 {
    let line = format!("eval --data {data} --mask-prompt --batch-size 16 --json {adapter}");
    let found: Value = serde_json::from_str(&mlx_train(dir, &line)).unwrap();
    found["accuracy"].as_f64().unwrap()
}

#[test]
fn a_fifth_class_is_learnt_and_four_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let make = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/fifth-class/make.py");
    succeeded(
        Command::new("python3")
            .arg(make)
            .arg("data")
            .current_dir(dir),
    );
    let text = std::fs::read_to_string(dir.join("data/test.jsonl")).unwrap();
    let (sport, known): (Vec<&str>, Vec<&str>) = text
        .lines()
        .partition(|line| line.contains(r#""content": "sport""#));
    let (sport, known) = (&sport[..20], &known[..40]);
    for (name, lines) in [("sport.jsonl", sport), ("known.jsonl", known)] {
        std::fs::write(dir.join(name), lines.join("\n")).unwrap();
    }
    assert_eq!(accuracy(dir, "sport.jsonl", ""), 0.0);
    mlx_train(
        dir,
        "lora --data data/train.jsonl --mask-prompt --steps 16 --batch-size 12 --learning-rate 2e-3 \
         --schedule cosine --warmup 4 --clip 1 --out sport",
    );
    let learnt = accuracy(dir, "sport.jsonl", "--adapter sport");
    let kept = accuracy(dir, "known.jsonl", "--adapter sport");
    assert!(learnt > 0.5, "{learnt} of the new class");
    assert!(kept > 0.8, "{kept} of the four old ones");
}
