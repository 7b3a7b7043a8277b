//! Requests as clients of other servers send them, and the form of the answers that they expect.

use serde_json::{Value, json};

use crate::client::{SERVER, TestServer};
use crate::scripted::Scripted;

const CHAT: &str = "/v1/chat/completions";

fn chat(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "What is 20 + 22?"}], "max_tokens": 12, "temperature": 0,
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The status, the parameter and the message of a refusal.
fn refused(server: &TestServer, path: &str, body: &Value) -> (u16, String, String) {
    let answer = server.post(path, body);
    let error = answer.json()["error"].clone();
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    (answer.status, text("param"), text("message"))
}

#[test]
fn parameters_that_contradict_each_other_are_refused() {
    for (body, param) in [
        (
            chat(json!({"stream_options": {"include_usage": true}})),
            "stream_options",
        ),
        (
            chat(
                json!({"continue_final_message": true, "add_generation_prompt": true,
                "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}),
            ),
            "continue_final_message",
        ),
        (chat(json!({"stop": ["x", ""]})), "stop"),
        (
            chat(json!({"skip_special_tokens": false})),
            "skip_special_tokens",
        ),
        (chat(json!({"chat_template": "{{ 1 }}"})), "chat_template"),
        (chat(json!({"typical_p": 0.2})), "typical_p"),
    ] {
        let (status, found, _) = refused(&SERVER, CHAT, &body);
        assert_eq!((status, found.as_str()), (400, param), "{body}");
    }
    let (status, _, message) = refused(&SERVER, "/v1/completions", &json!({"prompt": []}));
    assert_eq!(status, 400);
    assert!(message.starts_with("prompt is an empty list"), "{message}");
    let neutral = json!({
        "skip_special_tokens": true, "typical_p": 1.0, "xtc_probability": 0, "top_a": 0.0, "chat_template": null,
        "prompt_logprobs": null, "return_token_ids": false, "lora": [], "stop": "", "max_tokens": 4.0, "n": 1.0,
    });
    SERVER.ok(CHAT, &chat(neutral));
}

#[test]
fn routes_are_there_without_v1_too() {
    for (path, body) in [
        ("/chat/completions", chat(json!({}))),
        ("/completions", json!({"prompt": "x", "max_tokens": 1})),
        ("/responses", json!({"input": "x", "max_output_tokens": 1})),
        (
            "/messages",
            json!({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}),
        ),
        (
            "/messages/count_tokens",
            json!({"messages": [{"role": "user", "content": "x"}]}),
        ),
        ("/classify", json!({"input": "x", "labels": ["a", "b"]})),
    ] {
        SERVER.ok(path, &body);
        // Errors have the form of their route.
        let error = SERVER.post(path, &json!({"model": "gpt-4"})).json();
        let is_anthropic = error["type"] == "error";
        assert_eq!(is_anthropic, path.starts_with("/messages"), "{error}");
    }
    assert_eq!(
        SERVER.get("/models").json(),
        SERVER.get("/v1/models").json()
    );
}

#[test]
fn a_request_has_one_host() {
    for hosts in [
        &[][..],
        &["localhost", "localhost"],
        &["localhost", "evil.example"],
    ] {
        let mut text = "GET /health HTTP/1.1\r\nConnection: close\r\n".to_owned();
        for host in hosts {
            text += &format!("Host: {host}\r\n");
        }
        let answer = SERVER.raw(&(text + "\r\n"));
        assert_eq!(answer.status, 400, "{hosts:?}: {}", answer.body);
    }
    assert_eq!(SERVER.raw("GET /health HTTP/1.0\r\n\r\n").status, 200);
}

#[test]
fn content_is_tokenised_without_tokens_around_it() {
    let tokens = |body: Value| SERVER.ok("/tokenize", &body)["tokens"].clone();
    let bare = tokens(json!({"content": "The red fox"}));
    assert_eq!(
        bare,
        tokens(json!({"prompt": "The red fox", "add_special_tokens": false}))
    );
    let special = tokens(json!({"content": "The red fox", "add_special": true}));
    assert_eq!(special, tokens(json!({"prompt": "The red fox"})));
    assert_ne!(bare, special);
}

#[test]
fn log_probabilities_are_those_of_the_text() {
    let answer = SERVER.ok(CHAT, &chat(json!({"logprobs": true})));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    let joined: String = tokens
        .iter()
        .filter_map(|token| token["token"].as_str())
        .collect();
    assert_eq!(joined, choice["message"]["content"].as_str().unwrap());
}

/// The answer to a conversation, of a model that generates these pieces.
fn said(scripted: &Scripted, path: &str, body: &Value, pieces: &[&str]) -> Value {
    let prompt = |answer: &Value| {
        let usage = &answer["usage"];
        usage["prompt_tokens"]
            .as_u64()
            .or(usage["input_tokens"].as_u64())
            .unwrap()
    };
    let counted = scripted.server.ok(path, body);
    let cached = counted["usage"]["cache_read_input_tokens"]
        .as_u64()
        .unwrap_or(0);
    scripted.says((prompt(&counted) + cached) as usize, pieces);
    scripted.server.ok(path, body)
}

const QWEN: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];

fn tool(function: Value) -> Value {
    json!([{"type": "function", "function": function}])
}

#[test]
fn a_stop_string_may_be_a_special_token() {
    let scripted = Scripted::start("qwen3", &[], &["<|im_end|>"], |_| ());
    let pieces = ["ab", QWEN[0], "cd"];
    let body = chat(json!({"stop": [QWEN[0]]}));
    let answer = said(&scripted, CHAT, &body, &pieces);
    assert_eq!(answer["choices"][0]["message"]["content"], "ab");
    assert_eq!(
        answer["usage"]["completion_tokens"],
        scripted.count("ab") + 1
    );
    let body = json!({
        "messages": [{"role": "user", "content": "q"}], "max_tokens": 12, "temperature": 0, "stop_sequences": [QWEN[0]],
    });
    let answer = said(&scripted, "/v1/messages", &body, &pieces);
    assert_eq!(answer["content"][0]["text"], "ab");
    assert_eq!(
        (&answer["stop_reason"], &answer["stop_sequence"]),
        (&json!("stop_sequence"), &json!(QWEN[0]))
    );
    // Without the option the token is not part of the text.
    let answer = said(&scripted, CHAT, &chat(json!({})), &pieces);
    assert_eq!(answer["choices"][0]["message"]["content"], "abcd");
}

#[test]
fn a_call_that_is_cut_is_no_content() {
    let scripted = Scripted::start("qwen3", &[], &["<|im_end|>"], |_| ());
    let call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let tools = tool(
        json!({"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}),
    );
    let length = scripted.count(call);
    for (max_tokens, calls) in [
        // The answer is cut in the name of a call, in its arguments, and in the name of a second
        // call.
        (scripted.count("<tool_call>\n{\"name\": \"ad"), 0),
        (
            scripted.count("<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\""),
            1,
        ),
        (length + scripted.count("\n<tool_call>\n{\"name\""), 1),
    ] {
        let body = chat(json!({"tools": tools, "max_tokens": max_tokens}));
        let answer = said(&scripted, CHAT, &body, &[call, "\n", call]);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "length", "{answer}");
        let content = choice["message"]["content"].as_str().unwrap_or_default();
        assert_eq!(content, "", "{answer}");
        let found = choice["message"]["tool_calls"]
            .as_array()
            .map_or(0, Vec::len);
        assert_eq!(found, calls, "{answer}");
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        let chunks = scripted.server.post(CHAT, &streamed).chunks();
        assert!(chunks.iter().all(|chunk| {
            chunk["choices"][0]["delta"]["content"]
                .as_str()
                .unwrap_or_default()
                .is_empty()
        }));
        assert_eq!(
            chunks.last().unwrap()["choices"][0]["finish_reason"],
            "length"
        );
        let body = json!({
            "messages": [{"role": "user", "content": "q"}], "max_tokens": max_tokens, "temperature": 0,
            "tools": [{"name": "add", "input_schema": tools[0]["function"]["parameters"]}],
        });
        let answer = said(&scripted, "/v1/messages", &body, &[call, "\n", call]);
        assert_eq!(answer["stop_reason"], "max_tokens", "{answer}");
        let texts = answer["content"].as_array().unwrap().iter();
        assert!(
            texts
                .filter_map(|block| block["text"].as_str())
                .all(str::is_empty),
            "{answer}"
        );
        let body = json!({
            "input": "q", "max_output_tokens": max_tokens, "temperature": 0,
            "tools": [{"type": "function", "name": "add", "parameters": tools[0]["function"]["parameters"]}],
        });
        let answer = said(&scripted, "/v1/responses", &body, &[call, "\n", call]);
        assert_eq!(answer["status"], "incomplete", "{answer}");
        let items = answer["output"].as_array().unwrap();
        let texts = items
            .iter()
            .filter_map(|item| item["content"][0]["text"].as_str());
        assert_eq!(texts.collect::<String>(), "", "{answer}");
        let is_whole = max_tokens > length;
        for item in items.iter().filter(|item| item["type"] == "function_call") {
            assert_eq!(item["status"] == "completed", is_whole, "{answer}");
        }
    }
}

#[test]
fn tokens_behind_the_last_call_are_not_counted() {
    let scripted = Scripted::start("qwen3", &[], &["<|im_end|>"], |_| ());
    let call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>";
    let tools = tool(
        json!({"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}),
    );
    let body = chat(json!({"tools": tools, "parallel_tool_calls": false, "max_tokens": 300}));
    let mut counts = Vec::new();
    for _ in 0..5 {
        let answer = said(&scripted, CHAT, &body, &[call, &"and more ".repeat(20)]);
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
        let count = answer["usage"]["completion_tokens"].as_u64().unwrap() as usize;
        assert_eq!(answer["timings"]["predicted_n"], count, "{answer}");
        assert!(count <= scripted.count(call), "{answer}");
        counts.push(count);
    }
    assert_eq!(counts, [counts[0]; 5]);
}

#[test]
fn a_budget_of_thinking_is_named_or_refused() {
    let body = json!({
        "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "thinking": {"type": "enabled", "budget_tokens": 1024},
    });
    let answer = SERVER.post("/v1/messages", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(
        answer.header("x-ignored-params"),
        Some("thinking.budget_tokens")
    );
    let strict = TestServer::start(|options| options.strict = true);
    strict.ok(
        "/v1/messages/count_tokens",
        &json!({"messages": body["messages"], "thinking": body["thinking"]}),
    );
    let answer = strict.post("/v1/messages", &body);
    assert_eq!(answer.status, 400);
    assert!(
        answer.body.contains("thinking.budget_tokens"),
        "{}",
        answer.body
    );
}

#[test]
fn clients_that_leave_are_counted() {
    use std::io::Read;
    let server = TestServer::start(|_| ());
    let body =
        json!({"prompt": "x", "max_tokens": 400, "ignore_eos": true, "n": 2, "stream": true})
            .to_string();
    let headers = [("Content-Type", "application/json")];
    let mut stream =
        crate::client::at_first_event(server.open("POST", "/v1/completions", &headers, &body));
    stream.read_exact(&mut [0; 4]).unwrap();
    drop(stream);
    server.until(|| server.metric("mlx_disconnects_total") == 1.0);
    let text = server.get("/metrics").body;
    let line = text
        .lines()
        .find(|line| line.contains("finished_reason=\"abort\""))
        .unwrap();
    assert!(line.ends_with(" 2"), "{line}");
}

#[test]
fn histories_with_calls_that_clients_run_are_accepted() {
    let body = json!({"max_output_tokens": 4, "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
        {"type": "web_search_call", "id": "w", "status": "completed"},
    ]});
    SERVER.ok("/v1/responses", &body);
    let body = json!({"input": [{"type": "item_reference", "id": "x"}]});
    let (status, _, message) = refused(&SERVER, "/v1/responses", &body);
    assert_eq!(status, 400);
    assert!(message.contains("stores none"), "{message}");
}

#[test]
fn tokens_may_be_forbidden() {
    let free = SERVER.ok(CHAT, &chat(json!({})));
    assert_eq!(free["choices"][0]["message"]["content"], "42");
    let forbidden = SERVER.ok(CHAT, &chat(json!({"bad_words": ["42"]})));
    let content = forbidden["choices"][0]["message"]["content"]
        .as_str()
        .unwrap();
    assert!(!content.contains("42"), "{content}");
    let ids = |text: &str| SERVER.ok("/tokenize", &json!({"content": text}))["tokens"].clone();
    let mut body = json!({"prompt": "The red fox", "max_tokens": 6, "temperature": 1, "seed": 1, "allowed_token_ids": ids("7")});
    for n in [1, 2] {
        body["n"] = n.into();
        let answer = SERVER.ok("/v1/completions", &body);
        for choice in answer["choices"].as_array().unwrap() {
            assert_eq!(choice["text"], "777777", "{answer}");
        }
    }
    for (more, param) in [
        (json!({"allowed_token_ids": []}), "allowed_token_ids"),
        (json!({"allowed_token_ids": [99999]}), "allowed_token_ids"),
        (json!({"bad_words": [""]}), "bad_words"),
        (json!({"bad_words": "x"}), "bad_words"),
        (
            json!({"bad_words": ["x"], "guided_choice": ["x", "y"]}),
            "bad_words",
        ),
        (
            json!({"truncate_prompt_tokens": 0}),
            "truncate_prompt_tokens",
        ),
    ] {
        let (status, found, _) = refused(&SERVER, CHAT, &chat(more));
        assert_eq!((status, found.as_str()), (400, param));
    }
}

#[test]
fn the_beginning_of_a_prompt_is_left_out() {
    let last = SERVER.ok("/tokenize", &json!({"content": " red fox"}))["tokens"].clone();
    let n = last.as_array().unwrap().len();
    let mut body = json!({"prompt": "The old red fox", "max_tokens": 8, "temperature": 0, "truncate_prompt_tokens": n, "echo": true});
    let cut = SERVER.ok("/v1/completions", &body);
    assert_eq!(cut["usage"]["prompt_tokens"], n);
    body["prompt"] = last;
    body["truncate_prompt_tokens"] = Value::Null;
    let whole = SERVER.ok("/v1/completions", &body);
    assert_eq!(cut["choices"][0]["text"], whole["choices"][0]["text"]);
    // A prompt that is too long is truncated to fit, with room for the answer.
    let body = json!({"prompt": "the red fox ".repeat(400), "max_tokens": 20, "ignore_eos": true, "truncate_prompt_tokens": -1});
    let answer = SERVER.ok("/v1/completions", &body);
    assert_eq!(answer["usage"]["total_tokens"], 512);
    let body = chat(json!({"truncate_prompt_tokens": 5}));
    assert_eq!(SERVER.ok(CHAT, &body)["usage"]["prompt_tokens"], 5);
}

#[test]
fn a_text_that_cannot_fit_is_refused_by_its_bytes() {
    let text = "the red fox ".repeat(650_000);
    for (path, body, param) in [
        ("/v1/completions", json!({"prompt": text}), "prompt"),
        (
            CHAT,
            chat(json!({"messages": [{"role": "user", "content": text}]})),
            "messages",
        ),
        ("/v1/responses", json!({"input": text}), "input"),
    ] {
        let start = std::time::Instant::now();
        let answer = SERVER.post(path, &body);
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status, &error["code"]),
            (400, &json!("context_length_exceeded"))
        );
        assert_eq!(error["param"], param);
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("at least") && message.contains("512 tokens"),
            "{message}"
        );
        // Tokenising alone takes far longer in this build.
        assert!(
            start.elapsed().as_secs() < 20,
            "{path}: {:?}",
            start.elapsed()
        );
    }
}

#[test]
fn roles_are_those_that_the_template_knows() {
    let body = chat(json!({"messages": [{"role": "robot", "content": "x"}]}));
    for path in [CHAT, "/tokenize"] {
        let (status, param, message) = refused(&SERVER, path, &body);
        assert_eq!((status, param.as_str()), (400, "messages"), "{message}");
        assert!(
            message.contains("robot") && message.contains("user, assistant"),
            "{message}"
        );
    }
    let harmony = Scripted::start(
        "harmony",
        &[
            "<|start|>",
            "<|channel|>",
            "<|message|>",
            "<|end|>",
            "<|call|>",
            "<|return|>",
        ],
        &["<|return|>"],
        |_| (),
    );
    // The template needs a description and parameters, which OpenAI's API makes optional.
    for function in [
        json!({"name": "f"}),
        json!({"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}),
        json!({"name": "f", "description": "d"}),
    ] {
        harmony
            .server
            .ok(CHAT, &chat(json!({"tools": tool(function)})));
    }
    for tools in [json!([false]), json!([{"function": 3}])] {
        let body = json!({"messages": [{"role": "user", "content": "x"}], "tools": tools});
        let status = harmony.server.post("/tokenize", &body).status;
        assert!(status == 200 || status == 400, "{status}");
    }
}

#[test]
fn errors_of_templates_do_not_show_folders() {
    let harmony = Scripted::start(
        "harmony",
        &[
            "<|start|>",
            "<|channel|>",
            "<|message|>",
            "<|end|>",
            "<|call|>",
            "<|return|>",
        ],
        &["<|return|>"],
        |_| (),
    );
    let body = chat(json!({"chat_template_kwargs": {"builtin_tools": 7, "model_identity": {}}}));
    let (status, _, message) = refused(&harmony.server, CHAT, &body);
    assert_eq!(status, 400, "{message}");
    assert!(
        !message.contains("/tmp") && !message.contains("/var"),
        "{message}"
    );
    assert!(message.contains("chat template"), "{message}");
}
