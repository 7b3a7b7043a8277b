//! The server with the mlx-lm back end, on a fake bridge.

#[path = "../bridge/fake.rs"]
mod bridge;

use std::sync::Arc;

use serde_json::json;

use self::bridge::Fake;
use crate::client::TestServer;

fn server(behaviour: &str) -> (Arc<Fake>, TestServer) {
    let fake = Arc::new(Fake::new(behaviour));
    let bridge = fake.clone();
    let server = TestServer::of(move || bridge.load(), |_| ());
    (fake, server)
}

#[test]
fn it_answers_streams_and_refuses_what_the_bridge_lacks() {
    let (fake, server) = server("good");
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "ignore_eos": true, "logprobs": true});
    let whole = server.post("/v1/chat/completions", &body).json();
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(!text.is_empty(), "{whole}");
    assert_eq!(whole["usage"]["completion_tokens"], 4);
    assert_eq!(
        whole["choices"][0]["logprobs"]["content"][0]["logprob"],
        -0.5
    );

    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let chunks = server.post("/v1/chat/completions", &streamed).chunks();
    let joined: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(joined, text);

    let completion = json!({"prompt": ["a", "b"], "max_tokens": 3, "n": 2});
    let answer = server.post("/v1/completions", &completion).json();
    assert_eq!(answer["choices"].as_array().unwrap().len(), 4, "{answer}");

    for (path, body, expected) in [
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_object"}}),
            "grammar is not supported by the mlx-lm back end; the native one has it",
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "echo": true, "logprobs": 1, "max_tokens": 1}),
            "the mlx-lm back end neither classifies, scores nor embeds texts; the native one does",
        ),
        (
            "/v1/classify",
            json!({"input": "a", "labels": ["b", "c"]}),
            "the mlx-lm back end neither classifies, scores nor embeds texts; the native one does",
        ),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(
            (answer.status, answer.json()["error"]["message"].as_str()),
            (400, Some(expected)),
            "{path}"
        );
    }
    assert!(
        server
            .get("/metrics")
            .body
            .contains("vllm:num_requests_running")
    );
    drop(server);
    assert_eq!(
        fake.log()
            .iter()
            .filter(|line| line.starts_with("process"))
            .count(),
        1
    );
}

#[test]
fn a_process_that_dies_is_an_error_of_its_requests_alone() {
    let (_fake, server) = server("once-dies");
    let body = json!({"prompt": "a", "max_tokens": 3, "ignore_eos": true});
    let answer = server.post("/v1/completions", &body);
    assert_eq!(answer.status, 500, "{}", answer.body);
    // The message of the Python process is only in the log.
    assert!(!answer.body.contains("boom"), "{}", answer.body);
    let answer = server.post("/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
}
