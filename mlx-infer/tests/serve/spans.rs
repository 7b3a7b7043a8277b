//! Traces of requests, as a collector gets them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::TestServer;

/// A collector: its address, and the bodies that it gets.
fn collector() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (send, bodies) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut length, mut path) = (0, String::new());
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                if path.is_empty() {
                    path = line.clone();
                }
                if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            assert!(path.starts_with("POST /v1/traces "), "{path}");
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
            send.send(serde_json::from_slice(&body).unwrap()).unwrap();
        }
    });
    (address, bodies)
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let mut all = span["attributes"].as_array().unwrap().iter();
    let found = all.find(|one| one["key"] == key);
    found.map_or(&Value::Null, |one| &one["value"])
}

#[test]
fn a_request_and_its_phases_are_spans() {
    let (address, bodies) = collector();
    let server = TestServer::start(|options| options.otlp_endpoint = Some(address));
    let body = json!({"prompt": "The red fox", "max_tokens": 5, "n": 2, "ignore_eos": true});
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
    for flags in ["01", "00"] {
        let parent = format!("{parent}-{flags}");
        let headers = [
            ("Content-Type", "application/json"),
            ("traceparent", &parent),
        ];
        let answer = server.send("POST", "/v1/completions", &headers, &body.to_string());
        assert_eq!(answer.status, 200);
    }
    assert_eq!(server.get("/v1/nothing").status, 404);
    // The end of the server sends what waits.
    server.stop();
    server.join().unwrap();
    let mut spans: Vec<Value> = Vec::new();
    while let Ok(body) = bodies.recv_timeout(Duration::from_millis(200)) {
        let resource = &body["resourceSpans"][0];
        assert_eq!(
            resource["resource"]["attributes"][0]["value"]["stringValue"],
            "tiny"
        );
        spans.extend(
            resource["scopeSpans"][0]["spans"]
                .as_array()
                .unwrap()
                .clone(),
        );
    }
    let named =
        |name: &str| -> Vec<&Value> { spans.iter().filter(|span| span["name"] == name).collect() };
    // The request whose spans are not wanted has none.
    let [request] = named("POST /v1/completions")[..] else {
        panic!("{spans:?}");
    };
    assert_eq!(request["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(request["parentSpanId"], "00f067aa0ba902b7");
    assert_eq!(request["kind"], 2);
    let number = |span: &Value, key: &str| {
        attribute(span, key)["intValue"]
            .as_str()
            .map(|text| text.parse::<u64>().unwrap())
    };
    assert_eq!(number(request, "http.response.status_code"), Some(200));
    assert_eq!(number(request, "gen_ai.usage.output_tokens"), Some(10));
    assert!(number(request, "gen_ai.usage.input_tokens") > Some(2));
    let reasons = &attribute(request, "gen_ai.response.finish_reasons")["arrayValue"]["values"];
    assert_eq!(reasons.as_array().unwrap().len(), 2);
    let time = |span: &Value, key: &str| span[key].as_str().unwrap().parse::<u128>().unwrap();
    let (from, to) = (
        time(request, "startTimeUnixNano"),
        time(request, "endTimeUnixNano"),
    );
    // Clocks are read one after the other.
    let tolerance = 50_000_000;
    for phase in ["queue", "prefill", "decode"] {
        let rows = named(phase);
        assert_eq!(rows.len(), 2, "{phase}");
        for row in rows {
            assert_eq!(
                (&row["parentSpanId"], &row["traceId"]),
                (&request["spanId"], &request["traceId"])
            );
            let (began, ended) = (time(row, "startTimeUnixNano"), time(row, "endTimeUnixNano"));
            assert!(
                from <= began + tolerance && began <= ended && ended <= to + tolerance,
                "{row}"
            );
        }
    }
    let [missing] = named("GET /v1/nothing")[..] else {
        panic!("{spans:?}");
    };
    assert!(missing["parentSpanId"].is_null() && missing["traceId"] != request["traceId"]);
    assert_eq!(number(missing, "http.response.status_code"), Some(404));
    // A probe has one only while the model loads.
    let probes = named("GET /ready");
    assert!(
        probes
            .iter()
            .all(|span| number(span, "http.response.status_code") == Some(503))
    );
}

/// A collector that is not there costs requests nothing.
#[test]
fn requests_do_not_need_the_collector() {
    let server = TestServer::start(|options| {
        options.otlp_endpoint = Some("http://127.0.0.1:9".to_owned());
    });
    let body = json!({"prompt": "The red fox", "max_tokens": 2});
    server.ok("/v1/completions", &body);
    server.stop();
    server.join().unwrap();
}
