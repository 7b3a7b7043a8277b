//! Slow clients: heads and bodies that do not end, answers that are not read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::client::{SERVER, TestServer};

const LIMIT: Duration = Duration::from_millis(400);

fn server() -> TestServer {
    TestServer::start(|options| options.client_timeout = LIMIT)
}

/// The bytes that the server sends until it closes the connection.
fn sent(server: &TestServer, text: &str) -> String {
    let mut stream = TcpStream::connect(server.address).unwrap();
    let wait = Some(Duration::from_secs(60));
    stream.set_read_timeout(wait).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    all
}

#[test]
fn heads_and_bodies_that_do_not_end_close_their_connection() {
    let server = server();
    // No byte, a part of a head, and a request whose connection then stays idle.
    for part in [
        "",
        "POST /v1/comp",
        "GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: ",
    ] {
        assert_eq!(sent(&server, part), "", "{part:?}");
    }
    let idle = sent(&server, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(idle.starts_with("HTTP/1.1 200"), "{idle}");
    let head = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n";
    for path in ["/v1/completions", "/v1/messages"] {
        let cut = sent(
            &server,
            &format!("POST {path} HTTP/1.1\r\n{head}{{\"prompt\": "),
        );
        assert!(cut.starts_with("HTTP/1.1 408"), "{cut}");
        assert!(cut.contains("the body did not come within 0.4 s"), "{cut}");
    }
    // A body that is too large is refused by its announced length, before it is sent.
    let large = head.replace("Length: 100", "Length: 9000000");
    let refused = sent(
        &server,
        &format!("POST /v1/completions HTTP/1.1\r\n{large}"),
    );
    assert!(refused.starts_with("HTTP/1.1 413"), "{refused}");
    // Other clients are served.
    server.ok("/v1/completions", &json!({"prompt": "x", "max_tokens": 4}));
}

#[test]
fn an_answer_that_is_not_read_frees_its_rows() {
    let server = server();
    // An answer that is larger than the buffers of a connection.
    let body = json!({
        "messages": [{"role": "user", "content": "x"}], "max_tokens": 480, "ignore_eos": true,
        "stream": true, "n": 16, "logprobs": true, "top_logprobs": 20,
    });
    let headers = [("Content-Type", "application/json")];
    let stream = server.open("POST", "/v1/chat/completions", &headers, &body.to_string());
    server.until(|| server.metric("vllm:num_requests_running") > 0.0);
    server.until(|| server.metric("vllm:num_requests_running") == 0.0);
    server.until(|| server.metric("mlx_disconnects_total") == 1.0);
    drop(stream);
}

/// The time of a whole answer has no limit.
#[test]
fn an_answer_that_is_read_goes_on() {
    let server = TestServer::start(|options| options.client_timeout = Duration::from_millis(20));
    let body = json!({
        "prompt": "The red fox", "max_tokens": 400, "ignore_eos": true, "temperature": 0, "n": 4,
    });
    let streamed = |server: &TestServer| {
        let mut body = body.clone();
        body["stream"] = true.into();
        let answer = server.post("/v1/completions", &body);
        let chunks = answer.chunks();
        let texts = chunks
            .iter()
            .filter(|chunk| chunk["choices"][0]["index"] == 0);
        let texts = texts.map(|chunk| chunk["choices"][0]["text"].as_str().unwrap().to_owned());
        texts.collect::<String>()
    };
    assert_eq!(streamed(&server), streamed(&SERVER));
    let whole = |server: &TestServer| server.ok("/v1/completions", &body)["choices"].clone();
    assert_eq!(whole(&server), whole(&SERVER));
}
