//! Several models: they are loaded when requests name them, and unloaded to make room.

use std::io::{BufRead, Read};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use mlx_core::DType;
use mlx_infer::serve::{KeepAlive, PoolOptions, PooledModel};
use mlx_infer::{Error, ErrorKind, LoadOptions, LoadedModel, default_model_files};
use serde_json::{Value, json};

use crate::client::{Answer, SERVER, TestServer, answer, at_first_event};

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];
const QUESTION: &str = "What is 20 + 22?";

/// What the loader of a model does.
#[derive(Clone, Debug, PartialEq)]
enum Way {
    Loads,
    /// Reports half of the parameters, and computes until it is told something else.
    Waits,
    Fails(ErrorKind, &'static str),
}

/// A loader of the built-in model that a test controls.
#[derive(Clone)]
struct Control(Arc<Mutex<Way>>);

impl Control {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Way::Loads)))
    }

    fn set(&self, way: Way) {
        *self.0.lock().unwrap() = way;
    }

    fn load(&self, progress: &mut dyn FnMut(usize, usize)) -> mlx_infer::Result<LoadedModel> {
        let mut way = self.0.lock().unwrap();
        while *way == Way::Waits {
            drop(way);
            progress(50, 100);
            let ones = mlx_core::ones(&[256, 256], DType::F32)?;
            mlx_core::eval([ones.matmul(&ones)?])?;
            way = self.0.lock().unwrap();
        }
        let way = way.clone();
        if let Way::Fails(kind, message) = way {
            return Err(Error::new(kind, message));
        }
        LoadedModel::load_files(default_model_files(), LoadOptions::default(), progress)
    }
}

fn model(name: &str, control: &Control) -> PooledModel {
    let control = control.clone();
    PooledModel::new([name], move |progress| control.load(progress))
        .with_files(default_model_files())
}

/// The bytes of the built-in model's weights, and of its files.
fn bytes() -> (usize, usize) {
    let weights = LoadedModel::load_default().unwrap().info().weight_bytes;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/default-model");
    let files = std::fs::read_dir(folder).unwrap();
    let files = files.map(|file| file.unwrap().metadata().unwrap().len() as usize);
    (weights, files.sum())
}

/// Room for `n` of these models, and not for one more.
fn room(n: usize) -> PoolOptions {
    let (weights, files) = bytes();
    // Before a model is loaded, its files count.
    let limit = n * weights + 1000;
    assert!(files > 1000 && files < weights);
    PoolOptions {
        bytes: Some(limit),
        ..Default::default()
    }
}

fn pool<const N: usize>(names: [&str; N], options: PoolOptions) -> (TestServer, [Control; N]) {
    let controls = names.map(|_| Control::new());
    let models = names.iter().zip(&controls);
    let models = models.map(|(name, control)| model(name, control)).collect();
    (TestServer::pool(models, options, |_| ()), controls)
}

fn body(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0})
}

fn ask(server: &TestServer, model: &str) {
    let answer = server.ok("/v1/chat/completions", &body(model));
    assert_eq!(answer["choices"][0]["message"]["content"], "42", "{answer}");
    assert_eq!(answer["model"], model);
}

fn entry(server: &TestServer, model: &str) -> Value {
    server.get(&format!("/v1/models/{model}")).json()
}

fn states(server: &TestServer) -> Vec<(String, String)> {
    let list = server.get("/v1/models").json();
    let entries = list["data"].as_array().unwrap().iter();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    entries
        .map(|one| (word(&one["id"]), word(&one["state"])))
        .collect()
}

fn until_states(server: &TestServer, expected: &[(&str, &str)]) {
    let start = Instant::now();
    loop {
        let found = states(server);
        let found: Vec<(&str, &str)> = found.iter().map(|(a, b)| (&**a, &**b)).collect();
        if found == expected {
            return;
        }
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{found:?}, expected {expected:?}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a request of a model on a thread.
fn asking(server: &TestServer, model: &str) -> thread::JoinHandle<Answer> {
    let mut stream = server.open(
        "POST",
        "/v1/chat/completions",
        &JSON,
        &body(model).to_string(),
    );
    thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        answer(&bytes)
    })
}

fn message(answer: &Answer) -> String {
    answer.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn models_are_loaded_on_demand_and_the_least_recently_used_is_unloaded() {
    let (server, _controls) = pool(["a", "b", "c"], room(2));
    until_states(
        &server,
        &[("a", "unloaded"), ("b", "unloaded"), ("c", "unloaded")],
    );
    ask(&server, "a");
    ask(&server, "b");
    until_states(
        &server,
        &[("a", "loaded"), ("b", "loaded"), ("c", "unloaded")],
    );
    ask(&server, "c");
    until_states(
        &server,
        &[("a", "unloaded"), ("b", "loaded"), ("c", "loaded")],
    );
    // The use of a model counts, not when it was loaded.
    ask(&server, "b");
    ask(&server, "a");
    until_states(
        &server,
        &[("a", "loaded"), ("b", "loaded"), ("c", "unloaded")],
    );
    // Without a name the first model answers, on the other routes too.
    let (chat, pong) = (json!([{"role": "user", "content": QUESTION}]), "default");
    let answer = server.ok(
        "/v1/messages",
        &json!({"model": pong, "messages": chat, "max_tokens": 9, "temperature": 0}),
    );
    assert_eq!(
        (&answer["content"][0]["text"], &answer["model"]),
        (&json!("42"), &json!("a"))
    );
    let unknown = server.post("/v1/chat/completions", &body("d"));
    assert_eq!(
        (unknown.status, message(&unknown)),
        (
            404,
            "there is no model \"d\" here; there is a, b, c".to_owned()
        )
    );
    let loaded = entry(&server, "a");
    assert_eq!(loaded["bytes"].as_u64(), Some(bytes().0 as u64));
    assert_eq!(
        (&loaded["max_model_len"], &loaded["pinned"]),
        (&json!(512), &json!(false))
    );
    // Metrics of requests have the name of their model, those of the server have none.
    let metrics = server.get("/metrics").body;
    for line in [
        "mlx_model_loaded{model_name=\"a\",engine=\"0\"} 1",
        "mlx_model_loaded{model_name=\"c\",engine=\"2\"} 0",
        "mlx_model_loads_total{model_name=\"a\",engine=\"0\"} 2",
        "vllm:request_success_total{model_name=\"b\",engine=\"1\",finished_reason=\"stop\"} 2",
        "mlx_responses_total{code=\"404\"} 1",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line}\n{metrics}"
        );
    }
}

#[test]
fn a_model_may_be_called_default() {
    let (server, _controls) = pool(["a", "default"], room(2));
    ask(&server, "default");
    until_states(&server, &[("a", "unloaded"), ("default", "loaded")]);
}

#[test]
fn requests_wait_for_a_model_that_loads_and_no_others_do() {
    let (server, [_, slow]) = pool(["a", "slow"], PoolOptions::default());
    ask(&server, "a");
    slow.set(Way::Waits);
    let waiting: Vec<_> = (0..3).map(|_| asking(&server, "slow")).collect();
    server.until(|| entry(&server, "slow")["requests"] == 3);
    server.until(|| entry(&server, "slow")["progress"] == 0.5);
    assert_eq!(entry(&server, "slow")["state"], "loading");
    // The other model answers while the loader computes. A client that leaves no longer waits.
    for _ in 0..5 {
        ask(&server, "a");
    }
    drop(server.open(
        "POST",
        "/v1/chat/completions",
        &JSON,
        &body("slow").to_string(),
    ));
    server.until(|| entry(&server, "slow")["requests"] == 3);
    assert!(waiting.iter().all(|asking| !asking.is_finished()));
    slow.set(Way::Loads);
    for asking in waiting {
        let answer = asking.join().unwrap();
        assert_eq!(
            answer.json()["choices"][0]["message"]["content"],
            "42",
            "{}",
            answer.body
        );
    }
    assert_eq!(
        server
            .get("/metrics")
            .body
            .matches("mlx_model_loads_total{model_name=\"slow\",engine=\"1\"} 1")
            .count(),
        1
    );
}

/// A stream whose events are not read holds its model.
#[test]
fn a_model_with_running_requests_is_not_unloaded() {
    let (server, _controls) = pool(["a", "b"], room(1));
    let long = json!({"model": "a", "prompt": "The red fox", "max_tokens": 500, "ignore_eos": true, "stream": true, "n": 6, "logprobs": 5});
    let stream = at_first_event(server.open("POST", "/v1/completions", &JSON, &long.to_string()));
    let waiting = asking(&server, "b");
    server.until(|| entry(&server, "b")["requests"] == 1);
    // The model in use takes further requests.
    ask(&server, "a");
    until_states(&server, &[("a", "loaded"), ("b", "unloaded")]);
    let refused = server.post("/v1/models/unload", &json!({"model": "a"}));
    assert_eq!(
        (refused.status, message(&refused)),
        (409, "model \"a\" has 1 requests in progress".to_owned())
    );
    assert!(!waiting.is_finished());
    let mut rest = String::new();
    let mut stream = stream;
    stream.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"),
        "{rest}"
    );
    let answer = waiting.join().unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    until_states(&server, &[("a", "unloaded"), ("b", "loaded")]);
}

#[test]
fn a_request_without_room_is_told_what_takes_it() {
    let options = PoolOptions {
        patience: Duration::from_millis(200),
        ..room(1)
    };
    let limit = options.bytes.unwrap();
    let (server, _controls) = pool(["a", "b"], options);
    let long = json!({"model": "a", "prompt": "The red fox", "max_tokens": 500, "ignore_eos": true, "stream": true, "n": 6, "logprobs": 5});
    let stream = at_first_event(server.open("POST", "/v1/completions", &JSON, &long.to_string()));
    let needed = entry(&server, "b")["bytes"].clone();
    let refused = server.post("/v1/chat/completions", &body("b"));
    let told = format!(
        "b needs {needed} bytes, at most {limit} may be in memory, and a have requests in progress"
    );
    assert_eq!((refused.status, message(&refused)), (503, told));
    assert!(refused.header("retry-after").is_some());
    // Without the stream there is room.
    drop(stream);
    server.until(|| entry(&server, "a")["requests"] == 0);
    ask(&server, "b");
}

/// A model that is larger in memory than its files is refused after it was loaded once.
#[test]
fn a_model_larger_than_the_limit_is_refused_with_its_bytes() {
    let weights = bytes().0;
    let options = PoolOptions {
        bytes: Some(weights - 1),
        ..Default::default()
    };
    let (server, _controls) = pool(["a", "b"], options);
    for text in ["model \"a\" cannot be loaded: it has", "model \"a\" has"] {
        let refused = server.post("/v1/chat/completions", &body("a"));
        let told = format!(
            "{text} {weights} bytes of weights, and at most {} may be in memory",
            weights - 1
        );
        assert_eq!((refused.status, message(&refused)), (400, told));
    }
}

#[test]
fn models_go_after_their_time() {
    let options = PoolOptions {
        keep_alive: KeepAlive::For(Duration::from_millis(100)),
        ..Default::default()
    };
    let (server, _controls) = pool(["a", "b"], options);
    ask(&server, "a");
    until_states(&server, &[("a", "unloaded"), ("b", "unloaded")]);
    // A request's time counts until another one gives its own.
    let kept = |model: &str, time: Value| {
        let mut body = body(model);
        body["keep_alive"] = time;
        server.post("/v1/chat/completions", &body)
    };
    assert_eq!(kept("a", "10m".into()).status, 200);
    ask(&server, "a");
    let left = entry(&server, "a")["unloads_in"].as_f64().unwrap();
    assert!((590.0..=600.0).contains(&left), "{left}");
    assert_eq!(kept("b", json!(-1)).status, 200);
    assert_eq!(entry(&server, "b")["unloads_in"], Value::Null);
    thread::sleep(Duration::from_millis(300));
    until_states(&server, &[("a", "loaded"), ("b", "loaded")]);
    assert_eq!(kept("a", json!(0)).status, 200);
    until_states(&server, &[("a", "unloaded"), ("b", "loaded")]);
    let refused = kept("b", "soon".into());
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("keep_alive"))
    );
    // A server with one model does not know the key.
    let mut body = body("tiny");
    body["keep_alive"] = 0.into();
    let answer = SERVER.post("/v1/chat/completions", &body);
    assert_eq!(
        (answer.status, answer.header("x-ignored-params")),
        (200, Some("keep_alive"))
    );
}

#[test]
fn pinned_models_stay_and_leave_less_room() {
    let controls = [Control::new(), Control::new(), Control::new()];
    let mut models: Vec<PooledModel> = ["a", "b", "c"]
        .iter()
        .zip(&controls)
        .map(|(name, control)| model(name, control))
        .collect();
    models[1].is_pinned = true;
    let options = room(2);
    let server = TestServer::pool(models, options.clone(), |_| ());
    until_states(
        &server,
        &[("a", "unloaded"), ("b", "loaded"), ("c", "unloaded")],
    );
    ask(&server, "a");
    ask(&server, "c");
    until_states(
        &server,
        &[("a", "unloaded"), ("b", "loaded"), ("c", "loaded")],
    );
    let refused = server.post("/v1/models/unload", &json!({"model": "b"}));
    assert_eq!(
        (refused.status, message(&refused)),
        (
            400,
            "model \"b\" is pinned; POST /sleep frees its memory".to_owned()
        )
    );
    // Without room beside the pinned model the bytes are named.
    let mut models = vec![model("a", &controls[0]), model("b", &controls[1])];
    models[1].is_pinned = true;
    let server = TestServer::pool(models, room(1), |_| ());
    let refused = server.post("/v1/chat/completions", &body("a"));
    let (weights, files) = (bytes().0, entry(&server, "a")["bytes"].clone());
    let limit = room(1).bytes.unwrap();
    assert!(files.as_u64().unwrap() > 1_000_000);
    let expected = format!(
        "model \"a\" has {files} bytes of weights, and at most {limit} may be in memory, of which pinned models take {weights}"
    );
    assert_eq!((refused.status, message(&refused)), (400, expected));
    ask(&server, "b");
}

#[test]
fn models_are_loaded_and_unloaded_by_requests() {
    let (server, [a, _]) = pool(["a", "b"], PoolOptions::default());
    let before = mlx_core::memory::active().unwrap();
    let loaded = server.ok(
        "/v1/models/load",
        &json!({"model": "a", "keep_alive": "1h"}),
    );
    assert_eq!(
        (&loaded["success"], &loaded["state"], &loaded["id"]),
        (&json!(true), &json!("loaded"), &json!("a"))
    );
    assert!(loaded["unloads_in"].as_f64().unwrap() > 3000.0, "{loaded}");
    // llama.cpp's route is the same.
    assert_eq!(
        server.ok("/models/load", &json!({"model": "a"}))["state"],
        "loaded"
    );
    ask(&server, "a");
    let weights = bytes().0;
    assert!(mlx_core::memory::active().unwrap() >= before + weights);
    let unloaded = server.ok("/v1/models/unload", &json!({"model": "a"}));
    assert_eq!(
        (&unloaded["success"], &unloaded["state"]),
        (&json!(true), &json!("unloaded"))
    );
    let after = mlx_core::memory::active().unwrap();
    assert!(after < before + weights / 2, "{before} {after} {weights}");
    assert_eq!(
        server.ok("/v1/models/unload", &json!({"model": "b"}))["state"],
        "unloaded"
    );
    for (path, body, status, word) in [
        (
            "/v1/models/load",
            json!({"model": "x"}),
            404,
            "there is no model",
        ),
        ("/v1/models/load", json!({}), 400, "model is missing"),
        ("/v1/models/unload", json!({"model": 3}), 400, "model"),
    ] {
        let refused = server.post(path, &body);
        assert_eq!(refused.status, status, "{path}: {}", refused.body);
        assert!(
            message(&refused).starts_with(word),
            "{path}: {}",
            refused.body
        );
    }
    a.set(Way::Fails(ErrorKind::Format, "config.json: not like this"));
    let failed = server.post("/v1/models/load", &json!({"model": "a"}));
    assert_eq!(
        (failed.status, message(&failed)),
        (
            400,
            "model \"a\" cannot be loaded: config.json: not like this".to_owned()
        )
    );
    // The only model of a server stays.
    let refused = SERVER.post("/v1/models/unload", &json!({"model": "tiny"}));
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert_eq!(
        SERVER.ok("/v1/models/load", &json!({"model": "tiny"}))["id"],
        "tiny"
    );
    assert!(SERVER.get("/v1/models/tiny").json().get("state").is_none());
}

#[test]
fn a_model_that_cannot_be_loaded_fails_its_own_requests() {
    let (server, [_, bad]) = pool(["a", "bad"], room(1));
    for (kind, text, status, said) in [
        (
            ErrorKind::Unsupported,
            "model_type \"x\" is not supported",
            400,
            "model \"bad\" cannot be loaded: model_type \"x\" is not supported",
        ),
        (
            ErrorKind::Memory,
            "no memory for 7 bytes",
            503,
            "model \"bad\" cannot be loaded: no memory for 7 bytes",
        ),
        (
            ErrorKind::Io,
            "the disk does not answer",
            500,
            "model \"bad\" cannot be loaded: the disk does not answer",
        ),
    ] {
        ask(&server, "a");
        bad.set(Way::Waits);
        let waiting: Vec<_> = (0..3).map(|_| asking(&server, "bad")).collect();
        server.until(|| {
            entry(&server, "bad")["requests"] == 3 && entry(&server, "bad")["state"] == "loading"
        });
        bad.set(Way::Fails(kind, text));
        for asking in waiting {
            let answer = asking.join().unwrap();
            assert_eq!(answer.status, status, "{}", answer.body);
            assert!(message(&answer).starts_with(said), "{}", answer.body);
        }
        assert_eq!(entry(&server, "bad")["state"], "failed");
        assert!(entry(&server, "bad")["error"].is_string());
        ask(&server, "a");
    }
    // The next request tries again.
    bad.set(Way::Loads);
    ask(&server, "bad");
    assert_eq!(entry(&server, "bad")["error"], Value::Null);
}

#[test]
fn a_sleeping_server_has_no_model_in_memory() {
    let weights = bytes().0;
    let control = Control::new();
    let one = || {
        let control = control.clone();
        PooledModel::new(["a"], move |progress| control.load(progress))
    };
    let single = PoolOptions {
        on_demand: false,
        ..Default::default()
    };
    let controls = [Control::new(), Control::new()];
    let mut two = vec![model("a", &controls[0]), model("b", &controls[1])];
    two[1].is_pinned = true;
    for (models, options, loaded) in [(vec![one()], single, 1), (two, PoolOptions::default(), 2)] {
        let server = TestServer::pool(models, options, |_| ());
        ask(&server, "a");
        let before = mlx_core::memory::active().unwrap();
        assert_eq!(
            server.get("/is_sleeping").json(),
            json!({"is_sleeping": false})
        );
        // A running request ends first.
        let long = json!({"model": "a", "prompt": "The red fox", "max_tokens": 300, "ignore_eos": true, "stream": true});
        let mut stream =
            at_first_event(server.open("POST", "/v1/completions", &JSON, &long.to_string()));
        let mut sleep = server.open("POST", "/sleep?level=1", &[], "");
        server.until(|| server.get("/is_sleeping").json()["is_sleeping"] == true);
        let refused = server.post("/v1/chat/completions", &body("a"));
        assert_eq!(refused.status, 503, "{}", refused.body);
        assert!(message(&refused).contains("asleep"), "{}", refused.body);
        assert_eq!(
            (server.get("/ready").status, server.get("/health").status),
            (503, 200)
        );
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("\"finish_reason\":\"length\""), "{rest}");
        let mut line = String::new();
        sleep.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200"), "{line}");
        let after = mlx_core::memory::active().unwrap();
        assert!(
            after + loaded * weights * 9 / 10 < before,
            "{before} {after} {weights}"
        );
        assert_eq!(server.post("/wake_up", &json!({})).status, 200);
        assert_eq!(server.get("/ready").status, 200);
        ask(&server, "a");
        let awake = mlx_core::memory::active().unwrap();
        assert!(awake + weights / 2 > before, "{before} {awake}");
        assert_eq!(server.post("/wake_up", &json!({})).status, 200);
    }
    // A model that is loaded by a function of one call cannot come back.
    let refused = SERVER.post("/sleep", &json!({}));
    assert_eq!(refused.status, 501, "{}", refused.body);
    assert_eq!(SERVER.get("/ready").status, 200);
}

#[test]
fn no_keep_alive_unloads_the_only_model() {
    let control = Control::new();
    let only = PooledModel::new(["a"], move |progress| control.load(progress));
    let single = PoolOptions {
        on_demand: false,
        ..Default::default()
    };
    let server = TestServer::pool(vec![only], single, |_| ());
    for (path, key) in [("/v1/models/load", "x"), ("/api/generate", "prompt")] {
        let body = json!({"model": "a", "keep_alive": 0.001, key: "x", "stream": false});
        assert_eq!(server.post(path, &body).status, 200);
        thread::sleep(Duration::from_millis(300));
        ask(&server, "a");
    }
}

#[test]
fn a_wake_that_fails_is_told_and_can_be_tried_again() {
    let control = Control::new();
    let of_model = control.clone();
    let model = PooledModel::new(["a"], move |progress| of_model.load(progress));
    let single = PoolOptions {
        on_demand: false,
        ..Default::default()
    };
    let server = TestServer::pool(vec![model], single, |_| ());
    assert_eq!(server.post("/sleep", &json!({})).status, 200);
    control.set(Way::Fails(ErrorKind::Memory, "no memory for 7 bytes"));
    let told = "model \"a\" cannot be loaded: no memory for 7 bytes";
    for path in ["/wake_up", "/v1/chat/completions"] {
        let failed = server.post(path, &body("a"));
        assert_eq!(
            (failed.status, message(&failed)),
            (503, told.to_owned()),
            "{path}"
        );
    }
    control.set(Way::Loads);
    assert_eq!(server.post("/wake_up", &json!({})).status, 200);
    ask(&server, "a");
}

#[test]
fn ollamas_lists_load_no_model() {
    let (server, _controls) = pool(["a", "b"], PoolOptions::default());
    let names = |path: &str| -> Vec<String> {
        let list = server.get(path).json();
        let models = list["models"].as_array().unwrap().iter();
        models
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("/api/tags"), ["a", "b"]);
    let shown = server.ok("/api/show", &json!({"model": "b"}));
    assert_eq!(shown["model_info"]["gemma3_text.context_length"], 512);
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert!(names("/api/ps").is_empty());
    until_states(&server, &[("a", "unloaded"), ("b", "unloaded")]);
    let question = json!({"model": "b:latest", "prompt": QUESTION, "options": {"temperature": 0}, "stream": false, "keep_alive": "10m"});
    assert_eq!(server.ok("/api/generate", &question)["response"], "42");
    let running = server.get("/api/ps").json();
    assert_eq!(names("/api/ps"), ["b"]);
    let until = running["models"][0]["expires_at"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(until.starts_with("20") && until.ends_with('Z'), "{until}");
    // Without a text the model is only loaded, or unloaded.
    let loaded = server.ok("/api/chat", &json!({"model": "a", "messages": []}));
    assert_eq!(loaded["done_reason"], "load");
    assert_eq!(names("/api/ps"), ["a", "b"]);
    for (path, name) in [("/api/generate", "a"), ("/api/chat", "b")] {
        let unloaded = server.ok(path, &json!({"model": name, "keep_alive": 0}));
        assert_eq!(unloaded["done_reason"], "unload");
    }
    until_states(&server, &[("a", "unloaded"), ("b", "unloaded")]);
}

/// Requests of a pool with little room, in any order: each is answered, and never do more models
/// than fit have requests.
#[test]
fn a_pool_under_load_answers_each_request() {
    let (server, _controls) = pool(["a", "b", "c"], room(1));
    let threads: Vec<_> = (0..18)
        .map(|at| asking(&server, ["a", "b", "c"][(at * 7 + at / 5) % 3]))
        .collect();
    for thread in threads {
        let answer = thread.join().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "42");
    }
    let loaded = states(&server)
        .into_iter()
        .filter(|(_, state)| state == "loaded");
    assert_eq!(loaded.count(), 1);
}
