//! The commands for many lines when their output is closed or Ctrl-C stops them.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command};

use serde_json::Value;

use crate::command::spawn;

/// Starts the command, writes its input from a thread, and reads the first document.
fn start(args: &[&str], input: String) -> (Child, BufReader<ChildStdout>, Value) {
    let mut child = spawn(args);
    let mut stdin = child.stdin.take().unwrap();
    // A command that is stopped leaves the rest of its input unread.
    std::thread::spawn(move || stdin.write_all(input.as_bytes()).is_ok());
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let first = serde_json::from_str(&line).unwrap();
    (child, stdout, first)
}

const LONG: usize = 20;

/// A request that ends at once, and others that take long.
fn requests() -> String {
    let long = "{\"prompt\":\"The red fox\",\"max_tokens\":300,\"ignore_eos\":true}\n".repeat(LONG);
    format!("{{\"prompt\":\"47 + 38 =\",\"max_tokens\":1}}\n{long}")
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let texts = "We should not lie to people who trust us.\n".repeat(3000);
    for (args, input) in [
        (&["batch"][..], requests()),
        (&["classify", "--batch-tokens", "64"], texts),
    ] {
        let (child, stdout, first) = start(args, input);
        assert_eq!(first["line"], 1, "{args:?}");
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*said), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn an_interrupt_ends_what_is_under_way() {
    let (child, mut stdout, first) = start(&["batch"], requests());
    assert_eq!(first["finish_reason"], "length");
    let kill = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.ends_with("error: cancelled\n"), "{said}");
    let rest: Vec<Value> = rest
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rest.len(), LONG);
    for (document, line) in rest.iter().zip(2..) {
        assert_eq!(document["line"], line);
        assert_eq!(document["finish_reason"], "cancelled", "{document}");
        let tokens = document["tokens"].as_array().unwrap().len();
        assert!(tokens < 300, "{tokens}");
    }
}
