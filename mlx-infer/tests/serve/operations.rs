//! What operators set: the file of flags, variables, lines of JSON, TLS, unix sockets, a prefix of
//! all paths.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::client::{Answer, answer};
use crate::process::command;

/// A server that is ready, and the place that its first line names.
pub struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
    pub place: String,
}

impl Running {
    pub fn start(args: &[&str]) -> Self {
        Self::of(&mut command(args))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut running = Self {
            stderr: BufReader::new(child.stderr.take().unwrap()),
            child,
            place: String::new(),
        };
        let listening = running.until("listening at ");
        let (_, place) = listening.split_once("listening at ").unwrap();
        running.place = place.trim().trim_end_matches("\"}").to_owned();
        running.until("ready: ");
        running
    }

    /// The next line that contains a text.
    fn until(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.stderr.read_line(&mut line).unwrap();
            assert!(read > 0, "the server has ended before {text:?}");
            if line.contains(text) {
                return line;
            }
        }
    }

    pub fn tcp(&self) -> TcpStream {
        let (_, address) = self.place.split_once("://").unwrap();
        TcpStream::connect(address.split('/').next().unwrap()).unwrap()
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &id])
                .status()
                .unwrap()
                .success()
        );
    }

    /// The rest of stderr after SIGTERM.
    pub fn end(mut self) -> String {
        self.signal("-TERM");
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request over a connection, and its answer.
pub fn ask(mut stream: impl Read + Write, path: &str, body: Option<&Value>) -> Answer {
    let body = body.map(Value::to_string).unwrap_or_default();
    let method = if body.is_empty() { "GET" } else { "POST" };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    answer(&bytes)
}

/// The number of tokens of an answer to a request that names no maximum.
fn tokens(server: &Running) -> Value {
    let body =
        json!({"messages": [{"role": "user", "content": "What is 20 + 22?"}], "ignore_eos": true});
    ask(server.tcp(), "/v1/chat/completions", Some(&body)).json()["usage"]["completion_tokens"]
        .take()
}

/// A folder with a file of flags.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("serve.toml");
    fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn flags_come_before_variables_and_variables_before_the_file() {
    let (_folder, path) = file(
        "# of the tests\nport = 0\nmax-output = 7\nname = [\"one\", \"two\"]\nquiet = true\ntemperature = 0.5\nstrict = true\n",
    );
    let path = path.to_str().unwrap();
    let of_file = Running::start(&["--config", path]);
    assert_eq!(tokens(&of_file), 7);
    let names = |server: &Running| -> Vec<String> {
        let models = ask(server.tcp(), "/v1/models", None).json();
        let list = models["data"].as_array().unwrap();
        list.iter()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&of_file), ["one", "two"]);
    let unknown = json!({"prompt": "x", "colour": 1});
    let refused = |server: &Running| ask(server.tcp(), "/v1/completions", Some(&unknown)).status;
    assert_eq!(refused(&of_file), 400);
    // The file is named by a variable, and a variable takes precedence over it.
    let variables = [
        ("MLX_INFER_CONFIG", path),
        ("MLX_INFER_MAX_OUTPUT", "5"),
        ("MLX_INFER_STRICT", "no"),
        ("MLX_INFER_COLOUR", "red"),
    ];
    let of_variables = Running::of(command(&[]).envs(variables));
    assert_eq!(
        (tokens(&of_variables), refused(&of_variables)),
        (json!(5), 200)
    );
    drop(of_variables);
    let mut of_flags = command(&["--config", path, "--max-output=3", "--name", "three"]);
    let of_flags = Running::of(of_flags.env("MLX_INFER_MAX_OUTPUT", "5"));
    assert_eq!(tokens(&of_flags), 3);
    // A list is replaced, not continued.
    assert_eq!(names(&of_flags), ["three"]);
}

/// The error of a start, and its exit status.
fn refusal(command: &mut Command) -> (String, Option<i32>) {
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    (stderr, output.status.code())
}

#[test]
fn mistakes_in_a_file_are_told_with_its_name() {
    for (text, words) in [
        ("prot = 0", &["unknown key \"prot\""][..]),
        (
            "max_output = 3",
            &["unknown key \"max_output\"", "the flag is max-output"],
        ),
        ("config = 'other.toml'", &["unknown key \"config\""]),
        ("[limits]\nrows = 3", &["unknown key \"limits\""]),
        ("port = 70000", &["70000", "--port"]),
        ("rows = -1", &["-1", "--rows"]),
        (
            "rows = true",
            &["rows takes a text or a number, given true"],
        ),
        ("rows = [1]", &["rows takes a text or a number, given [1]"]),
        (
            "name = [[\"a\"]]",
            &["name takes a list of texts and numbers"],
        ),
        ("strict = 1", &["strict takes true or false, given 1"]),
        ("port = ", &["not valid TOML"]),
        ("port = 0\nport = 1", &["not valid TOML", "duplicate key"]),
        ("tls-cert = 'a.pem'", &["--tls-key"]),
        ("speculative = 'often'", &["often", "--speculative"]),
    ] {
        let (_folder, path) = file(text);
        let (stderr, code) = refusal(&mut command(&["--config", path.to_str().unwrap()]));
        assert_eq!(code, Some(2), "{text}: {stderr}");
        assert!(stderr.starts_with("error: "), "{text}: {stderr}");
        for word in words.iter().chain(&["serve.toml"]) {
            assert!(stderr.contains(word), "{text}: {word}: {stderr}");
        }
    }
    let (stderr, code) = refusal(&mut command(&["--config", "/nowhere/serve.toml"]));
    assert!(
        code == Some(2) && stderr.contains("/nowhere/serve.toml"),
        "{stderr}"
    );
    // A mistake of the command line is not the file's.
    let (_folder, path) = file("port = 0");
    let (stderr, _) = refusal(&mut command(&[
        "--config",
        path.to_str().unwrap(),
        "--rows=-1",
    ]));
    assert!(
        stderr.contains("--rows") && !stderr.contains("serve.toml"),
        "{stderr}"
    );
    for (name, value) in [
        ("MLX_INFER_ROWS", "many"),
        ("MLX_INFER_STRICT", "maybe"),
        ("MLX_INFER_DTYPE", "f8"),
        ("MLX_INFER_CLIENT_TIMEOUT", "tcp://10.0.0.1:8080"),
    ] {
        let (stderr, code) = refusal(command(&["--port", "0"]).env(name, value));
        let start = format!("error: {name}: invalid value '{value}'");
        assert!(code == Some(2) && stderr.starts_with(&start), "{stderr}");
    }
    // A mistake of the command line is not the variable's.
    let (stderr, _) = refusal(command(&["--rows=-1"]).env("MLX_INFER_ROWS", "-1"));
    assert!(
        stderr.contains("--rows") && !stderr.contains("MLX_INFER_ROWS"),
        "{stderr}"
    );
}

#[test]
fn every_flag_is_a_key_of_the_file() {
    let help = String::from_utf8(command(&["--help"]).output().unwrap().stdout).unwrap();
    let flags = help.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = line
            .strip_prefix("-h, ")
            .or(line.strip_prefix("-V, "))
            .unwrap_or(line);
        line.strip_prefix("--")?.split([' ', '=', '.']).next()
    });
    let mut flags: Vec<&str> = flags
        .filter(|flag| !["help", "version", "config"].contains(flag))
        .collect();
    assert!(flags.len() > 40 && flags.contains(&"tls-cert"), "{flags:?}");
    // Keys are read in the order of the alphabet.
    flags.sort_unstable();
    let keys: String = flags
        .iter()
        .map(|flag| format!("{flag} = {{}}\n"))
        .collect();
    let (_folder, path) = file(&format!("{keys}zebra = 1\n"));
    let path = path.to_str().unwrap();
    let mut text = fs::read_to_string(path).unwrap();
    for flag in flags {
        let (stderr, _) = refusal(&mut command(&["--config", path]));
        assert!(
            stderr.contains(&format!("{flag} takes ")),
            "{flag}: {stderr}"
        );
        text = text.replacen(&format!("{flag} = {{}}\n"), "", 1);
        fs::write(path, &text).unwrap();
    }
    let (stderr, _) = refusal(&mut command(&["--config", path]));
    assert!(stderr.contains("unknown key \"zebra\""), "{stderr}");
}

#[test]
fn all_lines_can_be_json() {
    let mut server = command(&["--port", "0", "--log-format", "json", "--drain", "1"]);
    let server = Running::of(server.env("MLX_INFER_COLOUR", "red"));
    let body = json!({"prompt": "The secret fox", "max_tokens": 3, "ignore_eos": true});
    assert_eq!(
        ask(server.tcp(), "/v1/completions", Some(&body)).status,
        200
    );
    assert_eq!(ask(server.tcp(), "/v1/nothing", None).status, 404);
    let log = server.end();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for line in &lines {
        assert!(line["time"].as_str().unwrap().ends_with('Z'), "{line}");
        assert_eq!(line["level"], "info");
    }
    let [first, second, third] = &lines[..] else {
        panic!("{log}")
    };
    assert_eq!(first["message"], "request");
    assert_eq!(
        (&first["status"], &first["method"]),
        (&json!(200), &json!("POST"))
    );
    assert_eq!(
        (&first["path"], &first["tokens"]),
        (&json!("/v1/completions"), &json!(3))
    );
    assert_eq!(
        (&first["finish"], &first["left"]),
        (&json!(["length"]), &json!(false))
    );
    assert!(first["seconds"].as_f64().unwrap() > 0.0 && first["id"].is_string());
    assert_eq!(
        (&second["status"], &second["path"]),
        (&json!(404), &json!("/v1/nothing"))
    );
    assert!(third["message"].as_str().unwrap().starts_with("ending: "));
    assert!(!log.contains("secret"), "{log}");
    // Errors and wrong usage too.
    for args in [&["--model", "/nowhere"][..], &["--rows", "0"]] {
        let args = [&["--port", "0", "--log-format", "json"], args].concat();
        let (stderr, _) = refusal(&mut command(&args));
        let last: Value = serde_json::from_str(stderr.lines().last().unwrap()).unwrap();
        assert_eq!(last["level"], "error", "{stderr}");
        assert!(
            !last["message"].as_str().unwrap().starts_with("error: "),
            "{stderr}"
        );
    }
}

fn pem(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/serve/tls")
        .join(format!("{name}.pem"))
}

/// An encrypted connection that trusts the certificate in a file.
fn encrypted(server: &Running, trusted: &Path) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(trusted).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(client, server.tcp())
}

#[test]
fn connections_are_encrypted_with_the_certificate_that_the_files_have() {
    let folder = tempfile::tempdir().unwrap();
    let used = folder.path().join("server.pem");
    fs::copy(pem("first"), &used).unwrap();
    let path = used.to_str().unwrap();
    let mut server = Running::start(&[
        "--port",
        "0",
        "--tls-cert",
        path,
        "--tls-key",
        path,
        "--quiet",
    ]);
    assert!(
        server.place.starts_with("https://127.0.0.1:"),
        "{}",
        server.place
    );
    let body = json!({"prompt": "The red fox", "max_tokens": 3, "stream": true});
    let answer = ask(
        encrypted(&server, &pem("first")),
        "/v1/completions",
        Some(&body),
    );
    assert!(
        answer.status == 200 && answer.chunks().len() > 1,
        "{}",
        answer.body
    );
    // A client that trusts another certificate, and one without TLS, get nothing.
    let other = encrypted(&server, &pem("second")).write_all(b"GET / HTTP/1.1\r\n\r\n");
    assert!(other.is_err());
    let mut plain = server.tcp();
    plain
        .write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP"), "{bytes:?}");
    // The files are read again; a file that is no certificate changes nothing.
    fs::copy(pem("second"), &used).unwrap();
    server.signal("-HUP");
    server.until("the certificate was read again");
    assert_eq!(
        ask(encrypted(&server, &pem("second")), "/health", None).status,
        200
    );
    fs::write(&used, "none").unwrap();
    server.signal("-HUP");
    let line = server.until("the certificate stays as it is: ");
    assert!(line.contains("server.pem"), "{line}");
    assert_eq!(
        ask(encrypted(&server, &pem("second")), "/health", None).status,
        200
    );
    server.end();
    for (cert, key, words) in [
        (path, path, "cannot read certificates in"),
        ("/nowhere/a.pem", path, "/nowhere/a.pem"),
        (
            pem("first").to_str().unwrap(),
            pem("second").to_str().unwrap(),
            "are not a certificate and its key",
        ),
    ] {
        let args = ["--port", "0", "--tls-cert", cert, "--tls-key", key];
        let (stderr, code) = refusal(&mut command(&args));
        assert!(code == Some(1) && stderr.contains(words), "{stderr}");
    }
}

#[test]
fn a_unix_socket_takes_the_place_of_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mlx.sock");
    let args = [
        "--unix-socket",
        path.to_str().unwrap(),
        "--path-prefix",
        "/llm",
    ];
    let server = Running::start(&args);
    assert_eq!(server.place, format!("unix:{}:/llm", path.display()));
    let connect = || UnixStream::connect(&path).unwrap();
    let body = json!({"prompt": "The red fox", "max_tokens": 3, "ignore_eos": true});
    let answer = ask(connect(), "/llm/v1/completions", Some(&body));
    assert_eq!(answer.json()["usage"]["completion_tokens"], 3);
    // A proxy gives the name that its own client used.
    let mut stream = connect();
    let head = "GET /llm/v1/models HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // A second server does not take the socket of the first.
    let (stderr, code) = refusal(&mut command(&args));
    assert!(
        code == Some(1) && stderr.contains("mlx.sock") && stderr.contains("in use"),
        "{stderr}"
    );
    assert_eq!(ask(connect(), "/llm/health", None).status, 200);
    server.end();
    assert!(!path.exists());
    // The file of a server that was killed is replaced, another file is not.
    let killed = Running::start(&args);
    killed.signal("-KILL");
    drop(killed);
    assert!(path.exists());
    Running::start(&args).end();
    fs::write(&path, "text").unwrap();
    let (stderr, code) = refusal(&mut command(&args));
    assert!(code == Some(1) && stderr.contains("mlx.sock"), "{stderr}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "text");
}

/// A server listens at one place. The place of the command line comes before that of the file.
#[test]
fn a_unix_socket_excludes_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("mlx.sock");
    let socket = socket.to_str().unwrap();
    let at_socket = ["--unix-socket", socket];
    for more in [["--port", "0"], ["--host", "127.0.0.1"]] {
        let (stderr, code) = refusal(&mut command(&[at_socket, more].concat()));
        let is_named = stderr.contains("--unix-socket") && stderr.contains(more[0]);
        assert!(code == Some(2) && is_named, "{stderr}");
    }
    let (stderr, code) = refusal(command(&at_socket).env("MLX_INFER_PORT", "9000"));
    assert!(
        code == Some(2) && stderr.contains("MLX_INFER_PORT is set: ") && stderr.contains("--port"),
        "{stderr}"
    );
    let path = folder.path().join("serve.toml");
    let of_file = |text: &str, more: &[&str]| {
        fs::write(&path, text).unwrap();
        let args = [&["--config", path.to_str().unwrap()], more].concat();
        command(&args)
    };
    let both = format!("port = 0\nunix-socket = {socket:?}");
    let (stderr, code) = refusal(&mut of_file(&both, &[]));
    assert!(
        code == Some(2) && stderr.contains("serve.toml") && stderr.contains("--unix-socket"),
        "{stderr}"
    );
    let server = Running::of(&mut of_file("host = '127.0.0.1'\nport = 0", &at_socket));
    assert_eq!(server.place, format!("unix:{socket}"));
    server.end();
    let server = Running::of(&mut of_file(
        &format!("unix-socket = {socket:?}"),
        &["--port", "0"],
    ));
    assert!(server.place.starts_with("http://"), "{}", server.place);
    server.end();
}

#[test]
fn all_paths_have_the_prefix() {
    let server = Running::start(&["--port", "0", "--path-prefix", "/llm/a", "--quiet"]);
    assert!(server.place.ends_with("/llm/a"), "{}", server.place);
    let get = |path: &str| ask(server.tcp(), path, None);
    for path in [
        "/llm/a/v1/models",
        "/llm/a/models",
        "/llm/a/health",
        "/llm/a/metrics",
    ] {
        assert_eq!(get(path).status, 200, "{path}");
    }
    for path in ["/llm/a", "/llm/a/"] {
        assert!(get(path).body.contains("<!doctype html>"), "{path}");
    }
    for path in ["/", "/v1/models", "/llm/ab/v1/models", "/llm/v1/models"] {
        let answer = get(path);
        assert_eq!(answer.status, 404, "{path}");
        let message = answer.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(message.contains("begin with /llm/a"), "{message}");
    }
    for prefix in ["llm", "/llm/", "/", "/a//b", "/a?b", "/a/../b", "/a b"] {
        let (stderr, code) = refusal(&mut command(&["--port", "0", "--path-prefix", prefix]));
        assert!(
            code == Some(2) && stderr.contains("path_prefix"),
            "{prefix}: {stderr}"
        );
    }
}

/// What cannot fit is refused with its numbers, before anything is loaded.
#[cfg(target_os = "linux")]
#[test]
fn a_start_that_cannot_fit_is_refused_with_the_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("large");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    // It takes no room on the disk.
    let weights = fs::File::create(model.join("model.safetensors")).unwrap();
    weights.set_len(12 << 40).unwrap();
    let model = model.to_str().unwrap();
    for (args, words) in [
        (
            &["--model", model][..],
            &["large does not fit this machine: its weights (13194.14 GB) need 13194.14 GB, and "]
                [..],
        ),
        (
            &[
                "--cache-bytes",
                "90000000000000",
                "--prefix-bytes",
                "10000000000000",
            ],
            &["--cache-bytes (90000.00 GB), --prefix-bytes (10000.00 GB) need 100000.00 GB, and "],
        ),
    ] {
        let args = [&["--port", "0"], args].concat();
        let (stderr, code) = refusal(&mut command(&args));
        assert_eq!(code, Some(1), "{stderr}");
        for word in words.iter().chain(&[" of memory are free"]) {
            assert!(stderr.contains(word), "{word}: {stderr}");
        }
    }
}

fn example(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/serve");
    folder.join(name)
}

#[test]
fn the_dashboard_and_the_alerts_name_metrics_that_exist() {
    let metrics = crate::client::SERVER.get("/metrics").body;
    let known: Vec<&str> = (metrics.lines())
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let labels = ["model_name", "code", "finished_reason", "le"];
    for (name, least) in [("grafana.json", 15), ("alerts.yaml", 6)] {
        let text = fs::read_to_string(example(name)).unwrap();
        if name == "grafana.json" {
            let dashboard: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(dashboard["panels"].as_array().unwrap().len(), 13);
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let words = text.split(|c| !is_part(c));
        let named: Vec<&str> = words
            .filter(|word| word.starts_with("vllm:") || word.starts_with("mlx_"))
            .collect();
        assert!(named.len() >= least, "{name}: {named:?}");
        for metric in named {
            // A series appears with its first response.
            let is_known = known.contains(&metric) || metric == "mlx_responses_total";
            assert!(is_known, "{name}: {metric}");
        }
        for label in text.split("by (").skip(1) {
            let list = label.split(')').next().unwrap();
            for label in list.split(", ").filter(|label| *label != "instance") {
                assert!(labels.contains(&label), "{name}: {label}");
                assert!(metrics.contains(&format!("{label}=\"")), "{name}: {label}");
            }
        }
    }
}

#[test]
fn the_example_of_a_file_is_taken() {
    let path = example("serve.toml");
    let server = Running::start(&["--config", path.to_str().unwrap(), "--port", "0"]);
    let models = ask(server.tcp(), "/v1/models", None).json();
    assert_eq!(models["data"][1]["id"], "org/fox");
    let log = server.end();
    assert!(
        log.lines()
            .all(|line| serde_json::from_str::<Value>(line).is_ok()),
        "{log}"
    );
}
