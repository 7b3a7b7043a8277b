//! A model that is slow, fails or panics: which requests wait, what clients get, and that the
//! server continues.

use std::io::{BufRead, BufReader, Read};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use mlx_infer::serve::ServeOptions;
use serde_json::{Value, json};

use crate::client::{Answer, TestServer};
use crate::scripted::{Fault, Scripted};

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];
const SLOW: Fault = Fault::Slow(Duration::from_millis(60));

/// The routes that stream.
const ROUTES: [&str; 4] = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
];

fn scripted(change: impl FnOnce(&mut ServeOptions)) -> Scripted {
    Scripted::start("qwen3", &[], &["<|im_end|>"], change)
}

/// A request for this many tokens.
fn body(path: &str, tokens: usize, is_stream: bool) -> Value {
    let mut body = json!({"temperature": 0, "ignore_eos": true, "stream": is_stream});
    let (limit, key, value) = match path {
        "/v1/completions" => ("max_tokens", "prompt", json!("x")),
        "/v1/responses" => ("max_output_tokens", "input", json!("x")),
        _ => (
            "max_tokens",
            "messages",
            json!([{"role": "user", "content": "x"}]),
        ),
    };
    (body[limit], body[key]) = (tokens.into(), value);
    body
}

fn open(server: &TestServer, path: &str, body: &Value) -> BufReader<TcpStream> {
    server.open("POST", path, &JSON, &body.to_string())
}

/// The status, and whether the answer has the headers that say when to retry.
fn told(answer: &Answer) -> (u16, bool) {
    let seconds = answer.header("retry-after").map(str::parse::<u64>);
    (
        answer.status,
        seconds.is_some_and(|seconds| (1..=120).contains(&seconds.unwrap())),
    )
}

/// The status with which a route refuses requests when it is overloaded.
fn overloaded(path: &str) -> u16 {
    if path == "/v1/messages" { 529 } else { 503 }
}

/// The headers and the first event are sent before anything is computed, and a silent stream has comments.
#[test]
fn a_stream_begins_at_once_and_shows_that_it_lives() {
    let scripted = scripted(|options| options.ping = Duration::from_millis(10));
    for path in ROUTES {
        scripted.fault(SLOW);
        let answer = scripted.server.post(path, &body(path, 2, true));
        scripted.fault(Fault::None);
        assert_eq!(answer.header("x-accel-buffering"), Some("no"), "{path}");
        assert_eq!(answer.header("cache-control"), Some("no-cache"), "{path}");
        assert_eq!(answer.header("content-encoding"), None, "{path}");
        let events: Vec<&str> = answer.body.split("\n\n").collect();
        assert!(events.contains(&": ping"), "{path}: {}", answer.body);
        let first = match path {
            // This route has no event before the first token.
            "/v1/completions" => ": ",
            "/v1/chat/completions" => "\"role\":\"assistant\"",
            "/v1/responses" => "response.created",
            _ => "message_start",
        };
        assert!(events[0].contains(first), "{path}: {}", answer.body);
        // Node's client parses what follows each `data:`.
        let data = answer
            .body
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        for data in data.filter(|data| *data != "[DONE]") {
            assert!(
                serde_json::from_str::<Value>(data).is_ok(),
                "{path}: {data:?}"
            );
        }
    }
}

#[test]
fn a_client_that_leaves_ends_its_prompt_and_its_place_in_the_queue() {
    let scripted = scripted(|options| {
        options.engine.limits.rows = 1;
        options.engine.limits.prefix_bytes = 0;
    });
    let server = &scripted.server;
    let metric = |name: &str| server.metric(name);
    let running = || metric("vllm:num_requests_running");
    // A prompt of four chunks.
    let ids: Vec<u32> = (0..2000).map(|id| id % 90 + 40).collect();
    for is_stream in [false, true] {
        scripted.fault(SLOW);
        let before = metric("mlx_forwards_total");
        let long =
            json!({"prompt": ids, "max_tokens": 40, "ignore_eos": true, "stream": is_stream});
        let client = open(server, "/v1/completions", &long);
        server.until(|| running() == 1.0);
        let second = open(
            server,
            "/v1/chat/completions",
            &body("/v1/chat/completions", 40, is_stream),
        );
        server.until(|| metric("vllm:num_requests_waiting") == 1.0);
        drop(second);
        server.until(|| metric("vllm:num_requests_waiting") == 0.0);
        drop(client);
        server.until(|| running() == 0.0);
        assert!(metric("mlx_forwards_total") - before < 40.0);
        scripted.fault(Fault::None);
    }
    server.until(|| metric("mlx_disconnects_total") == 4.0);
    assert_eq!(metric("vllm:generation_tokens_total"), 0.0);
    scripted.says(1, &["It is 42."]);
    server.ok("/v1/completions", &body("/v1/completions", 4, false));
}

/// A client that closes only its sending side counts as disconnected too.
#[test]
fn a_half_closed_connection_is_closed() {
    let scripted = scripted(|_| ());
    scripted.fault(SLOW);
    let server = &scripted.server;
    for is_stream in [false, true] {
        let client = open(
            server,
            "/v1/completions",
            &body("/v1/completions", 1000, is_stream),
        );
        server.until(|| server.metric("vllm:num_requests_running") == 1.0);
        client.get_ref().shutdown(Shutdown::Write).unwrap();
        server.until(|| server.metric("vllm:num_requests_running") == 0.0);
    }
}

#[test]
fn without_memory_requests_are_told_to_come_back() {
    let scripted = scripted(|_| ());
    for path in ROUTES {
        scripted.fault(Fault::Memory);
        let answer = scripted.server.post(path, &body(path, 4, false));
        assert_eq!(
            told(&answer),
            (overloaded(path), true),
            "{path}: {}",
            answer.body
        );
        let stream = scripted.server.post(path, &body(path, 4, true));
        assert_eq!(stream.status, 200);
        assert!(stream.body.contains("no memory"), "{path}: {}", stream.body);
        scripted.fault(Fault::None);
        scripted.server.ok(path, &body(path, 4, false));
    }
}

/// Details of the server's errors are in the log under the request's id. A stream ends in the form
/// of its route.
#[test]
fn a_fault_ends_its_request_and_no_other() {
    for fault in [Fault::Fails, Fault::Panics] {
        let scripted = scripted(|_| ());
        for path in ROUTES {
            scripted.fault(fault);
            let answer = scripted.server.post(path, &body(path, 4, false));
            let id = answer.header("x-request-id").unwrap();
            assert_eq!(answer.status, 500, "{path}: {}", answer.body);
            assert!(
                answer.body.contains(id) && !answer.body.contains("secret"),
                "{}",
                answer.body
            );
            let stream = scripted.server.post(path, &body(path, 4, true));
            assert!(
                stream.body.contains("the server has failed"),
                "{path}: {}",
                stream.body
            );
            assert!(!stream.body.contains("secret"), "{path}: {}", stream.body);
            assert_ends_with_an_error(path, &stream);
            scripted.fault(Fault::None);
            assert_eq!(scripted.server.get("/health").status, 200);
            scripted.server.ok(path, &body(path, 4, false));
        }
        assert_eq!(scripted.server.metric("mlx_disconnects_total"), 0.0);
    }
}

/// Checks that a stream that breaks off ends with an error in the form of its route, which clients
/// take as the end.
fn assert_ends_with_an_error(path: &str, stream: &Answer) {
    match path {
        "/v1/responses" => {
            let (name, last) = stream.events().pop().unwrap();
            assert_eq!(name, "response.failed");
            assert_eq!(last["response"]["status"], "failed");
            assert!(last["response"]["error"]["message"].is_string());
        }
        "/v1/messages" => {
            let (name, last) = stream.events().pop().unwrap();
            assert_eq!((name.as_str(), &last["type"]), ("error", &json!("error")));
            assert!(last["error"]["type"].is_string() && last["request_id"].is_string());
        }
        _ => {
            let last = stream.chunks().pop().unwrap();
            assert!(last["error"]["message"].is_string(), "{last}");
        }
    }
}

#[test]
fn a_server_that_ends_says_so_on_each_route() {
    let scripted = scripted(|options| options.drain = Duration::from_millis(300));
    scripted.fault(SLOW);
    let server = &scripted.server;
    let streams = ROUTES.map(|path| open(server, path, &body(path, 1000, true)));
    server.until(|| server.metric("vllm:num_requests_running") == 4.0);
    server.stop();
    server.until(|| server.get("/ready").status == 503);
    for path in ROUTES {
        let answer = server.post(path, &body(path, 4, false));
        assert_eq!(
            told(&answer),
            (overloaded(path), true),
            "{path}: {}",
            answer.body
        );
        assert!(answer.body.contains("shutting down"), "{}", answer.body);
    }
    assert_eq!(server.get("/health").status, 200);
    for (path, mut stream) in ROUTES.into_iter().zip(streams) {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let stream = crate::client::answer(&bytes);
        assert!(
            stream.body.contains("the server is shutting down"),
            "{path}: {}",
            stream.body
        );
        assert_ends_with_an_error(path, &stream);
    }
}

#[test]
fn a_key_has_so_many_requests_at_a_time() {
    let scripted = scripted(|options| {
        options.keys = vec!["one".to_owned(), "two".to_owned()];
        options.key_requests = Some(1);
    });
    scripted.fault(SLOW);
    let server = &scripted.server;
    let of = |key: &'static str| [("x-api-key", key), JSON[0]];
    let long = body("/v1/completions", 1000, true).to_string();
    let mut first = server.open("POST", "/v1/completions", &of("one"), &long);
    let mut line = String::new();
    first.read_line(&mut line).unwrap();
    assert!(line.contains("200"), "{line}");
    for (path, key, status) in [
        ("/v1/completions", "one", 429),
        ("/v1/messages", "one", 429),
        ("/v1/completions", "two", 200),
    ] {
        let answer = server.send("POST", path, &of(key), &body(path, 1, false).to_string());
        assert_eq!(
            told(&answer),
            (status, status == 429),
            "{path}: {}",
            answer.body
        );
        if status == 429 {
            let kind = &answer.json()["error"]["type"];
            assert_eq!(kind, "rate_limit_error");
        }
    }
    drop(first);
    let short = body("/v1/completions", 1, false).to_string();
    let again = || server.send("POST", "/v1/completions", &of("one"), &short);
    server.until(|| again().status == 200);
}
