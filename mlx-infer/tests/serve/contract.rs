//! Forms of requests and answers that clients of other servers rely on, and the statements of
//! docs/guide/serving.md about them.

use serde_json::{Value, json};

use crate::client::{SERVER, TestServer};
use crate::parameters::{QUESTION, chat, text_of};

#[test]
fn content_and_roles_are_read_as_openai_has_them() {
    let plain = chat(json!({"temperature": 0}));
    let expected = SERVER.ok("/v1/chat/completions", &plain);
    let prompt = |messages: Value| {
        let answer = SERVER.ok(
            "/v1/chat/completions",
            &json!({"messages": messages, "temperature": 0, "max_tokens": 8}),
        );
        (
            answer["usage"]["prompt_tokens"].clone(),
            text_of(&answer).to_owned(),
        )
    };
    let same = (
        expected["usage"]["prompt_tokens"].clone(),
        text_of(&expected).to_owned(),
    );
    assert_eq!(
        prompt(json!([{"role": "user", "content": [{"type": "text", "text": QUESTION}]}])),
        same
    );
    let system = |role: &str| json!([{"role": role, "content": "Be brief."}, {"role": "user", "content": QUESTION}]);
    assert_eq!(prompt(system("developer")), prompt(system("system")));
    // The template refuses a system message after the first turn, so it is moved to the front.
    let turns = json!([
        {"role": "user", "content": "What is 1 + 1?"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": QUESTION},
    ]);
    let with_system = |at: usize| {
        let mut turns = turns.as_array().unwrap().clone();
        turns.insert(at, json!({"role": "system", "content": "Be brief."}));
        json!(turns)
    };
    let front = prompt(with_system(0));
    assert_eq!(prompt(with_system(2)), front);
    let body = json!({"messages": with_system(2), "max_tokens": 8, "temperature": 0});
    let anthropic = SERVER.ok("/v1/messages", &body);
    assert_eq!(anthropic["content"][0]["text"], front.1);
}

/// The error for a conversation that the template refuses contains the template's own words.
#[test]
fn a_templates_refusal_is_told() {
    let twice = json!([{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": twice})),
        ("/v1/messages", json!({"messages": twice, "max_tokens": 3})),
        ("/v1/messages/count_tokens", json!({"messages": twice})),
        ("/v1/responses", json!({"input": twice})),
        ("/tokenize", json!({"messages": twice})),
    ] {
        let answer = SERVER.post(path, &body);
        assert_eq!(answer.status, 400, "{path}");
        let words = "Conversation roles must alternate user/assistant/user/assistant/...";
        assert!(answer.body.contains(words), "{path}: {}", answer.body);
    }
}

/// The answer gives the number of tokens of a stored prefix, in each API's own form.
#[test]
fn kept_prefixes_are_told() {
    let server = TestServer::start(|_| ());
    let long = format!(
        "{} {QUESTION}",
        "The red fox jumps over the hill.".repeat(12)
    );
    let ask = |path: &str, key: &str| {
        let input = json!([{"role": "user", "content": long}]);
        let mut body = json!({"temperature": 0});
        body[key] = input;
        body[if key == "input" {
            "max_output_tokens"
        } else {
            "max_tokens"
        }] = 4.into();
        server.ok(path, &body)["usage"].clone()
    };
    let first = ask("/v1/chat/completions", "messages");
    let total = first["prompt_tokens"].as_u64().unwrap();
    assert_eq!(first["prompt_tokens_details"]["cached_tokens"], 0);
    let again = ask("/v1/chat/completions", "messages");
    let cached = again["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    assert!(cached > 50 && again["prompt_tokens"] == total, "{again}");
    let responses = ask("/v1/responses", "input");
    assert_eq!(
        (
            &responses["input_tokens"],
            &responses["input_tokens_details"]["cached_tokens"]
        ),
        (&json!(total), &json!(cached))
    );
    let messages = ask("/v1/messages", "messages");
    // In this API these tokens are not counted among the input's tokens.
    assert_eq!(
        (
            &messages["input_tokens"],
            &messages["cache_read_input_tokens"]
        ),
        (&json!(total - cached), &json!(cached))
    );
    assert!(server.metric("vllm:prefix_cache_hits_total") >= 3.0 * cached as f64);
}

/// Tools that may not be called are not shown to the model.
#[test]
fn tools_that_may_not_be_called_are_not_in_the_prompt() {
    let tool =
        json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}});
    let tokens = |more: Value| {
        let answer = SERVER.ok("/v1/chat/completions", &chat(more));
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let without = tokens(json!({}));
    assert!(tokens(json!({"tools": [tool]})) > without);
    assert_eq!(
        tokens(json!({"tools": [tool], "tool_choice": "none"})),
        without
    );
}

/// Tools that only the API's own servers run are left out, and a header names them.
#[test]
fn tools_of_other_servers_are_named() {
    let responses = json!({"input": "x", "max_output_tokens": 2, "tools": [
        {"type": "function", "name": "f", "parameters": {"type": "object"}}, {"type": "web_search"}, {"type": "custom", "name": "patch"}]});
    let answer = SERVER.post("/v1/responses", &responses);
    assert_eq!(
        answer.header("x-ignored-params"),
        Some("tools[1]"),
        "{}",
        answer.body
    );
    assert_eq!(answer.json()["tools"].as_array().map(Vec::len), Some(2));
    let messages = json!({"max_tokens": 2, "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}]});
    let answer = SERVER.post("/v1/messages", &messages);
    assert_eq!(
        answer.header("x-ignored-params"),
        Some("tools[0]"),
        "{}",
        answer.body
    );
    let nameless = json!({"input": "x", "tools": [{"type": "function"}]});
    assert_eq!(
        SERVER.post("/v1/responses", &nameless).json()["error"]["message"],
        "tools[0] has no name"
    );
}

/// A token that is a part of a character is shown by its bytes.
#[test]
fn tokens_that_are_no_text_are_shown_by_their_bytes() {
    let body = json!({"prompt": "🦊", "echo": true, "logprobs": 1, "max_tokens": 0});
    let answer = SERVER.ok("/v1/completions", &body);
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "🦊");
    let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
    for byte in "🦊".bytes() {
        let shown = format!("bytes:\\x{byte:02x}");
        assert!(tokens.contains(&json!(shown)), "{shown}: {tokens:?}");
    }
    // The alternatives of each token contain the token itself, as lm-eval expects.
    let top = choice["logprobs"]["top_logprobs"].as_array().unwrap();
    for (token, top) in tokens.iter().zip(top).skip(1) {
        assert!(top.get(token.as_str().unwrap()).is_some(), "{token}: {top}");
    }
}

#[test]
fn texts_conversations_and_templates_are_classified() {
    let labels = json!(["4", "7"]);
    let best = |more: Value| {
        let mut body = json!({"labels": labels});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let answer = SERVER.ok("/v1/classify", &body);
        answer["data"].as_array().unwrap().clone()
    };
    let text = best(json!({"input": "2 + 2 = "}));
    assert_eq!(text.len(), 1);
    let by_template = best(json!({"input": ["2", "3 + 1"], "template": "{} + 2 = "}));
    assert_eq!(by_template.len(), 2);
    assert_eq!(by_template[0]["logprobs"], text[0]["logprobs"]);
    let turn = json!([{"role": "user", "content": "What is 2 + 2?"}]);
    let one = best(json!({"input": turn}));
    let many = best(json!({"input": [turn, turn]}));
    assert_eq!((one.len(), many.len()), (1, 2));
    assert_eq!(
        (&one[0]["label"], &one[0]["label"]),
        (&json!("4"), &many[1]["label"])
    );
    // A text that is too long gets an error of its own.
    let long = best(json!({"input": ["2 + 2 = ", "fox ".repeat(600)]}));
    assert_eq!(long[0]["label"], text[0]["label"]);
    assert!(
        long[1]["error"]["message"]
            .as_str()
            .unwrap()
            .contains("512"),
        "{}",
        long[1]
    );
}

/// Requests of other clients, after their documentation, in addition to those that run in CI.
#[test]
fn requests_of_other_clients_are_understood() {
    let function = json!({"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}});
    for (client, path, body) in [
        (
            "Codex",
            "/v1/responses",
            json!({
                "model": "tiny", "instructions": "You are a coding agent.", "stream": true, "store": false, "parallel_tool_calls": false,
                "input": [
                    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                    {"type": "reasoning", "id": "rs_1", "summary": [], "content": null, "encrypted_content": null},
                    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "shell", "arguments": "{\"command\": [\"ls\"]}"},
                    {"type": "function_call_output", "call_id": "c1", "output": "file"},
                ],
                "tools": [{"type": "function", "name": "shell", "strict": false, "parameters": {"type": "object", "properties": {}}}],
                "tool_choice": "auto", "reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
                "prompt_cache_key": "k", "client_metadata": {"x": "y"}, "max_output_tokens": 4,
            }),
        ),
        (
            "Open WebUI",
            "/v1/chat/completions",
            chat(json!({
                "stream": true, "stream_options": {"include_usage": true}, "min_p": 0.05, "reasoning_effort": "low",
                "logit_bias": {}, "response_format": {"type": "text"}, "user": {"name": "u", "id": "1"},
            })),
        ),
        (
            "Continue",
            "/v1/chat/completions",
            chat(
                json!({"stream": true, "stream_options": {"include_usage": true}, "tools": [{"type": "function", "function": function}], "tool_choice": "auto"}),
            ),
        ),
        (
            "AI SDK",
            "/v1/chat/completions",
            json!({
                "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", "reasoning_content": "because"}, {"role": "user", "content": "go on"}],
                "max_tokens": 60, "temperature": 0, "response_format": {"type": "json_schema", "json_schema": {
                    "name": "response", "strict": true, "schema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                        "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false}}},
            }),
        ),
        (
            "Claude Code",
            "/v1/messages?beta=true",
            json!({
                "model": "tiny", "max_tokens": 4, "stream": true, "metadata": {"user_id": "u"}, "temperature": 1,
                "system": [
                    {"type": "text", "text": "x-anthropic-billing-header: cch=1", "cache_control": {"type": "ephemeral"}},
                    {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
                ],
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
                    {"role": "assistant", "content": [{"type": "thinking", "thinking": "so", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "yes"}]},
                    {"role": "user", "content": "go on"},
                    {"role": "system", "content": "Be brief."},
                ],
                "tools": [{"name": "Bash", "description": "Runs.", "input_schema": function["parameters"], "cache_control": {"type": "ephemeral"}}],
                "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}, "context_management": {"edits": []},
            }),
        ),
    ] {
        check_understood(client, path, &body);
    }
}

fn check_understood(client: &str, path: &str, body: &Value) {
    let headers = [
        ("Content-Type", "application/json"),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "a,b"),
    ];
    let answer = SERVER.send("POST", path, &headers, &body.to_string());
    assert_eq!(answer.status, 200, "{client}: {}", answer.body);
    assert_eq!(answer.header("x-ignored-params"), None, "{client}");
    assert!(
        !answer.body.contains("\"error\":{"),
        "{client}: {}",
        answer.body
    );
}

/// Open WebUI sends the result of a tool with the index of the call, an effort as an object and marks
/// for caches, and asks for titles.
#[test]
fn requests_of_open_webui_are_understood() {
    let parameters = json!({"type": "object", "properties": {}});
    let function = json!({"name": "add", "description": "Adds.", "parameters": parameters});
    let call = json!({"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}});
    for body in [
        json!({
            "model": "tiny", "stream": true, "stream_options": {"include_usage": true}, "reasoning": {"effort": "low"},
            "tools": [{"type": "function", "function": function}],
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "1"},
                {"role": "user", "content": [{"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}}]},
            ],
        }),
        json!({
            "model": "tiny", "stream": false, "max_completion_tokens": 4,
            "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title."}],
        }),
    ] {
        check_understood("Open WebUI", "/v1/chat/completions", &body);
    }
}

/// The table of metrics in docs/guide/deployment.md equals the metrics of the server.
#[test]
fn the_documented_metrics_are_those_that_there_are() {
    let docs = include_str!("../../../docs/guide/deployment.md");
    let (_, table) = docs.split_once("## Metrics").unwrap();
    let table = table.split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.flat_map(|line| {
        line.split('|')
            .nth(1)
            .unwrap()
            .split('`')
            .skip(1)
            .step_by(2)
    });
    let mut documented: Vec<&str> = cells.map(|name| name.split('{').next().unwrap()).collect();
    SERVER.ok("/v1/completions", &json!({"prompt": "x", "max_tokens": 1}));
    let text = SERVER.get("/metrics").body;
    let heads = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut found: Vec<&str> = heads.map(|line| line.split(' ').next().unwrap()).collect();
    documented.sort_unstable();
    found.sort_unstable();
    assert_eq!(documented, found);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        assert!(line.contains("{model_name=\"tiny\",engine=\"0\""), "{line}");
    }
}

/// The tests that README.md names exist.
#[test]
fn the_documented_tests_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = include_str!("README.md");
    let (_, table) = docs
        .split_once("## Faults reported in other servers")
        .unwrap();
    let names: Vec<&str> = table
        .split('`')
        .filter(|text| text.contains("::"))
        .collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let (file, function) = name.split_once("::").unwrap();
        let tests = root.join("tests/serve");
        let (path, word) = match file.rsplit_once('.') {
            Some((_, "rs")) => (root.join(file), "fn"),
            Some((_, "py")) => (tests.join(file), "def"),
            _ => (tests.join(file).with_extension("rs"), "fn"),
        };
        let source =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(source.contains(&format!("{word} {function}(")), "{name}");
    }
}
