//! Inputs without an end: work begins while they arrive, and only a few lines are read ahead.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::command::spawn;

fn start(args: &[&str]) -> (Child, ChildStdin, impl FnMut() -> Option<Value> + use<>) {
    let mut child = spawn(args);
    let stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let next = move || read(&mut stdout);
    (child, stdin, next)
}

fn read(stdout: &mut BufReader<ChildStdout>) -> Option<Value> {
    let mut line = String::new();
    let n = stdout.read_line(&mut line).unwrap();
    (n > 0).then(|| serde_json::from_str(&line).unwrap())
}

const CASES: [(&[&str], &str); 2] = [
    (
        &["batch", "--max-tokens", "1"],
        "{\"prompt\": \"The red fox\"}\n",
    ),
    (&["classify", "--batch-tokens", "64"], "The red fox\n"),
];

/// Far more lines than may be in progress; about 2,000 for each document that the test reads.
const LINES: usize = 40_000;

/// Reading does not depend on the kernels, and without them this much computation takes long.
#[test]
fn few_lines_of_many_are_read_ahead() {
    if std::env::var("MLX_CPU_KERNELS").as_deref() == Ok("off") {
        return;
    }
    for (args, line) in CASES {
        let (mut child, mut stdin, mut next) = start(args);
        let written = Arc::new(AtomicUsize::new(0));
        let count = written.clone();
        let writer = std::thread::spawn(move || {
            for _ in 0..LINES {
                if stdin.write_all(line.as_bytes()).is_err() {
                    return;
                }
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert_eq!(next().unwrap()["line"], 1);
        // The lines in progress, those in the pipe's 64 KiB, and those in the reader's buffers of 8
        // KiB.
        let most = 2 * 4096 + (64 + 16) * 1024 / line.len();
        let ahead = written.load(Ordering::SeqCst);
        assert!(ahead <= most, "{args:?}: {ahead} lines of {most}");
        for number in 2..=10 {
            assert_eq!(next().unwrap()["line"], number, "{args:?}");
        }
        drop(next);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        writer.join().unwrap();
        let ahead = written.load(Ordering::SeqCst);
        assert!(ahead < LINES, "{args:?}: all lines were read");
    }
}

#[test]
fn a_line_is_answered_while_the_next_is_not_written() {
    for (args, line) in CASES {
        let (child, mut stdin, mut next) = start(args);
        for number in 1..=3 {
            stdin.write_all(line.as_bytes()).unwrap();
            let document = next().unwrap();
            assert_eq!(document["line"], number, "{args:?}: {document}");
            assert!(document.get("error").is_none(), "{document}");
        }
        drop(stdin);
        assert_eq!(next(), None);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("3 "), "{stderr}");
    }
}

/// A line without an end fails after the lines before it were answered.
#[test]
fn a_fault_of_the_input_comes_last() {
    for (args, line) in CASES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        std::fs::write(&path, line.repeat(2)).unwrap();
        let file = std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap();
        file.set_len(2 << 30).unwrap();
        let input = ["--input", path.to_str().unwrap()];
        let (child, stdin, mut next) = start(&[args, &input].concat());
        drop(stdin);
        for number in 1..=2 {
            assert_eq!(next().unwrap()["line"], number, "{args:?}");
        }
        assert_eq!(next(), None);
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("line 3 has no end"), "{stderr}");
    }
}
