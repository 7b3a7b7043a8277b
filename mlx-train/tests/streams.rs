//! Standard streams that cannot be written: no panic, one error, and the work is saved.
#![cfg(feature = "cli")]
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::json;
use tempfile::TempDir;

fn full() -> Stdio {
    let file = File::options().write(true).open("/dev/full").unwrap();
    file.into()
}

fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let lines: String = (0..9)
        .map(|line| format!("{}\n", json!({"tokens": [line, 5, 9, 2 * line + 1, 4]})))
        .collect();
    fs::write(dir.path().join("data.jsonl"), lines).unwrap();
    dir
}

fn run(dir: &TempDir, line: &str, stdout: Stdio, stderr: Stdio) -> Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/qwen3");
    let child = Command::new(env!("CARGO_BIN_EXE_mlx-train"))
        .current_dir(dir.path())
        .args(line.split(' '))
        .args(["--data", "data.jsonl", "--model"])
        .arg(model)
        .stdout(stdout)
        .stderr(stderr)
        .spawn();
    child.unwrap().wait_with_output().unwrap()
}

#[test]
fn a_run_without_its_streams_is_saved() {
    let dir = folder();
    let result = |out: &str| fs::read(dir.path().join(out).join("adapters.safetensors")).unwrap();
    let line = |out: &str| format!("lora --rank 2 --steps 3 --report-every 1 --json --out {out}");
    let (null, piped) = (Stdio::null, Stdio::piped);
    assert!(run(&dir, &line("whole"), null(), null()).status.success());
    // Events that cannot be written stop the run after its step.
    let reasons = [
        ("full", full(), "No space left on device"),
        ("closed", closed(), "Broken pipe"),
    ];
    for (out, stdout, reason) in reasons {
        let output = run(&dir, &line(out), stdout, piped());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let errors: Vec<_> = stderr.lines().filter(|l| l.starts_with("error")).collect();
        assert!(errors.len() == 1 && errors[0].contains(reason), "{stderr}");
        assert!(
            errors[0].ends_with("saved after step 1, --resume goes on"),
            "{stderr}"
        );
        let resumed = format!("{} --resume", line(out));
        assert!(run(&dir, &resumed, null(), null()).status.success());
        assert!(result(out) == result("whole"));
    }
    // Notes that cannot be written do not stop the run.
    for (out, stderr, code) in [("notes", full(), 1), ("unread", closed(), 0)] {
        let output = run(&dir, &line(out), piped(), stderr);
        assert_eq!(output.status.code(), Some(code));
        let events = String::from_utf8(output.stdout).unwrap();
        assert_eq!(events.matches("\"event\":\"step\"").count(), 3);
        assert!(result(out) == result("whole"));
    }
}

#[test]
fn an_evaluation_that_cannot_be_written_is_an_error() {
    let dir = folder();
    for line in ["eval", "eval --json"] {
        let read_only = File::open("/dev/null").unwrap().into();
        for stdout in [full(), read_only] {
            let output = run(&dir, line, stdout, Stdio::piped());
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{stderr}");
            assert!(
                stderr.starts_with("error: cannot write to the standard output"),
                "{stderr}"
            );
        }
        let output = run(&dir, line, closed(), Stdio::piped());
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stderr.is_empty());
    }
}

/// Data, settings and the parts of a checkpoint must be ordinary files of a limited size. Any other
/// file is refused at once, and the error names it.
#[test]
fn pipes_devices_folders_and_endless_files_are_refused() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("data")).unwrap();
    fs::copy(at("data.jsonl"), at("data/train.jsonl")).unwrap();
    let base = "lora --data data --rank 2 --steps 2 --save-every 1 --out out";
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/qwen3");
    let train = |flags: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-train"));
        let command = command.current_dir(dir.path()).args(base.split(' '));
        let command = command.args(flags.split_whitespace()).arg("--model");
        let output = command.arg(&model).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let error = stderr.lines().find(|line| line.starts_with("error: "));
        (output.status.code(), error.unwrap_or_default().to_owned())
    };
    assert_eq!(train(""), (Some(0), String::new()));
    for (name, flags) in [
        ("data/train.jsonl", ""),
        ("data/valid.jsonl", ""),
        ("data/test.jsonl", ""),
        ("settings.yaml", "--config settings.yaml"),
        ("out/metrics.jsonl", "--resume"),
        ("out/checkpoints/00000002/state.json", "--resume"),
        (
            "out/checkpoints/00000002/parameters.safetensors",
            "--resume",
        ),
        ("out/checkpoints/00000002/optimizer.safetensors", "--resume"),
    ] {
        let aside = at("aside");
        let _ = fs::rename(at(name), &aside);
        for kind in ["pipe", "device", "folder", "terabyte"] {
            match kind {
                "pipe" => {
                    let made = Command::new("mkfifo").arg(at(name)).status();
                    assert!(made.unwrap().success());
                }
                "device" => std::os::unix::fs::symlink("/dev/zero", at(name)).unwrap(),
                "folder" => fs::create_dir(at(name)).unwrap(),
                _ => File::create(at(name)).unwrap().set_len(1 << 40).unwrap(),
            }
            let started = std::time::Instant::now();
            let (code, error) = train(flags);
            let took = started.elapsed().as_secs_f64();
            assert_eq!(code, Some(1), "{name} {kind}: {error}");
            let reason = match kind {
                "terabyte" => String::new(),
                _ => format!(": not a file but a {kind}"),
            };
            let is_named = error.contains(name) && error.contains(&reason);
            assert!(is_named, "{name} {kind}: {error}");
            assert!(took < 5.0, "{name} {kind}: {took} s");
            let remove = if kind == "folder" {
                fs::remove_dir
            } else {
                fs::remove_file
            };
            remove(at(name)).unwrap();
        }
        let _ = fs::rename(&aside, at(name));
    }
}
