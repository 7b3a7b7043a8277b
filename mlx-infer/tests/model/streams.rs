//! Standard streams that cannot be written: full, open for reading only, or closed by their reader.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

fn full() -> Stdio {
    let file = File::options().write(true).open("/dev/full").unwrap();
    file.into()
}

fn read_only() -> Stdio {
    File::open("/dev/null").unwrap().into()
}

fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn run(line: &[&str], stdout: Stdio, stderr: Stdio) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-infer"));
    let command = command.args(line).stdin(Stdio::null());
    let child = command.stdout(stdout).stderr(stderr).spawn().unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    for line in [
        &["score", "--tokens", "5,6"][..],
        &["generate", "--tokens", "5,6", "--max-tokens", "9"],
        &["tokenize", "--text", "fox"],
        &["info", "--json"],
        &["--help"],
        &["--version"],
        &["help", "batch"],
    ] {
        for (stdout, message) in [
            (full(), "No space left on device"),
            (read_only(), "Bad file descriptor"),
        ] {
            let output = run(line, stdout, Stdio::piped());
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{line:?}: {stderr}");
            let expected = "error: cannot write to the standard output: ";
            assert!(stderr.starts_with(expected), "{line:?}: {stderr}");
            assert!(stderr.contains(message) && stderr.lines().count() == 1);
        }
        let output = run(line, closed(), Stdio::piped());
        assert_eq!(output.status.code(), Some(0), "{line:?}");
        assert!(output.stderr.is_empty(), "{line:?}");
    }
}

#[test]
fn a_note_that_cannot_be_written_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cache");
    let cache = ["cache", "--tokens", "5,6", "--out", file.to_str().unwrap()];
    let generate = [
        "generate",
        "--tokens",
        "5,6",
        "--max-tokens",
        "9",
        "--stats",
    ];
    let text = run(&generate, Stdio::piped(), Stdio::null()).stdout;
    assert!(!text.is_empty());
    for (stderr, code) in [(full(), 1), (read_only(), 1), (closed(), 0)] {
        let output = run(&generate, Stdio::piped(), stderr);
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(output.stdout, text);
    }
    for (stderr, code) in [(full(), 1), (closed(), 0)] {
        let output = run(&cache, Stdio::piped(), stderr);
        assert_eq!(output.status.code(), Some(code));
        fs::remove_file(&file).unwrap();
    }
    for (line, code) in [
        (&["score", "--model", "/none", "--tokens", "1"][..], 1),
        (&["score", "--no-such-flag"], 2),
        (&["score", "--tokens", "1", "--kv-bits", "5"], 2),
    ] {
        for stderr in [full(), read_only(), closed()] {
            let output = run(line, Stdio::piped(), stderr);
            assert_eq!(output.status.code(), Some(code), "{line:?}");
        }
    }
}
