//! Anthropic's API.

use serde_json::{Value, json};

use crate::client::SERVER;

fn question() -> Value {
    json!({
        "model": "tiny", "max_tokens": 20, "temperature": 0,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc"},
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What is 20 + 22?"}]}],
    })
}

#[test]
fn a_message_is_answered() {
    let answer = SERVER.ok("/v1/messages?beta=true", &question());
    assert_eq!(answer["type"], "message");
    assert_eq!(answer["content"], json!([{"type": "text", "text": "42"}]));
    assert_eq!(answer["stop_reason"], "end_turn");
    let usage = &answer["usage"];
    let input = usage["input_tokens"].as_u64().unwrap();
    let cached = usage["cache_read_input_tokens"].as_u64().unwrap();
    // The header that changes with every request is not part of the prompt.
    assert_eq!(input + cached, 19);
}

#[test]
fn a_stop_sequence_is_named() {
    let mut body = question();
    body["stop_sequences"] = json!(["7", "2"]);
    let answer = SERVER.ok("/v1/messages", &body);
    assert_eq!(answer["content"][0]["text"], "4");
    assert_eq!(
        (&answer["stop_reason"], &answer["stop_sequence"]),
        (&json!("stop_sequence"), &json!("2"))
    );
    body["max_tokens"] = 1.into();
    body["stop_sequences"] = json!([]);
    let cut = SERVER.ok("/v1/messages", &body);
    assert_eq!(
        (&cut["stop_reason"], &cut["stop_sequence"]),
        (&json!("max_tokens"), &Value::Null)
    );
}

#[test]
fn events_come_in_their_order() {
    let mut body = question();
    body["stream"] = true.into();
    let events = SERVER.post("/v1/messages", &body).events();
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    assert_eq!(
        names,
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert!(
        events
            .iter()
            .all(|(name, data)| data["type"] == name.as_str())
    );
    assert_eq!(events[0].1["message"]["usage"]["input_tokens"], 19);
    let text: String = events
        .iter()
        .filter_map(|(_, data)| data.pointer("/delta/text"))
        .map(|text| text.as_str().unwrap())
        .collect();
    assert_eq!(text, "42");
    let (_, delta) = &events[events.len() - 2];
    assert_eq!(delta["delta"]["stop_reason"], "end_turn");
    assert_eq!(delta["usage"]["output_tokens"], 3);
}

#[test]
fn system_turns_and_results_of_tools_are_read() {
    let body = json!({
        "max_tokens": 8, "temperature": 0,
        "messages": [
            {"role": "user", "content": "What is 20 + 22?"},
            {"role": "user", "content": [{"type": "text", "text": "Be brief."}]},
        ],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        "thinking": {"type": "disabled"}, "output_config": {"effort": "low"},
        "metadata": {"user_id": "x"},
    });
    let answer = SERVER.post("/v1/messages", &body);
    // Gemma's template refuses two turns of the user in a row, in its own words.
    assert!(
        answer.status == 200 || answer.body.contains("alternate"),
        "{}",
        answer.body
    );
}

#[test]
fn errors_have_anthropics_shape() {
    for (body, status, kind, word) in [
        (json!({"messages": []}), 400, "invalid_request_error", ""),
        (
            json!({"messages": [{"role": "user", "content": "x"}]}),
            400,
            "invalid_request_error",
            "max_tokens",
        ),
        (
            json!({"max_tokens": 3, "messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            400,
            "invalid_request_error",
            "images are not supported",
        ),
        (
            json!({"max_tokens": 3, "model": "other", "messages": []}),
            404,
            "not_found_error",
            "tiny, org/tiny",
        ),
    ] {
        let answer = SERVER.post("/v1/messages", &body);
        let document = answer.json();
        assert_eq!(answer.status, status, "{}", answer.body);
        assert_eq!(document["type"], "error");
        assert_eq!(document["error"]["type"], kind);
        assert!(
            document["error"]["message"]
                .as_str()
                .unwrap()
                .contains(word),
            "{}",
            answer.body
        );
        assert_eq!(document["request_id"].as_str(), answer.header("request-id"));
    }
}

#[test]
fn values_of_other_types_are_refused_with_their_place() {
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    for (body, told) in [
        (
            user(json!([{"type": "text", "text": 1}])),
            "a block of type \"text\" needs \"text\"",
        ),
        (
            user(json!([{"type": "tool_result", "content": "x"}])),
            "needs \"tool_use_id\"",
        ),
        (
            user(json!([{"type": "tool_use", "id": "t", "input": {}}])),
            "it names no function",
        ),
        (
            user(json!([{"type": "tool_use", "id": "t", "name": "f", "input": [1]}])),
            "arguments must be a JSON object",
        ),
        (json!({"thinking": "x"}), "thinking: invalid type"),
        (json!({"thinking": {"type": "x"}}), "thinking: its type"),
        (json!({"output_config": "x"}), "output_config: invalid type"),
        (
            json!({"output_config": {"effort": 1}}),
            "output_config: effort",
        ),
        (
            json!({"tools": [{"name": "f", "input_schema": "x"}]}),
            "tools[0] has a schema",
        ),
        (
            json!({"stop_sequences": vec!["a"; 17]}),
            "stop_sequences has 17 texts",
        ),
    ] {
        let mut whole = json!({"max_tokens": 2, "messages": [{"role": "user", "content": "x"}]});
        let given = body.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(given);
        let answer = SERVER.post("/v1/messages", &whole);
        let error = answer.json();
        let message = error["error"]["message"].as_str().unwrap();
        assert_eq!(answer.status, 400, "{message}");
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert!(message.contains(told), "{message}");
    }
}
