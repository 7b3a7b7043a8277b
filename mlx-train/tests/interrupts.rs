//! A run that is stopped by a signal: by Ctrl-C after a step, and by `kill -9` in the middle of a
//! save.
#![cfg(feature = "cli")]
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

fn folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let lines: String = (0..9)
        .map(|line| {
            let tokens: Vec<usize> = (0..9 + line).map(|at| (line * 7 + at * 3) % 60).collect();
            format!("{}\n", json!({ "tokens": tokens }))
        })
        .collect();
    fs::write(dir.path().join("data.jsonl"), lines).unwrap();
    dir
}

fn start(dir: &TempDir, flags: &str) -> Child {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/qwen3");
    Command::new(env!("CARGO_BIN_EXE_mlx-train"))
        .current_dir(dir.path())
        .args("lora --data data.jsonl --batch-size 2 --rank 2 --dropout 0.1 --dtype f32".split(' '))
        .args("--learning-rate 1e-3 --report-every 1".split(' '))
        .args([Path::new("--model"), &model])
        .args(flags.split_whitespace())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the end of a run: its status and its output.
fn end(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn parameters(dir: &TempDir, out: &str) -> Vec<u8> {
    fs::read(dir.path().join(out).join("adapters.safetensors")).unwrap()
}

/// Waits until `seen` returns true, with a time limit.
fn wait(what: &str, mut seen: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !seen() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no {what}");
        std::hint::spin_loop();
    }
}

#[test]
fn ctrl_c_saves_and_stops_and_the_run_goes_on() {
    let dir = folder();
    let steps = "--steps 150 --save-every 1000";
    let (status, said) = end(start(&dir, &format!("{steps} --out whole")));
    assert_eq!(status, Some(0), "{said}");
    let child = start(&dir, &format!("{steps} --out parts"));
    let metrics = dir.path().join("parts/metrics.jsonl");
    wait("third step", || {
        fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() >= 3)
    });
    let signal = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(signal.unwrap().success());
    let (status, said) = end(child);
    assert_eq!(status, Some(130), "{said}");
    assert!(
        said.ends_with("interrupted and saved; --resume goes on\n"),
        "{said}"
    );
    // The saved step is the one after which the run stopped, with the adapter of that step.
    let done = fs::read_to_string(&metrics).unwrap();
    let done = done.lines().rfind(|line| line.contains("\"step\""));
    let done: Value = serde_json::from_str(done.unwrap()).unwrap();
    let step = done["step"].as_u64().unwrap();
    assert!((3..150).contains(&step), "{step}");
    let saved = fs::read_dir(dir.path().join("parts/checkpoints")).unwrap();
    let saved: Vec<_> = saved.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(saved, [format!("{step:08}").as_str()]);
    assert_ne!(parameters(&dir, "parts"), parameters(&dir, "whole"));
    let (status, said) = end(start(&dir, &format!("{steps} --out parts --resume")));
    assert_eq!(status, Some(0), "{said}");
    assert!(
        said.contains(&format!("resumed after step {step}")),
        "{said}"
    );
    assert!(parameters(&dir, "parts") == parameters(&dir, "whole"));
    // The last line of the progress output.
    let line = said.lines().find(|line| line.starts_with("step 150:"));
    let line = line.unwrap();
    for what in ["loss ", "rate 1.000e-3", " tokens/s, ", "iB, ", " left"] {
        assert!(line.contains(what), "{line}");
    }
}

#[test]
fn a_kill_in_the_middle_of_a_save_leaves_the_checkpoint_before_it() {
    let dir = folder();
    let steps = "--steps 12 --save-every 1";
    let (status, said) = end(start(&dir, &format!("{steps} --out whole")));
    assert_eq!(status, Some(0), "{said}");
    let checkpoints = dir.path().join("parts/checkpoints");
    let unfinished = checkpoints.join(".saving");
    let whole = || {
        let entries = fs::read_dir(&checkpoints).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
        names.filter_map(|name| name.parse::<u64>().ok()).max()
    };
    let mut hits = 0;
    for _ in 0..40 {
        let before = whole();
        let flag = before.map_or("", |_| "--resume");
        let mut child = start(&dir, &format!("{steps} --out parts {flag}"));
        // The leftovers of the last kill stay until the next save begins.
        let left = fs::metadata(&unfinished)
            .and_then(|data| data.modified())
            .ok();
        wait("save", || {
            let now = fs::metadata(&unfinished)
                .and_then(|data| data.modified())
                .ok();
            (now.is_some() && now != left) || child.try_wait().unwrap().is_some()
        });
        let over = child.try_wait().unwrap();
        let _ = child.kill();
        let (status, said) = end(child);
        if over.is_some() {
            assert_eq!(status, Some(0), "{said}");
            break;
        }
        hits += usize::from(unfinished.is_dir());
        // No checkpoint is lost, whether this one was finished or not.
        assert!(whole() >= before, "{:?} after {before:?}", whole());
        if hits == 3 {
            break;
        }
    }
    assert_eq!(hits, 3, "kills in the middle of a save");
    let flag = whole().map_or("", |_| "--resume");
    let (status, said) = end(start(&dir, &format!("{steps} --out parts {flag}")));
    assert_eq!(status, Some(0), "{said}");
    assert!(parameters(&dir, "parts") == parameters(&dir, "whole"));
    assert!(!unfinished.exists());
}
