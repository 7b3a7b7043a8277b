//! Clients that disconnect, queues that are full, servers that end.

use std::io::{BufReader, Read};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{SERVER, TestServer, at_first_event};

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

/// A request that runs until the model's positions end.
fn long() -> Value {
    json!({"prompt": "The red fox", "max_tokens": 500, "ignore_eos": true, "stream": true})
}

/// Opens a stream and reads it to its first event.
fn begun(server: &TestServer, body: &Value) -> BufReader<TcpStream> {
    at_first_event(server.open("POST", "/v1/completions", &JSON, &body.to_string()))
}

#[test]
fn a_client_that_leaves_frees_its_row() {
    let server = TestServer::start(|_| ());
    let mut not_streamed = long();
    not_streamed["stream"] = false.into();
    let streams: Vec<_> = (0..3).map(|_| begun(&server, &long())).collect();
    let waiting = server.open("POST", "/v1/completions", &JSON, &not_streamed.to_string());
    drop(streams);
    drop(waiting);
    server.until(|| server.metric("vllm:num_requests_running") == 0.0);
    server.until(|| server.metric("mlx_disconnects_total") >= 1.0);
    // The engine still works.
    let body = json!({"prompt": "The red fox", "max_tokens": 8, "temperature": 0});
    let here = server.ok("/v1/completions", &body)["choices"][0]["text"].clone();
    assert_eq!(
        here,
        SERVER.ok("/v1/completions", &body)["choices"][0]["text"]
    );
}

#[test]
fn a_full_queue_is_told_with_a_time() {
    let server = TestServer::start(|options| options.engine.max_requests = 2);
    let mut long = long();
    // Two rows whose events are not read pause, and keep their places.
    long["n"] = 2.into();
    let stream = begun(&server, &long);
    for (path, status) in [("/v1/completions", 503), ("/v1/messages", 529)] {
        let body = json!({
            "prompt": "x", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}],
        });
        let mut answer = server.post(path, &body);
        // The rows may already have ended.
        if answer.status == 200 {
            continue;
        }
        assert_eq!(answer.status, status, "{}", answer.body);
        let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&seconds));
        answer.body.clear();
    }
    drop(stream);
    server.until(|| {
        server
            .post("/v1/completions", &json!({"prompt": "x"}))
            .status
            == 200
    });
}

#[test]
fn a_server_that_ends_finishes_what_is_under_way() {
    let server = TestServer::start(|_| ());
    let mut body = long();
    body["stream_options"] = json!({"include_usage": true});
    let mut stream = begun(&server, &body);
    server.stop();
    server.until(|| match TcpStream::connect(server.address) {
        Ok(_) => server.get("/ready").status == 503,
        // The stream has already ended.
        Err(_) => true,
    });
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"),
        "{rest}"
    );
    server.join().unwrap();
}

#[test]
fn a_server_whose_time_is_over_ends_streams_with_an_error() {
    let server = TestServer::start(|options| options.drain = Duration::ZERO);
    let mut stream = begun(&server, &long());
    server.stop();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    let is_told = rest.contains("the server is shutting down") && rest.contains("[DONE]");
    let has_finished = rest.contains("\"finish_reason\":\"length\"");
    assert!(is_told || has_finished, "{rest}");
    server.join().unwrap();
}

#[test]
fn until_the_model_is_there_requests_are_refused() {
    use mlx_infer::serve::{ServeOptions, Server};
    let options = ServeOptions {
        address: "127.0.0.1:0".parse().unwrap(),
        log: false,
        ..Default::default()
    };
    let server = Server::bind(options).unwrap();
    let (address, stopper) = (server.address(), server.stopper());
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        server.run(move || {
            let _ = wait.recv();
            Err::<mlx_infer::LoadedModel, _>(mlx_infer::Error::new(
                mlx_infer::ErrorKind::Missing,
                "there is no model",
            ))
        })
    });
    let status = |path: &str| {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .into();
        agent
            .get(format!("http://{address}{path}"))
            .call()
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!((status("/health"), status("/ready")), (200, 503));
    go.send(()).unwrap();
    // A load that fails ends the server with its error.
    let error = thread.join().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "there is no model");
    drop(stopper);
}

#[test]
fn counters_tell_what_was_done() {
    let server = TestServer::start(|_| ());
    let body = json!({"prompt": "The red fox", "max_tokens": 8, "ignore_eos": true});
    server.ok("/v1/completions", &body);
    let metric = |name: &str| server.metric(name);
    assert_eq!(metric("vllm:generation_tokens_total"), 8.0);
    assert_eq!(metric("vllm:prompt_tokens_total"), 4.0);
    assert_eq!(metric("vllm:request_success_total"), 1.0);
    assert_eq!(metric("vllm:time_to_first_token_seconds_count"), 1.0);
    assert_eq!(metric("vllm:inter_token_latency_seconds_count"), 7.0);
    assert!(metric("vllm:e2e_request_latency_seconds_sum") > 0.0);
    assert!(metric("mlx_memory_active_bytes") > 0.0);
    // A row that ends after its only call is not counted as aborted.
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": false}}});
    let body = json!({
        "messages": [{"role": "user", "content": "x"}], "tools": [tool], "tool_choice": "required",
        "parallel_tool_calls": false, "max_tokens": 200,
    });
    server.ok("/v1/chat/completions", &body);
    let text = server.get("/metrics").body;
    assert!(text.contains("finished_reason=\"abort\"} 0"), "{text}");
}
