//! `/v1/files`, `/v1/batches` and `mlx-infer batch` with OpenAI's form: states, answers, a crash,
//! and requests that come first.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Answer, TestServer};
use crate::operations::{Running, ask};

pub fn line(id: &str, url: &str, body: &Value) -> String {
    json!({"custom_id": id, "method": "POST", "url": url, "body": body}).to_string()
}

pub fn chat(id: &str, max_tokens: usize) -> String {
    let body = json!({
        "messages": [{"role": "user", "content": "What is 20 + 22?"}],
        "temperature": 0, "max_tokens": max_tokens, "ignore_eos": true,
    });
    line(id, "/v1/chat/completions", &body)
}

pub fn with_folder(folder: &Path, rows: usize) -> TestServer {
    TestServer::start(|options| {
        options.batch_dir = Some(folder.to_owned());
        options.engine.limits.rows = rows;
    })
}

/// The parts of a form: name, file name, and text.
fn form(parts: &[(&str, Option<&str>, &str)]) -> String {
    let mut body = String::new();
    for (name, file, text) in parts {
        let file = file.map_or(String::new(), |file| format!("; filename=\"{file}\""));
        body += &format!(
            "--edge\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{text}\r\n"
        );
    }
    body + "--edge--\r\n"
}

fn send_form(server: &TestServer, parts: &[(&str, Option<&str>, &str)]) -> Answer {
    let headers = [("Content-Type", "multipart/form-data; boundary=edge")];
    server.send("POST", "/v1/files", &headers, &form(parts))
}

/// The id of a file of these lines.
pub fn upload(server: &TestServer, lines: &[String]) -> String {
    let text = lines.join("\n");
    let parts = [
        ("purpose", None, "batch"),
        ("file", Some("in.jsonl"), text.as_str()),
    ];
    let answer = send_form(server, &parts);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let file = answer.json();
    assert_eq!(
        (&file["object"], &file["purpose"]),
        (&json!("file"), &json!("batch"))
    );
    assert_eq!(
        (&file["bytes"], &file["filename"]),
        (&json!(text.len()), &json!("in.jsonl"))
    );
    file["id"].as_str().unwrap().to_owned()
}

pub fn create(server: &TestServer, file: &str, url: &str, window: &str) -> Value {
    let body = json!({
        "input_file_id": file, "endpoint": url, "completion_window": window,
        "metadata": {"of": "tests"},
    });
    server.ok("/v1/batches", &body)
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}

pub fn batch(server: &TestServer, id: &Value) -> Value {
    server.get(&format!("/v1/batches/{}", text(id))).json()
}

/// The batch when it has a status.
pub fn until(server: &TestServer, id: &Value, status: &str) -> Value {
    let mut last = Value::Null;
    server.until(|| {
        last = batch(server, id);
        last["status"] == status
    });
    last
}

/// The lines of a file by their `custom_id`; each is there once.
fn by_id(text: &str) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let id = line["custom_id"].as_str().unwrap().to_owned();
        assert!(
            all.insert(id.clone(), line).is_none(),
            "{id} is there twice"
        );
    }
    all
}

pub fn content(server: &TestServer, id: &Value) -> BTreeMap<String, Value> {
    let answer = server.get(&format!("/v1/files/{}/content", text(id)));
    assert_eq!(answer.status, 200, "{}", answer.body);
    by_id(&answer.body)
}

#[test]
fn lines_get_the_answers_of_their_routes() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(folder.path(), 8);
    let completion = json!({"prompt": "The red fox", "max_tokens": 4, "temperature": 0});
    let response = json!({"input": "What is 20 + 22?", "temperature": 0});
    let chat_body =
        json!({"messages": [{"role": "user", "content": "What is 20 + 22?"}], "temperature": 0});
    for (url, body) in [
        ("/v1/completions", completion),
        ("/v1/responses", response),
        ("/v1/chat/completions", chat_body),
    ] {
        let mut lines: Vec<String> = (0..20)
            .map(|n| line(&format!("ok-{n}"), url, &body))
            .collect();
        let with = |key: &str, value: Value| {
            let mut body = body.clone();
            body[key] = value;
            line(&format!("bad-{key}"), url, &body)
        };
        lines.extend([
            with("temperature", json!(-1)),
            with("stream", json!(true)),
            with("model", json!("other")),
        ]);
        let file = upload(&server, &lines);
        let made = create(&server, &file, url, "24h");
        assert_eq!(
            (&made["object"], &made["status"]),
            (&json!("batch"), &json!("validating"))
        );
        let created = made["created_at"].as_u64().unwrap();
        assert_eq!(made["expires_at"], created + 86_400);
        let done = until(&server, &made["id"], "completed");
        assert_eq!(
            done["request_counts"],
            json!({"total": 23, "completed": 20, "failed": 3})
        );
        assert_eq!(done["metadata"], json!({"of": "tests"}));
        for time in ["in_progress_at", "finalizing_at", "completed_at"] {
            assert!(done[time].as_u64().unwrap() >= created, "{time}: {done}");
        }
        let answers = content(&server, &done["output_file_id"]);
        assert_eq!(answers.len(), 20);
        let mut expected = server.ok(url, &body);
        // What differs from one answer to the next.
        let without = |answer: &mut Value| {
            for key in [
                "id",
                "timings",
                "created",
                "created_at",
                "completed_at",
                "usage",
                "output",
            ] {
                let value = answer[key].take();
                if key == "output" && value != Value::Null {
                    answer["text"] = value[0]["content"].clone();
                }
            }
            answer.clone()
        };
        for answer in answers.values() {
            assert_eq!(
                (&answer["error"], &answer["response"]["status_code"]),
                (&Value::Null, &json!(200))
            );
            assert!(text(&answer["response"]["request_id"]).starts_with("req_"));
            let mut body = answer["response"]["body"].clone();
            assert_eq!(without(&mut body), without(&mut expected), "{url}");
        }
        let errors = content(&server, &done["error_file_id"]);
        assert_eq!(errors.len(), 3);
        for (id, status, word) in [
            ("bad-temperature", 400, "temperature"),
            ("bad-stream", 400, "not streamed"),
            ("bad-model", 404, "there is no model"),
        ] {
            let response = &errors[id]["response"];
            assert_eq!(response["status_code"], status, "{id}");
            let message = text(&response["body"]["error"]["message"]);
            assert!(message.contains(word), "{message}");
        }
    }
}

/// What a server names in the header `x-ignored-params` is in the lines of answers.
#[test]
fn lines_name_parameters_without_effect() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(folder.path(), 8);
    let of_schema = json!({"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "string", "format": "regex", "maxLength": 3},
    }});
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let chats = [
        json!({"messages": messages, "max_tokens": 2}),
        json!({"messages": messages, "max_tokens": 2, "tpo_p": 0.5, "reasoning": {"wish": 1}}),
        json!({"messages": messages, "max_tokens": 9, "response_format": of_schema, "tpo_p": 1}),
    ];
    let url = "/v1/chat/completions";
    let lines = chats.iter().enumerate();
    let mut lines: Vec<String> = lines
        .map(|(at, body)| line(&at.to_string(), url, body))
        .collect();
    let file = upload(&server, &lines);
    let made = create(&server, &file, url, "24h");
    let done = until(&server, &made["id"], "completed");
    let answers = content(&server, &done["output_file_id"]);
    for (at, body) in chats.iter().enumerate() {
        let response = &answers[&at.to_string()]["response"];
        let alone = server.post(url, body);
        let header = alone.header("x-ignored-params");
        let named = header.map(|names| names.split(',').collect::<Vec<_>>().into());
        assert_eq!(response.get("ignored_params").cloned(), named, "{body}");
    }
    let names = |at: &str| answers[at]["response"]["ignored_params"].clone();
    assert_eq!(names("1"), json!(["reasoning.wish", "tpo_p"]));
    assert!(names("2").as_array().unwrap().len() > 1, "{}", names("2"));
    // The command writes the same lines.
    lines.push(line(
        "texts",
        "/v1/embeddings",
        &json!({"input": "x", "tpo_p": 1}),
    ));
    let output = run(folder.path(), &lines, &["--output", "out.jsonl"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let written = by_id(&fs::read_to_string(folder.path().join("out.jsonl")).unwrap());
    for at in ["0", "1", "2"] {
        let own = written[at]["response"].get("ignored_params");
        assert_eq!(own.cloned().unwrap_or_default(), names(at), "line {at}");
    }
    assert_eq!(
        written["texts"]["response"]["ignored_params"],
        json!(["tpo_p"])
    );
}

#[test]
fn files_and_batches_are_listed_and_stay_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(folder.path(), 8);
    let bad = line("b", "/v1/chat/completions", &json!({}));
    for _ in 0..3 {
        let file = upload(&server, &[chat("a", 2), bad.clone()]);
        let made = create(&server, &file, "/v1/chat/completions", "24h");
        until(&server, &made["id"], "completed");
    }
    // Three files of requests, and two of answers for each.
    let files = server.get("/v1/files").json();
    assert_eq!(files["data"].as_array().unwrap().len(), 9);
    let of_batches = server.get("/v1/files?purpose=batch&limit=2").json();
    assert_eq!(
        (
            &of_batches["data"].as_array().unwrap().len(),
            &of_batches["has_more"]
        ),
        (&2, &json!(true))
    );
    let rest = format!(
        "/v1/files?purpose=batch&after={}",
        text(&of_batches["last_id"])
    );
    assert_eq!(
        server.get(&rest).json()["data"].as_array().unwrap().len(),
        1
    );
    // They and the batches are still there after a restart.
    let shown = |server: &TestServer| {
        ["/v1/files?order=asc", "/v1/batches"].map(|path| server.get(path).json())
    };
    let before = shown(&server);
    server.stop();
    server.join().unwrap();
    let server = with_folder(folder.path(), 8);
    assert_eq!(shown(&server), before);
    let id = text(&before[0]["data"][0]["id"]).to_owned();
    let deleted = server
        .send("DELETE", &format!("/v1/files/{id}"), &[], "")
        .json();
    assert_eq!(
        deleted,
        json!({"id": id, "object": "file", "deleted": true})
    );
    assert_eq!(server.get(&format!("/v1/files/{id}")).status, 404);
    assert_eq!(server.get(&format!("/v1/files/{id}/content")).status, 404);
    // A second server is refused the folder.
    let options = mlx_infer::serve::ServeOptions {
        address: ([127, 0, 0, 1], 0).into(),
        batch_dir: Some(folder.path().to_owned()),
        ..Default::default()
    };
    let error = mlx_infer::serve::Server::bind(options).unwrap_err();
    assert_eq!(error.kind(), mlx_infer::ErrorKind::Busy, "{error}");
}

#[test]
fn uploads_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(folder.path(), 2);
    for (parts, status, word) in [
        (&[("file", Some("x"), "{}")][..], 400, "purpose is missing"),
        (&[("purpose", None, "batch")], 400, "file is missing"),
        (
            &[("purpose", None, "fine-tune"), ("file", Some("x"), "{}")],
            400,
            "must be batch",
        ),
        (
            &[("purpose", None, "batch"), ("colour", None, "red")],
            400,
            "colour",
        ),
        (
            &[("file", Some("x"), "{}"), ("file", Some("y"), "{}")],
            400,
            "once each",
        ),
        (
            &[
                ("purpose", None, &"x".repeat(2000)),
                ("file", Some("x"), "{}"),
            ],
            400,
            "longer than",
        ),
    ] {
        let answer = send_form(&server, parts);
        assert!(
            answer.status == status && answer.body.contains(word),
            "{word}: {}",
            answer.body
        );
    }
    assert_eq!(server.post("/v1/files", &json!({})).status, 415);
    let cut = &form(&[("purpose", None, "batch"), ("file", Some("x"), "{}")])[..90];
    let headers = [("Content-Type", "multipart/form-data; boundary=edge")];
    assert_eq!(server.send("POST", "/v1/files", &headers, cut).status, 400);
    // Nothing of these stays.
    assert_eq!(
        fs::read_dir(folder.path().join("files")).unwrap().count(),
        0
    );
}

#[test]
fn requests_for_batches_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(folder.path(), 2);
    let file = upload(&server, &[chat("a", 1)]);
    let body = json!({"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    for (key, value, word) in [
        ("input_file_id", json!("file-none"), "there is no file"),
        ("input_file_id", json!(null), "input_file_id is missing"),
        (
            "endpoint",
            json!("/v1/models"),
            "must be one of /v1/chat/completions",
        ),
        ("completion_window", json!("soon"), "a time of 1s to 30d"),
        ("metadata", json!([]), "metadata"),
        (
            "output_expires_after",
            json!({"anchor": "created_at"}),
            "not supported",
        ),
    ] {
        let mut body = body.clone();
        body[key] = value;
        let answer = server.post("/v1/batches", &body);
        assert!(
            answer.status == 400 && answer.body.contains(word),
            "{}",
            answer.body
        );
    }
    for path in [
        "/v1/batches?limit=0",
        "/v1/batches?limit=x",
        "/v1/batches?after=none",
        "/v1/files?order=up",
    ] {
        assert_eq!(server.get(path).status, 400, "{path}");
    }
    for path in [
        "/v1/batches/none",
        "/v1/files/none",
        "/v1/files/none/content",
        "/v1/files/..%2Fbatches%2Fx",
    ] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    // A file with faults: the batch fails, and names the lines.
    let lines = [
        chat("a", 1),
        "nonsense".to_owned(),
        chat("a", 1),
        line("b", "/v1/responses", &json!({})),
    ];
    let file = upload(&server, &lines);
    let made = create(&server, &file, "/v1/chat/completions", "24h");
    let failed = until(&server, &made["id"], "failed");
    let faults = failed["errors"]["data"].as_array().unwrap();
    let faults: Vec<_> = faults
        .iter()
        .map(|fault| (fault["line"].as_u64(), text(&fault["code"])))
        .collect();
    assert_eq!(
        faults,
        [
            (Some(2), "invalid_json_line"),
            (Some(3), "duplicate_custom_id"),
            (Some(4), "mismatched_url")
        ]
    );
    assert!(failed["failed_at"].is_u64() && failed["output_file_id"].is_null());
    let cancel = server.post(
        &format!("/v1/batches/{}/cancel", text(&made["id"])),
        &json!({}),
    );
    assert_eq!(cancel.status, 409);
    // A server without a folder says so.
    let answer = crate::client::SERVER.get("/v1/batches");
    assert!(
        answer.status == 404 && answer.body.contains("--batch-dir"),
        "{}",
        answer.body
    );
}

#[test]
fn batches_are_cancelled_and_expire() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(folder.path(), 2);
    let lines: Vec<String> = (0..400).map(|n| chat(&n.to_string(), 400)).collect();
    let file = upload(&server, &lines);
    let url = "/v1/chat/completions";
    let first = create(&server, &file, url, "24h");
    let waiting = create(&server, &file, url, "24h");
    server.until(|| batch(&server, &first["id"])["request_counts"]["completed"].as_u64() > Some(0));
    assert_eq!(batch(&server, &first["id"])["status"], "in_progress");
    let in_use = server.send("DELETE", &format!("/v1/files/{file}"), &[], "");
    assert!(
        in_use.status == 400 && in_use.body.contains("has not ended"),
        "{}",
        in_use.body
    );
    // The second waits for its turn, and ends without one.
    for id in [&waiting["id"], &first["id"]] {
        let answer = server.post(&format!("/v1/batches/{}/cancel", text(id)), &json!({}));
        assert_eq!(answer.status, 200, "{}", answer.body);
        let cancelled = until(&server, id, "cancelled");
        assert!(cancelled["cancelled_at"].is_u64() && cancelled["cancelling_at"].is_u64());
        let completed = cancelled["request_counts"]["completed"].as_u64().unwrap();
        match id == &first["id"] {
            true => {
                let kept = content(&server, &cancelled["output_file_id"]);
                assert!((1..400).contains(&kept.len()) && kept.len() as u64 == completed);
            }
            false => assert!(completed == 0 && cancelled["output_file_id"].is_null()),
        }
    }
    let short = create(&server, &file, url, "1s");
    let expired = until(&server, &short["id"], "expired");
    let done = match &expired["output_file_id"] {
        Value::Null => BTreeMap::new(),
        id => content(&server, id),
    };
    let errors = content(&server, &expired["error_file_id"]);
    assert_eq!(done.len() + errors.len(), 400);
    assert!(
        errors
            .values()
            .all(|line| line["error"]["code"] == "batch_expired" && line["response"].is_null())
    );
    let counts = &expired["request_counts"];
    assert_eq!(
        (&counts["completed"], &counts["failed"]),
        (&json!(done.len()), &json!(errors.len()))
    );
}

/// With one row, another request takes it from a batch that would hold it for long.
#[test]
fn other_requests_come_first() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(folder.path(), 1);
    let lines: Vec<String> = (0..200).map(|n| chat(&n.to_string(), 480)).collect();
    let made = create(
        &server,
        &upload(&server, &lines),
        "/v1/chat/completions",
        "24h",
    );
    let completed = || {
        batch(&server, &made["id"])["request_counts"]["completed"]
            .as_u64()
            .unwrap()
    };
    server.until(|| completed() > 0);
    let body =
        json!({"prompt": "The red fox", "max_tokens": 60, "temperature": 0, "ignore_eos": true});
    let came_first = (0..20).any(|_| {
        let before = completed();
        server.ok("/v1/completions", &body);
        completed() == before
    });
    assert!(came_first);
    // The end of the server does not wait for a batch.
    let start = Instant::now();
    server.stop();
    server.join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_batch_goes_on_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let args = ["--port", "0", "--quiet", "--rows", "4", "--batch-dir", path];
    let mut server = Running::start(&args);
    let lines: Vec<String> = (0..60).map(|n| chat(&n.to_string(), 200)).collect();
    let lines = lines.join("\n");
    let body = form(&[
        ("purpose", None, "batch"),
        ("file", Some("in.jsonl"), &lines),
    ]);
    let file = {
        use std::io::{Read, Write};
        let mut stream = server.tcp();
        let head = format!(
            "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: multipart/form-data; boundary=edge\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        crate::client::answer(&bytes).json()["id"].clone()
    };
    let body = json!({"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "1h"});
    let made = ask(server.tcp(), "/v1/batches", Some(&body)).json();
    let path = format!("/v1/batches/{}", text(&made["id"]));
    let wait = |server: &Running, is_so: &dyn Fn(&Value) -> bool| loop {
        let batch = ask(server.tcp(), &path, None).json();
        if is_so(&batch) {
            return batch;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    for signal in ["-KILL", "-TERM"] {
        let before = wait(&server, &|_| true)["request_counts"]["completed"].as_u64();
        wait(&server, &|batch| {
            batch["request_counts"]["completed"].as_u64() > before
        });
        if signal == "-TERM" {
            let start = Instant::now();
            server.end();
            assert!(start.elapsed() < Duration::from_secs(10));
        } else {
            server.signal(signal);
            drop(server);
        }
        server = Running::start(&args);
    }
    let done = wait(&server, &|batch| batch["status"] == "completed");
    assert_eq!(
        done["request_counts"],
        json!({"total": 60, "completed": 60, "failed": 0})
    );
    let output = format!("/v1/files/{}/content", text(&done["output_file_id"]));
    let answers = by_id(&ask(server.tcp(), &output, None).body);
    assert_eq!(answers.len(), 60);
    let texts: Vec<&Value> = answers
        .values()
        .map(|line| &line["response"]["body"]["choices"][0]["message"])
        .collect();
    assert!(
        texts
            .iter()
            .all(|text| *text == texts[0] && !text.is_null())
    );
}

/// `cargo xtask test` names a Python that has the package.
#[test]
fn the_official_client_works() {
    let Some(python) = std::env::var_os("MLX_TEST_PYTHON") else {
        eprintln!("left out: MLX_TEST_PYTHON names no Python with the client");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(folder.path(), 4);
    let output = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve/batches.py"))
        .arg(format!("http://{}", server.address))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "batches: done"
    );
}

/// `mlx-infer batch` with an input of these lines.
fn run(folder: &Path, lines: &[String], args: &[&str]) -> Output {
    let input = folder.join("in.jsonl");
    fs::write(&input, lines.join("\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-infer"));
    command
        .arg("batch")
        .arg("--input")
        .arg(input)
        .args(args)
        .current_dir(folder);
    command.output().unwrap()
}

#[test]
fn the_command_answers_a_file_and_goes_on_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (0..8).map(|n| chat(&n.to_string(), 4)).collect();
    let mut lines = [
        &lines[..],
        &[line(
            "bad",
            "/v1/completions",
            &json!({"prompt": "x", "top_p": 7}),
        )],
    ]
    .concat();
    lines.push(line(
        "named",
        "/v1/responses",
        &json!({"input": "What is 20 + 22?", "model": "mine"}),
    ));
    let args = [
        "--output",
        "out.jsonl",
        "--errors",
        "err.jsonl",
        "--name",
        "mine",
        "--max-tokens",
        "5",
    ];
    let output = run(folder.path(), &lines, &args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{stderr}"
    );
    assert!(stderr.contains("10 requests, 1 failed"), "{stderr}");
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let first = by_id(&read("out.jsonl"));
    assert_eq!(first.len(), 9);
    assert_eq!(
        first["named"]["response"]["body"]["output"][0]["content"][0]["text"],
        "42"
    );
    assert_eq!(
        by_id(&read("err.jsonl"))["bad"]["response"]["status_code"],
        400
    );
    // A run that was killed while it wrote a line.
    let whole: Vec<String> = read("out.jsonl").lines().map(str::to_owned).collect();
    let cut = format!("{}\n{}\n{}", whole[0], whole[1], &whole[2][..20]);
    fs::write(folder.path().join("out.jsonl"), cut).unwrap();
    let output = run(folder.path(), &lines, &args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("10 requests (3 had an answer before), 1 failed"),
        "{stderr}"
    );
    let again = by_id(&read("out.jsonl"));
    let texts = |all: &BTreeMap<String, Value>| -> Vec<Value> {
        all.values()
            .map(|line| line["response"]["body"]["choices"][0]["message"].clone())
            .collect()
    };
    assert_eq!(texts(&again), texts(&first));
    assert!(read("out.jsonl").starts_with(&format!("{}\n{}\n", whole[0], whole[1])));
}

#[test]
fn the_command_refuses_lines_and_flags_of_another_form() {
    let folder = tempfile::tempdir().unwrap();
    let good = [chat("a", 1)];
    let native = [r#"{"prompt": "x"}"#.to_owned()];
    let broken = [chat("a", 1), "{".to_owned()];
    for (lines, args, code, word) in [
        (&good[..], &[][..], 2, "with --output"),
        (&native, &["--output", "o"], 2, "OpenAI's form"),
        (
            &broken,
            &["--output", "o"],
            1,
            "in.jsonl: line 2: the line is not valid JSON",
        ),
        (
            &good,
            &["--output", "o", "--choice", "x"],
            2,
            "response_format",
        ),
        (&good, &["--output", "in.jsonl/o"], 1, "in.jsonl/o"),
        (
            &good,
            &["--output", "o", "--model", "/nowhere"],
            1,
            "/nowhere",
        ),
        (
            &good,
            &["--output", "in.jsonl"],
            1,
            "is the file of the requests",
        ),
        (&native, &["--errors", "o"], 2, "--output"),
    ] {
        let output = run(folder.path(), lines, args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(code) && stderr.contains(word),
            "{args:?}: {stderr}"
        );
    }
}
