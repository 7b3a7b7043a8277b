//! Runs on several processes of a ring: the steps are those of one process.
#![cfg(feature = "cli")]
#![cfg(target_os = "linux")]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use mlx_core::Safetensors;
use serde_json::{Value, json};
use tempfile::TempDir;

fn model(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models");
    path.join(name).to_str().unwrap().to_owned()
}

/// Token ids in 13 examples: batches of 5 leave one of 3 rows, and batches of 4 one of a single row. The second example
/// has one token to learn.
fn folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let lines = |from: usize, to: usize, step: usize| -> String {
        let line = |index: usize| {
            let n = 5 + index * 5 % 9;
            let tokens: Vec<usize> = (0..n).map(|at| (index * 3 + at * step) % 60).collect();
            let prompt = if index == 1 { n - 1 } else { index % 3 };
            format!("{}\n", json!({"tokens": tokens, "prompt_tokens": prompt}))
        };
        (from..to).map(line).collect()
    };
    fs::create_dir(dir.path().join("other")).unwrap();
    fs::write(dir.path().join("train.jsonl"), lines(0, 13, 1)).unwrap();
    fs::write(dir.path().join("valid.jsonl"), lines(13, 20, 1)).unwrap();
    fs::write(dir.path().join("other/train.jsonl"), lines(0, 13, 2)).unwrap();
    dir
}

fn command(dir: &TempDir, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-train"));
    command
        .current_dir(dir.path())
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(dir: &TempDir, line: &str) -> Output {
    command(dir, line).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn ok(dir: &TempDir, line: &str) -> String {
    let output = run(dir, line);
    assert!(output.status.success(), "{line}: {}", stderr(&output));
    stderr(&output)
}

/// The command on `n` processes.
fn on(n: usize, line: &str) -> String {
    match n {
        1 => line.to_owned(),
        n => format!("launch -n {n} -- {line}"),
    }
}

fn parameters(dir: &TempDir, out: &str) -> Vec<(String, Vec<f32>)> {
    let path = dir.path().join(out).join("adapters.safetensors");
    let file = Safetensors::open(path).unwrap();
    let values = |name: &str| {
        let array = file.array(name).unwrap();
        array
            .astype(mlx_core::DType::F32)
            .unwrap()
            .to_vec()
            .unwrap()
    };
    file.names()
        .map(|name| (name.to_owned(), values(name)))
        .collect()
}

/// The largest difference of two runs' parameters, relative to the largest parameter.
fn off(a: &[(String, Vec<f32>)], b: &[(String, Vec<f32>)]) -> f32 {
    assert_eq!(a.len(), b.len());
    let (mut worst, mut largest) = (0.0f32, 0.0f32);
    for ((name, a), (other, b)) in a.iter().zip(b) {
        assert_eq!((name, a.len()), (other, b.len()));
        for (a, b) in a.iter().zip(b) {
            worst = worst.max((a - b).abs());
            largest = largest.max(a.abs());
        }
    }
    worst / largest
}

/// The events of a run without its times.
fn events(dir: &TempDir, out: &str) -> Vec<Value> {
    let text = fs::read_to_string(dir.path().join(out).join("metrics.jsonl")).unwrap();
    let line = |line: &str| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        for key in ["seconds", "peak_bytes"] {
            event.as_object_mut().unwrap().remove(key);
        }
        event
    };
    text.lines().map(line).collect()
}

fn assert_near(found: &[Value], expected: &[Value]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let (a, b) = (found.as_object().unwrap(), expected.as_object().unwrap());
        assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
        for (key, value) in a {
            match (value.as_f64(), b[key].as_f64()) {
                (Some(x), Some(y)) => {
                    assert!(
                        (x - y).abs() <= 2e-5 * (1.0 + y.abs()),
                        "{found} {expected}"
                    );
                }
                _ => assert_eq!(value, &b[key], "{found} {expected}"),
            }
        }
    }
}

#[test]
fn ranks_take_the_steps_of_one_process() {
    let dir = folder();
    for (index, (name, ranks, flags)) in [
        (
            "qwen3",
            &[2, 3][..],
            "full --batch-size 5 --accumulate 2 --clip 0.5 --optimizer sgd",
        ),
        // A batch of one row leaves ranks without any.
        (
            "qwen3",
            &[3],
            "lora --batch-size 4 --rank 2 --grad-checkpoint --learning-rate 1e-3",
        ),
        (
            "mixtral",
            &[2],
            "lora --batch-tokens 40 --rank 2 --learning-rate 1e-3",
        ),
        (
            "qwen3",
            &[2],
            "lora --pack --max-seq-length 24 --batch-size 2 --rank 2 --learning-rate 1e-3",
        ),
        (
            "qwen3_5_text",
            &[2],
            "lora --mtp --batch-size 4 --rank 2 --optimizer sgd --learning-rate 1e-4",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let line = format!(
            "{flags} --model {} --dtype f32 --data . --steps 7 --num-layers -1 --eval-every 3 --save-every 3",
            model(name)
        );
        let out = |n: usize| format!("run-{index}-{n}");
        ok(&dir, &format!("{line} --out {}", out(1)));
        let expected = (events(&dir, &out(1)), parameters(&dir, &out(1)));
        assert!(expected.0.len() > 10);
        for &n in ranks {
            let said = ok(&dir, &on(n, &format!("{line} --out {}", out(n))));
            // One rank reports.
            assert_eq!(said.matches("numbers to train").count(), 1, "{said}");
            assert_near(&events(&dir, &out(n)), &expected.0);
            let worst = off(&parameters(&dir, &out(n)), &expected.1);
            assert!(worst < 1e-4, "{flags} on {n}: {worst}");
        }
    }
}

/// The number of ranks may change; with the same number a resumed run has the same bits, also with dropout.
#[test]
fn runs_are_resumed_on_any_number_of_ranks() {
    let dir = folder();
    let line = format!(
        "full --model {} --dtype f32 --data . --batch-size 4 --learning-rate 1e-3 --eval-every 4 --save-every 2",
        model("qwen3")
    );
    ok(&dir, &format!("{line} --steps 8 --out alone"));
    ok(&dir, &on(2, &format!("{line} --steps 4 --out moved")));
    ok(
        &dir,
        &on(3, &format!("{line} --steps 6 --out moved --resume")),
    );
    ok(&dir, &format!("{line} --steps 8 --out moved --resume"));
    let worst = off(&parameters(&dir, "moved"), &parameters(&dir, "alone"));
    assert!(worst < 1e-4, "{worst}");
    let line = format!(
        "lora --model {} --dtype f32 --data . --batch-size 4 --rank 2 --dropout 0.2 --learning-rate 1e-3 --save-every 2",
        model("qwen3")
    );
    ok(&dir, &on(2, &format!("{line} --steps 8 --out whole")));
    ok(&dir, &on(2, &format!("{line} --steps 4 --out parts")));
    ok(
        &dir,
        &on(2, &format!("{line} --steps 8 --out parts --resume")),
    );
    assert_eq!(parameters(&dir, "parts"), parameters(&dir, "whole"));
    // Another number of ranks draws other numbers for dropout.
    ok(&dir, &format!("{line} --steps 8 --out one"));
    assert_ne!(parameters(&dir, "one"), parameters(&dir, "whole"));
}

/// The processes of a launcher, by their ranks.
fn children(launcher: &Child) -> Vec<String> {
    let path = format!("/proc/{0}/task/{0}/children", launcher.id());
    let ids = fs::read_to_string(path).unwrap_or_default();
    let mut ids: Vec<u32> = ids
        .split_whitespace()
        .map(|id| id.parse().unwrap())
        .collect();
    ids.sort_unstable();
    ids.iter().map(u32::to_string).collect()
}

fn signal(name: &str, id: &str) {
    let status = Command::new("kill").args([name, id]).status();
    assert!(status.unwrap().success());
}

/// The step of the last checkpoint; 0 without one.
fn last_step(dir: &TempDir, out: &str) -> u64 {
    let path = dir.path().join(out).join("checkpoints");
    let entries = fs::read_dir(path).into_iter().flatten();
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    let steps = names.filter_map(|name| name.to_str()?.parse().ok());
    steps.max().unwrap_or(0)
}

/// Waits for a checkpoint after this step.
fn until_after(step: u64, dir: &TempDir, child: &mut Child, out: &str) {
    let start = Instant::now();
    while last_step(dir, out) <= step {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        assert!(start.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_rank_that_dies_ends_the_run_and_a_signal_ends_all_after_the_same_step() {
    let dir = folder();
    let line = format!(
        "lora --model {} --dtype f32 --data . --batch-size 4 --rank 2 --save-every 5 --learning-rate 1e-3",
        model("qwen3")
    );
    let long = on(2, &format!("{line} --steps 100000 --out long"));
    let mut child = command(&dir, &long).spawn().unwrap();
    until_after(0, &dir, &mut child, "long");
    let ranks = children(&child);
    assert_eq!(ranks.len(), 2);
    let start = Instant::now();
    signal("-KILL", &ranks[1]);
    let output = child.wait_with_output().unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    let said = stderr(&output);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("rank 1") && !said.contains("panicked"),
        "{said}"
    );
    // What was saved is whole, and the run goes on from there; Ctrl-C or SIGTERM saves again.
    let again = on(2, &format!("{line} --steps 100000 --out long --resume"));
    let before = last_step(&dir, "long");
    let mut child = command(&dir, &again).spawn().unwrap();
    until_after(before, &dir, &mut child, "long");
    signal("-TERM", &child.id().to_string());
    let output = child.wait_with_output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert_eq!(said.matches("interrupted and saved").count(), 1, "{said}");
    assert!(
        said.contains("resumed after step") && !said.contains("error"),
        "{said}"
    );
    let last = last_step(&dir, "long");
    ok(
        &dir,
        &on(
            2,
            &format!("{line} --steps {} --out long --resume", last + 2),
        ),
    );
    assert_eq!(events(&dir, "long").last().unwrap()["step"], last + 2);
}

#[test]
fn faults_of_ranks_are_told() {
    let dir = folder();
    let line = format!(
        "lora --model {} --dtype f32 --data . --batch-size 4 --rank 2 --steps 40",
        model("qwen3")
    );
    for (line, code, words) in [
        (
            on(2, &format!("{line} --learning-rate 1e30 --out a")),
            1,
            "a lower learning rate or clipping may help",
        ),
        (
            on(2, &format!("{line} --out b --resume")),
            1,
            "no checkpoint to resume",
        ),
        (on(2, "eval --data valid.jsonl"), 2, "these do: lora, full"),
        (
            "launch -- lora --data .".to_owned(),
            2,
            "give -n N or --hostfile FILE",
        ),
    ] {
        let output = run(&dir, &line);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(
            said.contains(words) && !said.contains("panicked"),
            "{line}: {said}"
        );
    }
    let output = command(&dir, "eval --data valid.jsonl")
        .env("MLX_RANK", "0")
        .output();
    let said = stderr(&output.unwrap());
    assert!(
        said.contains(
            "eval runs in one process only, and MLX_RANK is set; on several ranks run: lora, full"
        ),
        "{said}"
    );
    // Two processes with other data, and with another seed.
    let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let hosts = held.map(|held| [held.local_addr().unwrap().to_string()]);
    fs::write(dir.path().join("hosts.json"), json!(hosts).to_string()).unwrap();
    for (flags, words) in [
        (
            ["--data . --out c", "--data other --out d"],
            "the ranks differ in their training data",
        ),
        (
            ["--seed 1 --data . --out c", "--seed 2 --data . --out d"],
            "the ranks differ in their options (command line)",
        ),
    ] {
        let ranks = [0, 1].map(|rank| {
            let line = line.replace("--data . ", "");
            let line = format!(
                "launch --hostfile hosts.json --rank {rank} -- {line} {}",
                flags[rank]
            );
            command(&dir, &line).spawn().unwrap()
        });
        let [first, second] = ranks.map(|rank| rank.wait_with_output().unwrap());
        assert!(!first.status.success() && !second.status.success());
        assert!(stderr(&first).contains(words), "{}", stderr(&first));
    }
}
