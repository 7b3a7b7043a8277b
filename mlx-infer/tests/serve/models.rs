//! `mlx-infer serve` with several models: its flags, its lines, and models that are damaged or
//! deleted.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr};
use std::time::{Duration, Instant};

use mlx_core::{Array, Safetensors, safetensors};
use serde_json::{Value, json};

use crate::client::Client;
use crate::process::command;

/// A copy of the built-in model.
fn copy(to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/default-model");
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// The command with several models.
struct Several {
    child: Child,
    stderr: BufReader<ChildStderr>,
    client: Client,
}

impl Several {
    fn start(args: &[&str]) -> Self {
        let mut child = command(&[&["--port", "0", "--quiet"], args].concat())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening at http://");
        let address: SocketAddr = address.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        Self {
            child,
            stderr,
            client: Client { address },
        }
    }

    /// The next line of stderr that is no warning.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.stderr.read_line(&mut line).unwrap();
            if !line.starts_with("warning:") {
                return line.trim().to_owned();
            }
        }
    }

    fn expect(&mut self, start: &str, end: &str) {
        let line = self.line();
        assert!(
            line.starts_with(start) && line.ends_with(end),
            "{line}, not {start}…{end}"
        );
    }

    /// Asks a model, and returns the status with the answer or the error.
    fn ask(&self, model: &str) -> (u16, String) {
        let messages = json!([{"role": "user", "content": "What is 20 + 22?"}]);
        let body = json!({"model": model, "messages": messages, "temperature": 0});
        let answer = self.client.post("/v1/chat/completions", &body);
        let document = answer.json();
        let text = match answer.status {
            200 => &document["choices"][0]["message"]["content"],
            _ => &document["error"]["message"],
        };
        (answer.status, text.as_str().unwrap().to_owned())
    }

    fn list(&self) -> Vec<(String, String)> {
        let list = self.client.get("/v1/models").json();
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        let entries = list["data"].as_array().unwrap().iter();
        entries
            .map(|one| (word(&one["id"]), word(&one["state"])))
            .collect()
    }
}

impl Drop for Several {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = pairs
        .iter()
        .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
    owned.collect()
}

/// A decoder for embeddings, as it is published: no output head, and names without the prefix
/// `model.`.
fn headless(to: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/qwen3");
    std::fs::create_dir_all(to).unwrap();
    std::fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let file = Safetensors::open(from.join("model.safetensors")).unwrap();
    let named = file.names().filter_map(|name| {
        let bare = name.strip_prefix("model.")?;
        Some((bare, file.array(name).unwrap()))
    });
    let named: Vec<(&str, Array)> = named.collect();
    let arrays = named.iter().map(|(name, array)| (*name, array));
    safetensors::save(to.join("model.safetensors"), arrays, &BTreeMap::new()).unwrap();
}

/// What models can do is in their files: none is loaded for that.
#[test]
fn models_are_shown_before_they_are_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    copy(&at("whole"));
    headless(&at("headless"));
    copy(&at("broken"));
    std::fs::write(at("broken/model.safetensors"), b"short").unwrap();
    let path = dir.path().to_str().unwrap();
    let server = Several::start(&["--models-dir", path]);
    let show = |model: &str| {
        let answer = server.client.post("/api/show", &json!({"model": model}));
        assert_eq!(answer.status, 200, "{model}: {}", answer.body);
        answer.json()
    };
    let can = |model: &str| show(model)["capabilities"].clone();
    assert_eq!(can("headless"), json!(["embedding"]));
    assert_eq!(can("whole"), json!(["completion", "tools"]));
    // Its config.json says that much.
    assert_eq!(can("broken"), json!(["completion", "tools"]));
    let details = &show("whole")["details"];
    assert_eq!(
        (&details["family"], &details["parameter_size"]),
        (&json!("gemma3_text"), &json!("2.2M"))
    );
    let states: Vec<String> = server.list().into_iter().map(|(_, state)| state).collect();
    assert!(states.iter().all(|state| state == "unloaded"), "{states:?}");
    // The same after it was loaded.
    let before = show("whole");
    assert_eq!(server.ask("whole").0, 200);
    let after = show("whole");
    for key in ["capabilities", "model_info", "details", "template"] {
        assert_eq!(before[key], after[key], "{key}");
    }
}

#[test]
fn a_folder_of_models_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    copy(&at("one"));
    copy(&at("org/two"));
    copy(&at("short"));
    std::fs::write(at("short/model.safetensors"), b"short").unwrap();
    std::os::unix::fs::symlink(at("one"), at("same")).unwrap();
    let path = dir.path().to_str().unwrap();
    let mut server = Several::start(&["--models-dir", path, "--pin", "one", "--keep-alive", "10m"]);
    server.expect(
        "4 models, loaded when requests name them: one, org/two, same, short",
        "",
    );
    server.expect("loading one (", ")");
    server.expect(
        "ready: one (gemma3_text), a context of 512 tokens, in ",
        " s",
    );
    assert_eq!(server.ask("one"), (200, "42".to_owned()));
    // Another name of the same folder is the same model in memory.
    assert_eq!(server.ask("same"), (200, "42".to_owned()));
    let states = |two, short| {
        pairs(&[
            ("one", "loaded"),
            ("same", "loaded"),
            ("org/two", two),
            ("short", short),
        ])
    };
    assert_eq!(server.list(), states("unloaded", "unloaded"));
    let (status, error) = server.ask("short");
    assert_eq!(status, 400);
    assert!(
        error.starts_with("model \"short\" cannot be loaded: short/model.safetensors"),
        "{error}"
    );
    assert!(!error.contains(path), "{error}");
    server.expect("loading short (0.0 kB)", "");
    server.expect("short cannot be loaded: ", "");
    assert_eq!(server.ask("org/two"), (200, "42".to_owned()));
    server.expect("loading org/two (", ")");
    server.expect("ready: org/two ", " s");
    assert_eq!(server.list(), states("loaded", "failed"));
    // A model that is deleted answers until it is unloaded.
    std::fs::remove_dir_all(at("org/two")).unwrap();
    assert_eq!(server.ask("org/two"), (200, "42".to_owned()));
    let unloaded = server
        .client
        .post("/v1/models/unload", &json!({"model": "org/two"}));
    assert_eq!(unloaded.status, 200, "{}", unloaded.body);
    server.expect("unloaded org/two: a request asked for it", "");
    let (status, error) = server.ask("org/two");
    assert_eq!(status, 500);
    assert!(
        error.starts_with("model \"org/two\" cannot be loaded: cannot read org/two"),
        "{error}"
    );
    assert!(!error.contains(path), "{error}");
    assert_eq!(server.ask("one"), (200, "42".to_owned()));
}

#[test]
fn models_have_names_and_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    copy(&a);
    copy(&b);
    let [a, b] = [&a, &b].map(|path| path.to_str().unwrap());
    let bytes = ["--models-bytes", "8000000"];
    let models = ["--model", a, "--model", b, "--name", "x", "--name", "y"];
    let mut server = Several::start(&[&models[..], &bytes].concat());
    server.expect("2 models, loaded when requests name them: x, y", "");
    assert_eq!(server.ask("y"), (200, "42".to_owned()));
    assert_eq!(server.ask("x"), (200, "42".to_owned()));
    server.expect("loading y (", ")");
    server.expect("ready: y ", " s");
    server.expect("unloaded y: another model needs its memory", "");
    server.expect("loading x (", ")");
    server.expect("ready: x ", " s");
    // The models go after their time.
    let mut server = Several::start(&[&models[..], &["--keep-alive", "100ms"]].concat());
    assert_eq!(server.ask("y").0, 200);
    let start = Instant::now();
    while server.line() != "unloaded y: no request has come for its time" {
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}

#[test]
fn mistakes_in_flags_of_several_models_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["m/a", "n/a"].map(|name| dir.path().join(name));
    copy(&a);
    copy(&b);
    let [a, b] = [&a, &b].map(|path| path.to_str().unwrap());
    let empty = tempfile::tempdir().unwrap();
    let empty = empty.path().to_str().unwrap();
    let two = ["--model", a, "--model", b];
    let named = [&two[..], &["--name", "x", "--name", "y"]].concat();
    for (args, code, word) in [
        (two.to_vec(), 2, "two models have the name \"a\""),
        (
            [&two[..], &["--name", "x"]].concat(),
            2,
            "name: expected one for each --model, given 1 for 2",
        ),
        (
            [&named[..], &["--pin", "z"]].concat(),
            2,
            "pin: there is no model \"z\"",
        ),
        (
            [&named[..], &["--adapter", "s=dir"]].concat(),
            2,
            "--adapter is for a server with one model",
        ),
        (
            [&named[..], &["--backend", "mlx-lm"]].concat(),
            2,
            "--backend mlx-lm is for a server with one model",
        ),
        (
            [&named[..], &["--pin", "x", "--models-bytes", "9"]].concat(),
            2,
            "the pinned models have ",
        ),
        (
            [&named[..], &["--keep-alive", "soon"]].concat(),
            2,
            "keep_alive must be a time",
        ),
        (vec!["--models-dir", empty], 2, "has no models"),
        (
            vec!["--models-dir", "/nowhere/models"],
            1,
            "cannot read /nowhere/models",
        ),
        (
            vec!["--model", a, "--pin", "a"],
            2,
            "--pin is for several models",
        ),
        (
            vec!["--model", a, "--keep-alive", "5m"],
            2,
            "--keep-alive is for several models",
        ),
    ] {
        let output = command(&[&["--port", "0"], &args[..]].concat())
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(word), "{args:?}: {stderr}");
    }
}

/// A server with one model frees its memory and loads the model again.
#[test]
fn a_server_with_one_model_sleeps() {
    let mut server = Several::start(&["--name", "tiny"]);
    server.expect(
        "ready: tiny (gemma3_text), a context of 512 tokens, up to ",
        " MiB of kept prefixes",
    );
    assert_eq!(server.ask("tiny"), (200, "42".to_owned()));
    let mut said = String::new();
    let mut sleep = server.client.open("POST", "/sleep", &[], "");
    sleep.read_to_string(&mut said).unwrap();
    assert!(said.ends_with("{\"is_sleeping\":true}"), "{said}");
    server.expect("unloaded tiny: the server sleeps", "");
    assert_eq!(server.ask("tiny").0, 503);
    assert_eq!(server.client.post("/wake_up", &json!({})).status, 200);
    server.expect("ready: tiny ", "");
    assert_eq!(server.ask("tiny"), (200, "42".to_owned()));
}
