//! What routers rely on: a server that drains refuses in a form that another server may answer, and the streams of a
//! server that is killed end with an error. `replicas.py` does the same behind SGLang's router and nginx.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::client::{Answer, at_first_event};
use crate::clients::folder;
use crate::operations::{Running, ask};

const PATH: &str = "/v1/completions";

fn body(max_tokens: usize, is_stream: bool) -> Value {
    json!({"prompt": "The red fox", "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0, "stream": is_stream})
}

/// Sends a request without reading its answer.
fn sent(server: &Running, body: &Value) -> std::io::BufReader<std::net::TcpStream> {
    let mut stream = server.tcp();
    let body = body.to_string();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    std::io::BufReader::new(stream)
}

fn text(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["choices"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// The server is alive while it drains, takes no request, says when to come back, and ends what has begun.
#[test]
fn a_server_that_drains_sends_requests_elsewhere() {
    let server = Running::start(&["--port", "0", "--quiet", "--drain", "600"]);
    let other = Running::start(&["--port", "0", "--quiet"]);
    // These take longer than the checks below.
    let begun: Vec<_> = (0..8)
        .map(|_| {
            let mut long = body(500, true);
            long["n"] = 4.into();
            long["logprobs"] = 5.into();
            at_first_event(sent(&server, &long))
        })
        .collect();
    server.signal("-TERM");
    let start = Instant::now();
    while ask(server.tcp(), "/ready", None).status != 503 {
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    assert_eq!(ask(server.tcp(), "/health", None).status, 200);
    let refused = ask(server.tcp(), PATH, Some(&body(4, false)));
    assert_eq!(refused.status, 503, "{}", refused.body);
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    assert_eq!(
        refused.json()["error"]["type"],
        "service_unavailable_error",
        "{}",
        refused.body
    );
    text(&ask(other.tcp(), PATH, Some(&body(4, false))));
    for mut stream in begun {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert_eq!(rest.matches("\"finish_reason\":\"length\"").count(), 4);
        assert!(rest.contains("data: [DONE]"), "{rest}");
    }
}

/// A client of HTTP sees an incomplete body: the last chunk of length 0 is missing. A request without an answer gets no
/// byte of one, so that a router may send it elsewhere.
#[test]
fn streams_of_a_killed_server_end_without_an_end() {
    let server = Running::start(&["--port", "0", "--quiet", "--rows", "1"]);
    let other = Running::start(&["--port", "0", "--quiet"]);
    let mut stream = at_first_event(sent(&server, &body(400, true)));
    let mut waiting = sent(&server, &body(400, false));
    server.signal("-KILL");
    let mut rest = Vec::new();
    // An error of the connection and its end are the same to the client.
    let _ = stream.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest).into_owned();
    assert!(!rest.contains("[DONE]"), "{rest}");
    assert!(!rest.ends_with("0\r\n\r\n"), "{rest}");
    let mut none = Vec::new();
    let _ = waiting.read_to_end(&mut none);
    assert!(none.is_empty(), "{}", String::from_utf8_lossy(&none));
    // The port of a killed server is closed, so that routers find out at once.
    let address = server.place.split_once("://").unwrap().1;
    let start = Instant::now();
    while std::net::TcpStream::connect(address).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    // The same requests are answered by the other one.
    let whole = text(&ask(other.tcp(), PATH, Some(&body(60, false))));
    let streamed = ask(other.tcp(), PATH, Some(&body(60, true)));
    let streamed: String = streamed
        .chunks()
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(streamed, whole);
    assert!(whole.len() > 60, "{whole}");
}

/// What SGLang's router reads before it sends requests.
#[test]
fn routers_learn_the_name_and_the_sizes() {
    let args = ["--port", "0", "--quiet", "--name", "fox", "--rows", "3"];
    let server = Running::start(&args);
    for path in ["/server_info", "/get_server_info"] {
        let info = ask(server.tcp(), path, None).json();
        assert_eq!(
            info,
            json!({"served_model_name": "fox", "version": env!("CARGO_PKG_VERSION"), "max_running_requests": 3, "context_length": 512})
        );
    }
    for path in ["/model_info", "/get_model_info"] {
        let info = ask(server.tcp(), path, None).json();
        assert_eq!(
            info,
            json!({"served_model_name": "fox", "model_type": "gemma3_text", "is_generation": true, "context_length": 512})
        );
    }
}

/// A Python with `sglang-router` and `ray[data]`.
fn python() -> Option<OsString> {
    let found = std::env::var_os("MLX_TEST_SCALING");
    if found.is_none() {
        eprintln!("left out: MLX_TEST_SCALING names no Python with sglang-router and ray");
    }
    found
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples/scaling")
        .join(name)
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_mlx-infer");

/// Behind the routers themselves; nginx is looked up in PATH.
#[test]
fn no_request_is_lost_behind_routers() {
    let Some(python) = python() else { return };
    for router in ["sglang", "nginx"] {
        let output = Command::new(&python)
            .arg(folder().join("replicas.py"))
            .args([router, PROGRAM])
            .arg(example("nginx.conf"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        eprintln!("{said}");
        assert!(output.status.success(), "{router}: {said}{errors}");
    }
}

/// A run with two actors of Ray that is killed, and goes on without its finished parts: the labels are those of the
/// command, line by line.
#[test]
fn actors_label_what_the_command_labels() {
    let Some(python) = python() else { return };
    let room = tempfile::tempdir().unwrap();
    let (corpus, labels) = (room.path().join("corpus.txt"), room.path().join("labels"));
    let mut text: String = (0..400)
        .map(|at| match at % 4 {
            0 => "\n".to_owned(),
            1 => format!("The compiler reports fault {at}.\n"),
            _ => format!("We should not lie to person {at}.\n"),
        })
        .collect();
    // The last line has no end.
    text.pop();
    std::fs::write(&corpus, &text).unwrap();
    let flags = [
        "--labels",
        "technical,ethical",
        "--chat",
        "--template",
        "Classify: {}",
    ];
    let run = |lines: &str| {
        let mut command = Command::new(&python);
        command
            .arg(example("classify_ray.py"))
            .args([&corpus, &labels])
            .args([
                "--actors",
                "2",
                "--cpus",
                "0.5",
                "--lines",
                lines,
                "--program",
                PROGRAM,
                "--",
            ])
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let done = || complete(&labels);
    let mut first = run("10").spawn().unwrap();
    let start = Instant::now();
    while done().len() < 3 {
        assert!(first.try_wait().unwrap().is_none(), "it has ended before");
        assert!(start.elapsed() < Duration::from_secs(300));
    }
    first.kill().unwrap();
    first.wait().unwrap();
    // Ray ends the actors of a driver that has died.
    std::thread::sleep(Duration::from_secs(10));
    let before = done();
    assert!(before.len() < 40, "it was killed too late");
    let other = run("20").output().unwrap();
    let said = String::from_utf8_lossy(&other.stderr);
    assert!(
        !other.status.success() && said.contains("is of another run"),
        "{said}"
    );
    let output = run("10").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        said.contains(&format!("40 parts, {} of them done before", before.len())),
        "{said}"
    );
    eprintln!("{said}");
    let after = done();
    assert!(
        before
            .iter()
            .all(|(path, time)| after.get(path) == Some(time))
    );
    let found: Vec<Value> = after
        .keys()
        .flat_map(|path| lines_of(&std::fs::read_to_string(path).unwrap()))
        .collect();
    let input = std::fs::File::open(&corpus).unwrap();
    let direct = Command::new(PROGRAM)
        .arg("classify")
        .args(flags)
        .stdin(input)
        .output()
        .unwrap();
    let direct = lines_of(&String::from_utf8(direct.stdout).unwrap());
    assert_eq!(found.len(), 400);
    assert_same_labels(&found, &direct);
}

/// The complete parts of a folder of labels, and when each was written.
fn complete(labels: &Path) -> BTreeMap<PathBuf, SystemTime> {
    let entries = std::fs::read_dir(labels).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_part = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.ends_with(".jsonl") && !name.starts_with('.')
    };
    let dated = |path: PathBuf| Some((path.clone(), path.metadata().ok()?.modified().ok()?));
    paths.filter(is_part).filter_map(dated).collect()
}

fn lines_of(text: &str) -> Vec<Value> {
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

fn assert_same_labels(found: &[Value], direct: &[Value]) {
    assert_eq!(found.len(), direct.len());
    for (found, direct) in found.iter().zip(direct) {
        for key in ["line", "label", "error"] {
            assert_eq!(found[key], direct[key], "{found}");
        }
        // Lines that are computed together differ in the last bits.
        let labels = direct["probabilities"].as_object().into_iter().flatten();
        for (label, probability) in labels {
            let near = found["probabilities"][label].as_f64().unwrap();
            assert!(
                (near - probability.as_f64().unwrap()).abs() < 1e-4,
                "{found} {direct}"
            );
        }
    }
}
