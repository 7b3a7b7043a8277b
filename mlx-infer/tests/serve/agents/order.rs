//! The order of a stream's events, to which the clients of each API hold.

use serde_json::Value;

use crate::client::Answer;
use crate::forms::api::{Api, text};

/// Panics if the events of a stream are not in their order.
pub fn check(api: Api, answer: &Answer) {
    match api {
        Api::Messages => messages(&answer.events()),
        Api::Responses => responses(&answer.events()),
        Api::Chat => chunks(&answer.chunks()),
    }
}

fn messages(events: &[(String, Value)]) {
    let [(first, start), between @ .., (delta, end), (last, _)] = events else {
        panic!("{events:?}");
    };
    assert_eq!(
        [first, delta, last],
        ["message_start", "message_delta", "message_stop"]
    );
    let message = &start["message"];
    for key in [
        "id",
        "type",
        "role",
        "model",
        "content",
        "stop_reason",
        "stop_sequence",
        "usage",
    ] {
        assert!(message.get(key).is_some(), "no {key} in {message}");
    }
    assert!(message["usage"]["input_tokens"].is_u64() && end["usage"]["output_tokens"].is_u64());
    let (mut blocks, mut is_open) = (0, false);
    for (name, data) in between {
        assert_eq!(data["type"], name.as_str());
        match name.as_str() {
            "ping" => continue,
            "content_block_start" => {
                assert!(!is_open, "{data}");
                is_open = true;
                blocks += 1;
            }
            "content_block_delta" => assert!(is_open, "{data}"),
            "content_block_stop" => {
                assert!(is_open, "{data}");
                is_open = false;
            }
            other => panic!("{other}"),
        }
        assert_eq!(data["index"], blocks - 1, "{data}");
    }
    assert!(blocks > 0 && !is_open);
}

fn responses(events: &[(String, Value)]) {
    let [(first, _), (second, _), between @ .., (last, end)] = events else {
        panic!("{events:?}");
    };
    assert_eq!(
        [first, second, last],
        [
            "response.created",
            "response.in_progress",
            "response.completed"
        ]
    );
    let (mut done, mut open) = (Vec::new(), Value::Null);
    for (name, data) in between {
        assert_eq!(data["type"], name.as_str());
        assert_eq!(data["output_index"], done.len(), "{data}");
        match name.as_str() {
            "response.output_item.added" => {
                assert!(open.is_null(), "{data}");
                open = data["item"]["id"].clone();
            }
            "response.output_item.done" => {
                assert_eq!(data["item"]["id"], open);
                done.push(data["item"].clone());
                open = Value::Null;
            }
            _ => assert_eq!(data["item_id"], open, "{name}"),
        }
    }
    assert_eq!(end["response"]["output"], Value::Array(done));
    assert!(end["response"]["usage"]["input_tokens"].is_u64());
}

fn chunks(chunks: &[Value]) {
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let mut ends = 0;
    for chunk in chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert!(chunk["created"].is_u64() && chunk["model"].is_string());
        let Some(choice) = chunk["choices"].get(0) else {
            // The last chunk has the usage alone.
            assert!(
                chunk["usage"]["prompt_tokens"].is_u64() && ends == 1,
                "{chunk}"
            );
            continue;
        };
        assert_eq!(ends, 0, "a choice after its end: {chunk}");
        ends += usize::from(!text(&choice["finish_reason"]).is_empty());
    }
    assert_eq!(ends, 1);
}
