//! OpenAI's responses.

use serde_json::{Value, json};

use crate::client::SERVER;

#[test]
fn an_input_is_answered() {
    for input in [
        json!("What is 20 + 22?"),
        json!([{"role": "user", "content": "What is 20 + 22?"}]),
        json!([{"type": "message", "role": "user",
                "content": [{"type": "input_text", "text": "What is 20 + 22?"}]}]),
    ] {
        let body = json!({
            "input": input, "temperature": 0, "store": true, "include": ["message.output_text.logprobs"],
            "tools": [{"type": "web_search"}], "prompt_cache_key": "k", "client_metadata": {},
        });
        let answer = SERVER.ok("/v1/responses", &body);
        assert_eq!(answer["status"], "completed");
        assert_eq!(answer["store"], false);
        let part = &answer["output"][0]["content"][0];
        assert_eq!(
            (&part["type"], &part["text"]),
            (&json!("output_text"), &json!("42"))
        );
        // The end token is counted, and is not part of the text.
        assert_eq!(part["logprobs"].as_array().unwrap().len(), 2);
        assert_eq!(answer["usage"]["output_tokens"], 3);
    }
}

#[test]
fn events_build_the_response() {
    let body = json!({
        "input": "What is 20 + 22?", "temperature": 0, "stream": true, "include": ["message.output_text.logprobs"],
    });
    let events = SERVER.post("/v1/responses", &body).events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let named = |name: &str| names.iter().filter(|&&found| found == name).count();
    for name in [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ] {
        assert_eq!(named(name), 1, "{name} in {names:?}");
    }
    for (at, (name, data)) in events.iter().enumerate() {
        assert_eq!(data["sequence_number"], at);
        assert_eq!(data["type"], name.as_str());
    }
    let deltas = events
        .iter()
        .filter(|(name, _)| name == "response.output_text.delta");
    let text: String = deltas
        .map(|(_, data)| data["delta"].as_str().unwrap())
        .collect();
    assert_eq!(text, "42");
    let deltas = events.iter().filter(|(_, data)| data["delta"].is_string());
    let told: Vec<&Value> = deltas
        .flat_map(|(_, data)| data["logprobs"].as_array().unwrap())
        .map(|entry| &entry["token"])
        .collect();
    // The end token is among them if the step of the last text produced it.
    assert_eq!(told[..2], ["4", "2"]);
    let whole = &events.last().unwrap().1["response"];
    assert_eq!(whole["output"][0]["content"][0]["text"], "42");
    let ids = events.iter().filter_map(|(_, data)| data.get("item_id"));
    assert!(ids.into_iter().all(|id| *id == whole["output"][0]["id"]));
}

#[test]
fn an_answer_that_is_cut_is_incomplete() {
    let body = json!({"input": "What is 20 + 22?", "temperature": 0, "max_output_tokens": 1});
    let answer = SERVER.ok("/v1/responses", &body);
    assert_eq!(answer["status"], "incomplete");
    assert_eq!(answer["incomplete_details"]["reason"], "max_output_tokens");
}

#[test]
fn what_would_need_a_memory_is_refused() {
    for (body, status, param) in [
        (
            json!({"input": "x", "previous_response_id": "resp_1"}),
            404,
            "previous_response_id",
        ),
        (json!({"input": "x", "background": 1}), 400, "background"),
        (
            json!({"input": [{"type": "item_reference", "id": "x"}]}),
            400,
            "input",
        ),
        (json!({}), 400, "input"),
    ] {
        let answer = SERVER.post("/v1/responses", &body);
        assert_eq!(answer.status, status, "{}", answer.body);
        assert_eq!(answer.json()["error"]["param"], param);
    }
    assert_eq!(SERVER.get("/v1/responses/resp_1").status, 404);
    assert_eq!(
        SERVER.ok("/v1/responses", &json!({"input": "x", "background": false}))["error"],
        Value::Null
    );
}
