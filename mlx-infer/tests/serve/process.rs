//! The command as a process: its output, its signals, and wrong usage.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use crate::client::at_first_event;

/// `mlx-infer serve` with a free port.
struct Process {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
    /// Warnings before the line `ready`.
    warnings: String,
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-infer"));
    command
        .arg("serve")
        .args(args)
        .env_remove("MLX_INFER_API_KEY")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Process {
    fn start(args: &[&str]) -> Self {
        let mut child = command(&[&["--port", "0"], args].concat()).spawn().unwrap();
        let mut process = Self {
            stderr: BufReader::new(child.stderr.take().unwrap()),
            child,
            address: String::new(),
            warnings: String::new(),
        };
        let listening = process.line();
        let address = listening.strip_prefix("listening at http://").unwrap();
        process.address = address.trim().to_owned();
        let mut ready = process.line();
        // The engine may warn while the command prints its line.
        while ready.starts_with("warning:") {
            process.warnings += &ready;
            ready = process.line();
        }
        // A start that takes longer than a second prints a line about it.
        if ready.starts_with("loading built-in") {
            ready = process.line();
        }
        let words = [
            "ready: built-in (",
            "a context of 512 tokens",
            " MiB of kept prefixes",
        ];
        assert!(words.iter().all(|word| ready.contains(word)), "{ready}");
        process
    }

    /// The next line of stderr.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }

    fn open(&self, body: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nx-request-id: mine\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        BufReader::new(stream)
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let kill = Command::new("kill").args([name, &id]).status();
        assert!(kill.unwrap().success());
    }

    /// Early warnings, the rest of stderr, and the exit status.
    fn end(mut self) -> (String, ExitStatus) {
        let mut rest = std::mem::take(&mut self.warnings);
        self.stderr.read_to_string(&mut rest).unwrap();
        (rest, self.child.wait().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request that takes longer than the delivery of a signal.
const LONG: &str = r#"{"prompt": "The secret fox", "max_tokens": 400, "ignore_eos": true, "n": 4, "stream": true, "logprobs": 5}"#;

fn begun(process: &Process) -> BufReader<TcpStream> {
    at_first_event(process.open(LONG))
}

#[test]
fn a_signal_lets_streams_end_and_each_request_has_one_line_without_its_prompt() {
    for signal in ["-TERM", "-INT"] {
        let process = Process::start(&["--drain", "600"]);
        let mut short =
            process.open(r#"{"prompt": "The secret fox", "max_tokens": 3, "ignore_eos": true}"#);
        let mut answer = String::new();
        short.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let mut stream = begun(&process);
        process.signal(signal);
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert_eq!(rest.matches("\"finish_reason\":\"length\"").count(), 4);
        assert!(rest.contains("data: [DONE]"));
        let (log, status) = process.end();
        assert_eq!(status.code(), Some(0), "{log}");
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 3, "{log}");
        let words = |line: &str, words: &[&str]| {
            assert!(words.iter().all(|word| line.contains(word)), "{line}");
        };
        words(
            lines[0],
            &[
                " 200 POST /v1/completions id=mine ",
                "tokens=3",
                "finish=length",
            ],
        );
        words(lines[1], &["ending: requests under way may finish"]);
        words(
            lines[2],
            &[" 200 POST /v1/completions id=mine ", "tokens=1600"],
        );
        assert!(!log.contains("secret"), "{log}");
    }
}

/// The status of a request with this key.
fn with_key(process: &Process, key: &str) -> String {
    let mut stream = TcpStream::connect(&process.address).unwrap();
    let head = format!(
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nx-api-key: {key}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer[9..12].to_owned()
}

#[test]
fn a_hangup_reads_the_keys_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "# of the team\none\n\n  # old\n two\n").unwrap();
    let path = file.path().to_str().unwrap();
    let mut process = Process::start(&["--quiet", "--api-key-file", path]);
    let status = |process: &Process| {
        ["one", "two", "three", "# of the team", "#"].map(|key| with_key(process, key))
    };
    assert_eq!(status(&process), ["200", "200", "401", "401", "401"]);
    std::fs::write(file.path(), "two\nthree\n").unwrap();
    process.signal("-HUP");
    assert_eq!(process.line(), "the API keys were read again: 2\n");
    assert_eq!(status(&process), ["401", "200", "200", "401", "401"]);
    // A file whose keys would leave the server open has no effect.
    std::fs::write(file.path(), "# none\n").unwrap();
    process.signal("-HUP");
    assert!(
        process
            .line()
            .starts_with("the API keys stay as they are: ")
    );
    assert_eq!(status(&process)[1], "200");
    process.signal("-TERM");
    let (log, status) = process.end();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn a_hangup_without_keys_changes_nothing() {
    let mut process = Process::start(&["--quiet"]);
    process.signal("-HUP");
    assert!(
        process
            .line()
            .starts_with("SIGHUP: there is no --api-key-file")
    );
    assert_eq!(with_key(&process, "any"), "200");
}

#[test]
fn flags_out_of_range_are_told_with_the_commands_usage() {
    for (args, message) in [
        (
            &["--temperature", "-1", "--port", "0"][..],
            "temperature must be",
        ),
        (&["--rows", "-1"], "invalid value '-1' for '--rows <N>'"),
        (&["--port", "-1"], "invalid value '-1' for '--port <PORT>'"),
        (&["--rows", "0", "--port", "0"], "rows must be"),
    ] {
        let output = command(args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(message), "{args:?}: {stderr}");
        assert!(
            !stderr.contains("Usage: mlx-infer <COMMAND>"),
            "{args:?}: {stderr}"
        );
    }
    let output = command(&["--rows", "0", "--port", "0"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("Usage: mlx-infer serve"), "{stderr}");
    let help = String::from_utf8(command(&["--help"]).output().unwrap().stdout).unwrap();
    for route in [
        "/v1/systemone",
        "/tokenizer_info",
        "/v1/messages/count_tokens",
    ] {
        assert!(help.contains(route), "{route}");
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut process = Process::start(&["--quiet"]);
    let stream = begun(&process);
    process.signal("-TERM");
    assert!(process.line().starts_with("ending: "));
    process.signal("-TERM");
    let (log, status) = process.end();
    assert_eq!(status.code(), Some(128 + 15), "{log}");
    drop(stream);
}

#[test]
fn mistakes_of_a_start_are_told_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let empty = tempfile::NamedTempFile::new().unwrap();
    let file = empty.path().to_str().unwrap();
    for (args, code, words) in [
        (
            &["--port", &port][..],
            1,
            &["cannot listen at 127.0.0.1:", "in use"][..],
        ),
        (&["--port", "70000"], 2, &["70000"]),
        (
            &["--host", "0.0.0.0"],
            2,
            &["0.0.0.0", "API key", "--insecure"],
        ),
        (
            &["--api-key-file", "/nowhere/keys"],
            1,
            &["cannot read /nowhere/keys"],
        ),
        (&["--api-key-file", file], 2, &["has no API key"]),
        (
            &["--model", "/nowhere/model", "--port", "0"],
            1,
            &["/nowhere/model"],
        ),
        (&["--rows", "0", "--port", "0"], 2, &["rows"]),
        (&["--adapter", "sport", "--port", "0"], 2, &["sport"]),
        (&["--temperature=-1", "--port", "0"], 2, &["temperature"]),
        (
            &["--client-timeout", "0", "--port", "0"],
            2,
            &["client_timeout"],
        ),
        (&["--ping", "0", "--port", "0"], 2, &["ping"]),
        (
            &["--max-requests", "0", "--port", "0"],
            2,
            &["max_requests"],
        ),
    ] {
        let output = command(args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        let errors = stderr.lines().filter(|line| line.starts_with("error: "));
        assert_eq!(errors.count(), 1, "{args:?}: {stderr}");
        for word in words {
            assert!(stderr.contains(word), "{args:?}: {stderr}");
        }
    }
}

/// The built-in model has sliding windows, which need room for drafts. A request may draft without
/// the server's flag for it.
#[test]
fn a_request_speculates_without_the_flag() {
    let process = Process::start(&[]);
    let answers = ["\"off\"", "2", "8", "\"auto\""].map(|speculative| {
        let mut answer = String::new();
        let body = format!(
            r#"{{"prompt": "The red fox eats a ripe berry. The red fox", "max_tokens": 12, "temperature": 0, "speculative": {speculative}}}"#
        );
        process.open(&body).read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        body["choices"][0]["text"].clone()
    });
    assert!(answers[0].as_str().is_some_and(|text| !text.is_empty()));
    for answer in &answers {
        assert_eq!(answer, &answers[0]);
    }
}

/// The answer to a prompt with its number of tokens that were not computed, and the metrics of
/// prefixes in files.
fn asked(process: &Process, prompt: &str) -> (String, usize, Vec<String>) {
    let body = serde_json::json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    let mut answer = String::new();
    process
        .open(&body.to_string())
        .read_to_string(&mut answer)
        .unwrap();
    let (_, json) = answer.split_once("\r\n\r\n").unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    let text = json["choices"][0]["text"].as_str().unwrap().to_owned();
    let cached = json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    let mut stream = TcpStream::connect(&process.address).unwrap();
    let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let metrics = metrics
        .lines()
        .filter(|line| line.starts_with("mlx_prefix_dir"));
    let metrics = metrics.map(str::to_owned).collect();
    (text, cached.unwrap_or(0) as usize, metrics)
}

#[test]
fn a_second_turn_after_a_restart_begins_with_the_files_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let flags = ["--prefix-dir", path, "--prefix-dir-bytes", "50000000"];
    let prompt = "The red fox wanders through the forest and looks for something to eat. It finds";
    let without = Process::start(&[]);
    let (first, ..) = asked(&without, prompt);
    let turn = format!("{prompt}{first} Then the fox goes home.");
    let (expected, ..) = asked(&without, &turn);
    let process = Process::start(&flags);
    assert_eq!(asked(&process, prompt).0, first);
    process.signal("-TERM");
    let (stderr, status) = process.end();
    assert!(status.success() && !stderr.contains("warning:"), "{stderr}");
    let process = Process::start(&flags);
    let (found, cached, metrics) = asked(&process, &turn);
    assert_eq!(found, expected);
    assert!(cached >= 16, "{cached}");
    let is_hit = |line: &String| {
        let value = line.rsplit(' ').next().and_then(|value| value.parse().ok());
        line.starts_with("mlx_prefix_dir_hits_total") && value == Some(cached as f64)
    };
    assert!(metrics.iter().any(is_hit), "{metrics:?}");
    // A file where the folder should be: one warning, and the same answers.
    let file = folder.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let process = Process::start(&["--prefix-dir", file.to_str().unwrap()]);
    assert_eq!(asked(&process, prompt).0, first);
    assert_eq!(asked(&process, &turn).0, expected);
    process.signal("-TERM");
    let (stderr, _) = process.end();
    let warnings = stderr
        .lines()
        .filter(|line| line.contains("prefixes are no longer written"));
    assert_eq!(warnings.count(), 1, "{stderr}");
}
