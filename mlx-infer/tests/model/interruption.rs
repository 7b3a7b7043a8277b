//! The command when its output is closed or Ctrl-C stops it.

use std::io::Read;
use std::process::{Child, ChildStdout, Command};

use crate::checkpoint;
use crate::command::spawn;

/// A generation that has written its first byte.
fn started(max_tokens: &str) -> (Child, ChildStdout) {
    let copy = checkpoint::with_tokenizer("llama_tied", "qwen");
    let dir = copy.path().to_str().unwrap();
    let mut child = spawn(&[
        "generate",
        "--model",
        dir,
        "--tokens",
        "5,6,7",
        "--max-tokens",
        max_tokens,
        "--ignore-eos",
    ]);
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    (child, stdout)
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let (child, stdout) = started("400");
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn an_interrupt_keeps_the_text_and_is_a_failure() {
    let (child, mut stdout) = started("500");
    let kill = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "error: cancelled\n"
    );
    assert!(rest.ends_with('\n'));
}
