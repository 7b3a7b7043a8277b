//! The same request on each route for conversations, and the answers in one form.

use serde_json::{Value, json};

use crate::client::Answer;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Api {
    Chat,
    Responses,
    Messages,
}

pub const APIS: [Api; 3] = [Api::Chat, Api::Responses, Api::Messages];

/// The options of a request.
#[derive(Clone, Copy, Default)]
pub struct Asked {
    /// Whether tools are offered, and how they are to be called: `auto` or `required`.
    pub tools: Option<&'static str>,
    pub has_schema: bool,
    pub no_reasoning: bool,
    pub max_tokens: Option<usize>,
}

/// An answer, in the same form for each route.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<(String, Value)>,
    pub end: &'static str,
}

fn schema() -> Value {
    json!({
        "type": "object", "properties": {"answer": {"enum": [41, 42]}}, "required": ["answer"], "additionalProperties": false,
    })
}

fn parameters() -> Value {
    json!({
        "type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"], "additionalProperties": false,
    })
}

/// The reason of an end in the words of chat completions.
fn end_word(word: &Value) -> &'static str {
    match word.as_str() {
        Some("stop" | "completed" | "end_turn") => "stop",
        Some("tool_calls" | "tool_use") => "tool_calls",
        Some("length" | "incomplete" | "max_tokens") => "length",
        _ => panic!("{word}"),
    }
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub fn parsed(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

impl Api {
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
        }
    }

    fn limit(self) -> &'static str {
        match self {
            Self::Responses => "max_output_tokens",
            _ => "max_tokens",
        }
    }

    pub fn body(self, asked: Asked) -> Value {
        let question = json!([{"role": "user", "content": "What is 20 + 22?"}]);
        let mut body = json!({"temperature": 0});
        body[self.limit()] = asked.max_tokens.unwrap_or(400).into();
        body[if self == Self::Responses {
            "input"
        } else {
            "messages"
        }] = question;
        let named = |key: &str| json!({"name": "add", key: parameters(), "description": "Adds."});
        if let Some(choice) = asked.tools {
            (body["tools"], body["tool_choice"]) = match self {
                Self::Chat => (
                    json!([{"type": "function", "function": named("parameters")}]),
                    choice.into(),
                ),
                Self::Responses => {
                    let mut tool = named("parameters");
                    tool["type"] = "function".into();
                    (json!([tool]), choice.into())
                }
                Self::Messages => {
                    let choice = if choice == "required" { "any" } else { choice };
                    (json!([named("input_schema")]), json!({"type": choice}))
                }
            };
        }
        if asked.has_schema {
            let schema = schema();
            match self {
                Self::Chat => {
                    let inner = json!({"name": "x", "schema": schema, "strict": true});
                    body["response_format"] = json!({"type": "json_schema", "json_schema": inner});
                }
                Self::Responses => {
                    body["text"] =
                        json!({"format": {"type": "json_schema", "name": "x", "schema": schema}});
                }
                Self::Messages => {
                    body["output_config"] =
                        json!({"format": {"type": "json_schema", "schema": schema}});
                }
            }
        }
        if asked.no_reasoning {
            match self {
                Self::Chat => body["reasoning_effort"] = "none".into(),
                Self::Responses => body["reasoning"] = json!({"effort": "none"}),
                Self::Messages => body["thinking"] = json!({"type": "disabled"}),
            }
        }
        body
    }

    pub fn prompt_tokens(self, answer: &Value) -> usize {
        let count = |key: &str| answer["usage"][key].as_u64().unwrap() as usize;
        match self {
            Self::Chat => count("prompt_tokens"),
            Self::Responses => count("input_tokens"),
            Self::Messages => count("input_tokens") + count("cache_read_input_tokens"),
        }
    }

    pub fn whole(self, answer: &Value) -> Reply {
        let mut reply = Reply::default();
        match self {
            Self::Chat => {
                let choice = &answer["choices"][0];
                let message = &choice["message"];
                reply.reasoning = text(&message["reasoning_content"]).to_owned();
                reply.content = text(&message["content"]).to_owned();
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    let arguments = parsed(text(&function["arguments"]));
                    reply
                        .calls
                        .push((text(&function["name"]).to_owned(), arguments));
                }
                reply.end = end_word(&choice["finish_reason"]);
            }
            Self::Responses => {
                for item in answer["output"].as_array().unwrap() {
                    let said = text(&item["content"][0]["text"]);
                    match text(&item["type"]) {
                        "reasoning" => reply.reasoning += said,
                        "message" => reply.content += said,
                        "function_call" => {
                            let arguments = parsed(text(&item["arguments"]));
                            reply
                                .calls
                                .push((text(&item["name"]).to_owned(), arguments));
                        }
                        other => panic!("{other}"),
                    }
                }
                reply.end = match reply.calls.is_empty() {
                    true => end_word(&answer["status"]),
                    false => "tool_calls",
                };
            }
            Self::Messages => {
                for block in answer["content"].as_array().unwrap() {
                    match text(&block["type"]) {
                        "thinking" => {
                            reply.reasoning += text(&block["thinking"]);
                            assert!(!text(&block["signature"]).is_empty());
                        }
                        "text" => reply.content += text(&block["text"]),
                        "tool_use" => {
                            let call = (text(&block["name"]).to_owned(), block["input"].clone());
                            reply.calls.push(call);
                        }
                        other => panic!("{other}"),
                    }
                }
                reply.end = end_word(&answer["stop_reason"]);
            }
        }
        reply
    }

    pub fn streamed(self, answer: &Answer) -> Reply {
        match self {
            Self::Chat => of_chunks(&answer.chunks()),
            Self::Responses => of_responses(&answer.events()),
            Self::Messages => of_messages(&answer.events()),
        }
    }
}

fn of_chunks(chunks: &[Value]) -> Reply {
    let mut reply = Reply::default();
    let mut calls: Vec<[String; 3]> = Vec::new();
    for chunk in chunks {
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        reply.reasoning += text(&delta["reasoning_content"]);
        reply.content += text(&delta["content"]);
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = piece["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                calls.push(Default::default());
                assert_eq!(piece["type"], "function");
            }
            let call = &mut calls[index];
            call[0] += text(&piece["id"]);
            call[1] += text(&piece["function"]["name"]);
            call[2] += text(&piece["function"]["arguments"]);
        }
        if !choice["finish_reason"].is_null() {
            assert_eq!((delta, reply.end), (&json!({}), ""));
            reply.end = end_word(&choice["finish_reason"]);
        }
    }
    let mut ids: Vec<&str> = calls.iter().map(|call| call[0].as_str()).collect();
    ids.dedup();
    assert_eq!(ids.len(), calls.len());
    reply.calls = calls
        .into_iter()
        .map(|[_, name, json]| (name, parsed(&json)))
        .collect();
    reply
}

fn of_responses(events: &[(String, Value)]) -> Reply {
    let mut joined = Reply::default();
    let mut arguments = Vec::new();
    for (at, (name, data)) in events.iter().enumerate() {
        assert_eq!(data["sequence_number"], at);
        match name.as_str() {
            "response.reasoning_text.delta" => joined.reasoning += text(&data["delta"]),
            "response.output_text.delta" => joined.content += text(&data["delta"]),
            "response.output_item.added" if data["item"]["type"] == "function_call" => {
                let name = text(&data["item"]["name"]);
                joined.calls.push((name.to_owned(), Value::Null));
                arguments.push(String::new());
            }
            "response.function_call_arguments.delta" => {
                *arguments.last_mut().unwrap() += text(&data["delta"]);
            }
            // The joined deltas equal this text.
            "response.reasoning_text.done" => assert_eq!(data["text"], joined.reasoning),
            "response.output_text.done" => assert_eq!(data["text"], joined.content),
            _ => {}
        }
    }
    for (call, json) in joined.calls.iter_mut().zip(&arguments) {
        call.1 = parsed(json);
    }
    let (name, last) = events.last().unwrap();
    let whole = Api::Responses.whole(&last["response"]);
    let expected = match whole.end {
        "length" => "response.incomplete",
        _ => "response.completed",
    };
    assert_eq!(name, expected);
    joined.end = whole.end;
    assert_eq!(joined, whole);
    joined
}

fn of_messages(events: &[(String, Value)]) -> Reply {
    let mut reply = Reply::default();
    let mut open = "";
    let mut json = String::new();
    let mut is_signed = false;
    for (name, data) in events {
        match name.as_str() {
            "content_block_start" => {
                open = text(&data["content_block"]["type"]);
                if open == "tool_use" {
                    let name = text(&data["content_block"]["name"]).to_owned();
                    reply.calls.push((name, Value::Null));
                }
            }
            "content_block_delta" => {
                let delta = &data["delta"];
                match (open, text(&delta["type"])) {
                    ("thinking", "thinking_delta") => reply.reasoning += text(&delta["thinking"]),
                    ("thinking", "signature_delta") => is_signed = true,
                    ("text", "text_delta") => reply.content += text(&delta["text"]),
                    ("tool_use", "input_json_delta") => json += text(&delta["partial_json"]),
                    other => panic!("{other:?}"),
                }
            }
            "content_block_stop" if open == "tool_use" => {
                reply.calls.last_mut().unwrap().1 = parsed(&std::mem::take(&mut json));
            }
            "message_delta" => reply.end = end_word(&data["delta"]["stop_reason"]),
            _ => {}
        }
    }
    assert_eq!(is_signed, !reply.reasoning.is_empty());
    reply
}
