//! Answers that are generated in the background, and read by several clients.

use std::io::Read;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Answer, SERVER, TestServer, at_first_event};
use crate::scripted::{Fault, Scripted};

const JSON: (&str, &str) = ("Content-Type", "application/json");

/// The numbers of an answer's events, and their data.
fn numbered(answer: &Answer) -> Vec<(usize, String)> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let events = answer.body.split("\n\n");
    let events = events.filter(|event| !event.is_empty() && !event.starts_with(':'));
    let event = |event: &str| {
        let line = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
        let number = line("id: ").unwrap().parse().unwrap();
        (number, line("data: ").unwrap().to_owned())
    };
    events.map(event).collect()
}

/// The text of chunks.
fn text(events: &[(usize, String)]) -> String {
    let said = |(_, data): &(usize, String)| {
        let chunk: Value = serde_json::from_str(data).unwrap_or_default();
        let said = chunk["choices"][0]["delta"]["content"].as_str();
        said.unwrap_or_default().to_owned()
    };
    events.iter().map(said).collect()
}

/// A server whose answer has many slow steps, and a conversation for it.
fn slow() -> (Scripted, Value) {
    let slow = Scripted::start("qwen3", &[], &["<|im_end|>"], |_| ());
    let asked = json!({"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 1});
    let prompt = slow.server.ok("/v1/chat/completions", &asked)["usage"]["prompt_tokens"].clone();
    let more = " and so on".repeat(30);
    slow.says(prompt.as_u64().unwrap() as usize, &["It is 42", &more, "."]);
    slow.fault(Fault::Slow(Duration::from_millis(10)));
    let asked = json!({
        "messages": [{"role": "user", "content": "Why?"}], "temperature": 0,
        "stream": true, "background": true,
    });
    (slow, asked)
}

#[test]
fn an_answer_goes_on_after_its_client_has_left() {
    let (slow, asked) = slow();
    let server = &slow.server;
    let stream = server.open("POST", "/v1/chat/completions", &[JSON], &asked.to_string());
    // The first client leaves, and another one asks the same and stays.
    drop(at_first_event(stream));
    let whole = server.post("/v1/chat/completions", &asked);
    let whole = numbered(&whole);
    let numbers: Vec<usize> = whole.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..whole.len()).collect::<Vec<_>>());
    assert_eq!(whole.last().unwrap().1, "[DONE]");
    assert!(text(&whole).ends_with(" and so on."));
    let first: Value = serde_json::from_str(&whole[0].1).unwrap();
    let path = format!("/v1/chat/completions/{}", first["id"].as_str().unwrap());
    // After the end, all events and the last of them.
    let again = numbered(&server.get(&format!("{path}?stream=true")));
    assert_eq!(again, whole);
    let rest = numbered(&server.get(&format!("{path}?stream=true&starting_after=4")));
    assert_eq!(rest, whole[5..]);
    let last = [("Last-Event-ID", "4")];
    let rest = numbered(&server.send("GET", &format!("{path}?stream=true"), &last, ""));
    assert_eq!(rest, whole[5..]);
    assert_eq!(
        numbered(&server.get(&format!("{path}?stream=true&starting_after=99999"))),
        []
    );
    server.until(|| server.metric("vllm:num_requests_running") == 0.0);
    // Both answers ran to their end.
    assert_eq!(server.metric("vllm:request_success_total"), 3.0);
    for (method, path, status) in [
        ("GET", path.clone(), 400),
        ("GET", format!("{path}?stream=true&starting_after=x"), 400),
        ("DELETE", path.clone(), 200),
        ("GET", format!("{path}?stream=true"), 404),
        ("DELETE", path, 404),
    ] {
        assert_eq!(
            server.send(method, &path, &[], "").status,
            status,
            "{method} {path}"
        );
    }
}

#[test]
fn a_client_reads_on_where_another_one_has_stopped() {
    let (slow, asked) = slow();
    let server = &slow.server;
    let stream = server.open("POST", "/v1/chat/completions", &[JSON], &asked.to_string());
    let mut stream = at_first_event(stream);
    let mut start = Vec::new();
    while !String::from_utf8_lossy(&start).contains("id: 5\n") {
        let mut byte = [0; 1];
        stream.read_exact(&mut byte).unwrap();
        start.push(byte[0]);
    }
    let start = String::from_utf8(start).unwrap();
    let id = start
        .split("\"id\":\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    drop(stream);
    let path = format!("/v1/chat/completions/{id}?stream=true");
    let rest = numbered(&server.get(&format!("{path}&starting_after=2")));
    assert_eq!(rest[0].0, 3);
    assert_eq!(rest.last().unwrap().1, "[DONE]");
    let whole = numbered(&server.get(&path));
    assert_eq!(rest, whole[3..]);
    assert_eq!(
        text(&whole),
        format!("It is 42{}.", " and so on".repeat(30))
    );
}

#[test]
fn deleting_an_answer_ends_it() {
    let (slow, asked) = slow();
    let server = &slow.server;
    let stream = server.open("POST", "/v1/chat/completions", &[JSON], &asked.to_string());
    let mut stream = at_first_event(stream);
    let mut start = [0; 200];
    stream.read_exact(&mut start).unwrap();
    let start = String::from_utf8_lossy(&start).into_owned();
    let id = start
        .split("\"id\":\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    server.until(|| server.metric("vllm:num_requests_running") == 1.0);
    let deleted = server.send("DELETE", &format!("/v1/chat/completions/{id}"), &[], "");
    assert_eq!(
        deleted.json(),
        json!({"id": id, "object": "chat.completion.deleted", "deleted": true})
    );
    server.until(|| server.metric("vllm:num_requests_running") == 0.0);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("finish_reason\":\"stop"), "{rest}");
}

#[test]
fn a_response_in_the_background_is_read_and_cancelled() {
    let asked = json!({"input": "What is 20 + 22?", "temperature": 0, "background": true});
    let begun = SERVER.ok("/v1/responses", &asked);
    assert_eq!(
        (&begun["status"], &begun["background"]),
        (&json!("in_progress"), &json!(true))
    );
    let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
    SERVER.until(|| SERVER.get(&path).json()["status"] == "completed");
    let done = SERVER.get(&path).json();
    assert_eq!(done["id"], begun["id"]);
    assert_eq!(done["output"][0]["content"][0]["text"], "42");
    let events = numbered(&SERVER.get(&format!("{path}?stream=true&starting_after=1")));
    for (number, data) in &events {
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["sequence_number"], *number);
    }
    assert_eq!(events[0].0, 2);
    assert!(
        events
            .last()
            .unwrap()
            .1
            .contains("\"type\":\"response.completed\"")
    );
    // One that has ended stays as it is.
    let cancelled = SERVER.send("POST", &format!("{path}/cancel"), &[], "");
    assert_eq!(cancelled.json(), done);
    assert_eq!(
        SERVER.send("DELETE", &path, &[], "").json()["deleted"],
        true
    );
    assert_eq!(SERVER.get(&path).status, 404);

    let (slow, _) = slow();
    let begun = slow.server.ok(
        "/v1/responses",
        &json!({"input": "Why?", "background": true}),
    );
    let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
    let cancelled = slow
        .server
        .send("POST", &format!("{path}/cancel"), &[], "")
        .json();
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(slow.server.get(&path).json(), cancelled);
    let server = &slow.server;
    server.until(|| server.metric("vllm:num_requests_running") == 0.0);
}

#[test]
fn an_answer_in_the_background_belongs_to_its_key() {
    let server = TestServer::start(|options| {
        options.keys = vec!["ada".to_owned(), "bob".to_owned()];
        options.key_requests = Some(1);
    });
    let with = |method: &str, path: &str, key: &str, body: &str| {
        let key = format!("Bearer {key}");
        let headers = [JSON, ("Authorization", &key)];
        server.send(method, path, &headers, body)
    };
    let asked = json!({"input": "What is 20 + 22?", "temperature": 0, "background": true});
    let begun = with("POST", "/v1/responses", "ada", &asked.to_string()).json();
    let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
    assert_eq!(with("GET", &path, "ada", "").status, 200);
    assert_eq!(with("GET", &path, "bob", "").status, 404);
    assert_eq!(with("GET", &path, "eve", "").status, 401);
    assert_eq!(with("DELETE", &path, "bob", "").status, 404);
    assert_eq!(
        with("POST", &format!("{path}/cancel"), "bob", "").status,
        404
    );
    assert_eq!(
        with("POST", &format!("{path}/cancel"), "ada", "").status,
        200
    );
    let chat = |stream: bool| {
        let body = json!({
            "messages": [{"role": "user", "content": "x"}], "background": true, "stream": stream,
            "max_tokens": 4,
        });
        with("POST", "/v1/chat/completions", "ada", &body.to_string())
    };
    let refused = chat(false).json();
    assert_eq!(refused["error"]["message"], "background needs stream: true");
    // A long one takes the only place of its key until it is deleted.
    let long = json!({"input": "x", "background": true, "ignore_eos": true});
    let begun = with("POST", "/v1/responses", "ada", &long.to_string()).json();
    let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
    assert_eq!(chat(true).status, 429);
    assert_eq!(with("DELETE", &path, "ada", "").status, 200);
    assert_eq!(chat(true).status, 200);
}
