//! `mlx-infer classify` and `mlx-infer batch`, with the built-in model.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use crate::checkpoint::testdata;
use serde_json::{Value, json};

/// Starts the command with pipes for its streams.
pub fn spawn(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_mlx-infer"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs the command with this input. Returns its exit status, its documents and its standard error.
pub fn run(args: &[&str], input: &str) -> (Option<i32>, Vec<Value>, String) {
    let mut child = spawn(args);
    // A command that does not read its input may have closed the pipe.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let documents = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), documents, stderr)
}

const LABELS: &str = "technical,creative,ethical,casual";

#[test]
fn held_out_sentences_are_classified() {
    let path = testdata("default-model/heldout.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let asked: Vec<&str> = text
        .lines()
        .filter(|line| line.contains(r#""task": "classify""#))
        .collect();
    assert!(asked.len() >= 100);
    let args = [
        "classify", "--chat", "--labels", LABELS, "--field", "prompt",
    ];
    let (code, documents, stderr) = run(&args, &asked.join("\n"));
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(documents.len(), asked.len());
    let mut right = 0;
    for (n, (line, document)) in asked.iter().zip(&documents).enumerate() {
        let expected: Value = serde_json::from_str(line).unwrap();
        assert_eq!(document["line"], n + 1);
        let probabilities = document["probabilities"].as_object().unwrap();
        let total: f64 = probabilities.values().map(|p| p.as_f64().unwrap()).sum();
        assert!((total - 1.0).abs() < 1e-9 && probabilities.len() == 4);
        right += usize::from(document["label"] == expected["expected"]);
    }
    assert!(
        right * 100 >= asked.len() * 95,
        "{right} of {}",
        asked.len()
    );
    let summary = format!("{} lines, 0 failed, ", asked.len());
    assert!(stderr.contains(&summary), "{stderr}");
}

#[test]
fn a_line_that_fails_says_so_on_its_line() {
    let input = "{\"q\": \"The compiler reports a race condition.\"}\n\
                 no json\n{\"q\": 3}\n{\"p\": \"x\"}\n\n\
                 {\"q\": \"Nobody told me about the pair of sneakers.\"}\n";
    let args = [
        "classify",
        "--chat",
        "--labels",
        LABELS,
        "--field",
        "q",
        "--template",
        "Classify: {}",
    ];
    let (code, documents, stderr) = run(&args, input);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(documents[0]["label"], "technical");
    assert_eq!(documents[5]["label"], "casual");
    assert_eq!(
        documents[2],
        json!({"line": 3, "error": "\"q\" is not a string"})
    );
    assert_eq!(
        documents[3],
        json!({"line": 4, "error": "there is no \"q\""})
    );
    for line in [2, 5] {
        let error = documents[line - 1]["error"].as_str().unwrap();
        assert!(error.starts_with("not valid json: "), "{error}");
    }
    assert!(stderr.contains("6 lines, 4 failed"), "{stderr}");

    // Without labels the answer is the next token; lines are texts; a line that is too long fails
    // alone.
    let input = format!("63 - 25 = \n{}\n", "word ".repeat(600));
    let (code, documents, _) = run(&["classify", "--logits"], &input);
    assert_eq!(code, Some(0));
    assert_eq!(documents[0]["token"], "3");
    let logits = documents[0]["logits"].as_array().unwrap();
    assert_eq!(logits.len(), 2048);
    let error = documents[1]["error"].as_str().unwrap();
    assert!(
        error.contains("exceed the model's 512 positions"),
        "{error}"
    );
}

#[test]
fn wrong_usage_is_told() {
    for (args, status, message) in [
        (
            vec!["classify", "--template", "x"],
            2,
            "template must have {}",
        ),
        (
            vec!["classify", "--labels", "a,a"],
            1,
            "label \"a\" is given twice",
        ),
        (
            vec!["classify", "--batch-tokens", "0"],
            1,
            "batch_tokens must be at least 1",
        ),
        (
            vec!["classify", "--input", "nowhere"],
            1,
            "cannot read nowhere",
        ),
        (
            vec!["batch", "--rows", "0"],
            2,
            "rows must be at least 1, given 0",
        ),
        (
            vec!["batch", "--top-p", "2"],
            2,
            "top_p must be in (0, 1], given 2",
        ),
    ] {
        let (code, documents, stderr) = run(&args, "");
        assert_eq!(code, Some(status), "{args:?}: {stderr}");
        assert!(stderr.contains(message) && documents.is_empty(), "{stderr}");
    }
}

#[test]
fn a_batch_answers_line_by_line() {
    let input = r#"{"prompt": "The red fox", "max_tokens": 8, "id": "a"}
{"messages": [{"role": "user", "content": "What is 47 + 38?"}]}
nonsense
{"prompt": "x", "top_p": 3, "id": 7}
{"prompt": "x", "tpo_p": 3}
{"tokens": [1, 2, 3], "temperature": 1, "seed": 4, "max_tokens": 5, "ignore_eos": true}
{"prompt": "x", "tokens": [1]}
{"prompt": "The red fox", "stop": ["forest"]}
["The red fox"]

"#;
    for rows in ["1", "64"] {
        let (code, documents, stderr) = run(&["batch", "--rows", rows], input);
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(documents.len(), 10);
        for (n, document) in documents.iter().enumerate() {
            assert_eq!(document["line"], n + 1);
        }
        let single = |args: &[&str]| {
            let args = [&["generate", "--json"], args].concat();
            run(&args, "").1.remove(0)
        };
        let fox = single(&["--prompt", "The red fox", "--max-tokens", "8"]);
        for key in ["text", "tokens", "finish_reason", "usage"] {
            assert_eq!(documents[0][key], fox[key]);
        }
        assert_eq!(documents[0]["id"], "a");
        assert_eq!(documents[1]["text"], "85");
        assert_eq!(documents[1]["finish_reason"], "stop");
        let error = |at: usize| documents[at]["error"].as_str().unwrap();
        assert!(error(2).starts_with("not a request: "));
        assert_eq!(error(3), "top_p must be in (0, 1], given 3");
        assert_eq!(documents[3]["id"], 7);
        assert!(error(4).contains("unknown field `tpo_p`"), "{}", error(4));
        let drawn = single(&[
            "--tokens",
            "1,2,3",
            "--temperature",
            "1",
            "--seed",
            "4",
            "--max-tokens",
            "5",
            "--ignore-eos",
        ]);
        assert_eq!(documents[5]["tokens"], drawn["tokens"]);
        assert_eq!(error(6), "expected one of prompt, tokens and messages");
        let text = documents[7]["text"].as_str().unwrap();
        assert!(
            !text.contains("forest") && documents[7]["finish_reason"] == "stop",
            "{text}"
        );
        for at in [8, 9] {
            assert_eq!(error(at), "not a request: expected a JSON object");
        }
        assert!(stderr.contains("10 requests, 6 failed"), "{stderr}");
    }
}

/// A program that runs a command line with a terminal as standard error, and prints the terminal's output.
const ON_A_TERMINAL: &str = r#"
import os, pty, subprocess, sys
ours, theirs = pty.openpty()
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=theirs)
os.close(theirs)
try:
    while data := os.read(ours, 4096):
        sys.stdout.buffer.write(data)
except OSError:  # on Linux: the other end is closed
    pass
sys.exit(child.wait())
"#;

#[test]
fn progress_is_shown_on_a_terminal_only() {
    // The build needs Python as well.
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let input = tempfile::tempdir().unwrap();
    let lines = input.path().join("lines.txt");
    std::fs::write(&lines, "What is a kernel?\n".repeat(40)).unwrap();
    let lines = lines.to_str().unwrap();
    let args = [
        "classify",
        "--labels",
        LABELS,
        "--batch-tokens",
        "64",
        "--input",
        lines,
    ];
    let output = Command::new(python)
        .args(["-c", ON_A_TERMINAL, env!("CARGO_BIN_EXE_mlx-infer")])
        .args(args)
        // A terminal without a TERM gets no progress bar.
        .env("TERM", "xterm")
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}");
    assert!(shown.contains("/40 "), "no bar: {shown:?}");
    assert!(shown.contains("40 lines, 0 failed"), "{shown:?}");
    let (code, documents, stderr) = run(&args, "");
    assert_eq!((code, documents.len()), (Some(0), 40), "{stderr}");
    assert!(
        !stderr.contains("/40 ") && !stderr.contains('\u{1b}'),
        "{stderr:?}"
    );
}

/// A line that is longer than any text may be (a file without line ends) fails alone, and the
/// others continue. Files may begin with a byte order mark.
#[test]
fn a_line_too_long_spoils_no_other() {
    let long = "ab ".repeat(3 << 20);
    let message = "the line is longer than 8388608 bytes";
    let input = format!("\u{feff}{{\"q\": \"hello\"}}\n{long}\n{{\"q\": \"hello\"}}");
    let (code, documents, stderr) = run(&["classify", "--field", "q"], &input);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(documents.len(), 3);
    assert_eq!(documents[1], json!({"line": 2, "error": message}));
    assert_eq!(documents[0]["token"], documents[2]["token"]);
    assert!(documents[0]["token"].is_string());
    let input = format!("\u{feff}{{\"tokens\": [5]}}\n{long}\n{{\"tokens\": [5]}}");
    let (code, documents, stderr) = run(&["batch", "--max-tokens", "2"], &input);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(documents[1], json!({"line": 2, "error": message}));
    assert_eq!(documents[0]["tokens"], documents[2]["tokens"]);
}

/// Inputs may be pipes, and inputs without an end are refused.
#[test]
#[cfg(target_os = "linux")]
fn inputs_may_be_pipes_and_have_an_end() {
    let run = |args: &[&str], input: &str| {
        let mut child = spawn(args);
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), output.stdout, stderr)
    };
    let generate = ["generate", "--max-tokens", "4", "--json"];
    let ids = |args: &[&str], input: &str| {
        let (code, out, stderr) = run(&[&generate, args].concat(), input);
        assert_eq!(code, Some(0), "{stderr}");
        serde_json::from_slice::<Value>(&out).unwrap()["tokens"].clone()
    };
    let expected = ids(&["--prompt", "The red fox"], "");
    for file in ["/dev/stdin", "-"] {
        assert_eq!(ids(&["--prompt-file", file], "The red fox"), expected);
    }
    let messages = "\u{feff}[{\"role\": \"user\", \"content\": \"hello\"}]";
    let args = ["chat", "--render", "--messages", "/dev/stdin"];
    let (code, text, stderr) = run(&args, messages);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(String::from_utf8(text).unwrap().contains("hello"));
    for (args, message) in [
        (
            &["generate", "--prompt-file", "/dev/zero"][..],
            "/dev/zero: more than 8388608 bytes",
        ),
        (
            &["chat", "--render", "--messages", "/dev/zero"],
            "/dev/zero: more than",
        ),
        (
            &["batch", "--input", "/dev/zero"],
            "/dev/zero: line 1 has no end",
        ),
    ] {
        let (code, _, stderr) = run(args, "");
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
    }
}

/// The built-in model has sliding windows, which need room for drafts. A line can ask for
/// speculation without the command's flag.
#[test]
fn a_line_speculates_without_the_flag() {
    let line = |speculative: Value| json!({"prompt": "The red fox eats a ripe berry. The red fox", "max_tokens": 12, "speculative": speculative});
    let lines: String = [json!("off"), json!(2), json!("auto")]
        .map(|speculative| format!("{}\n", line(speculative)))
        .concat();
    let (code, documents, stderr) = run(&["batch"], &lines);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(documents.len(), 3);
    for document in &documents {
        assert_eq!(document["text"], documents[0]["text"], "{document}");
    }
}
