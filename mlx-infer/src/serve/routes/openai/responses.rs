//! `POST /v1/responses`: OpenAI's newer API, without a memory of earlier responses.

mod input;
mod writer;

use axum::Json;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use self::input::conversation;
use self::writer::ResponsesWriter;
use crate::request::generation::FinishReason;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::{Ask, Fields};
use crate::serve::http::sse;
use crate::serve::http::trace::{Usage, new_id};
use crate::serve::routes::openai::logprobs;
use crate::serve::state::{Loaded, now};
use crate::serve::turn;
use crate::serve::turn::edits::Edits;
use crate::serve::turn::{Call, End, InputReader, Turn, Whole};
use crate::serve::turn::{grammar, params};
use crate::text::chat::reply::ToolChoice;

/// Keys of this route that have no effect here.
const HARMLESS: &[&str] = &[
    "max_tool_calls",
    "moderation",
    "stream_options",
    "truncation",
];

pub(crate) async fn responses(ask: Ask) -> Result<Response, ApiError> {
    let Ask {
        app,
        trace,
        served,
        mut fields,
    } = ask;
    let loaded = app.ready()?;
    let (turn, settings) = read(&mut fields, loaded)?;
    let is_stream = fields.take("stream")?.unwrap_or(false);
    let mut headers = fields.end(HARMLESS)?;
    let mut head = json!({
        "id": new_id("resp_"),
        "object": "response",
        "created_at": now(),
        "model": served.name,
        "status": "in_progress",
        "error": null,
        "incomplete_details": null,
        "previous_response_id": null,
        "background": false,
        "store": false,
        "output": [],
        "usage": null,
    });
    if let Value::Object(head) = &mut head {
        head.extend(settings);
    }
    let tokenizer = match turn.options.logprobs {
        Some(_) => Some(loaded.frontend().tokenizer()?.clone()),
        None => None,
    };
    let custom = turn.custom_tools();
    let answers = turn.start(&app, loaded, &served, &trace, &mut headers)?;
    let mut writer = ResponsesWriter::new(head, answers.replies, trace.clone(), tokenizer, custom);
    let mut choices = answers.choices;
    if is_stream {
        return Ok(sse::response(choices, writer, trace, headers));
    }
    while let Some(step) = choices.next().await {
        writer.read(step?, &mut choices);
    }
    Ok((headers, Json(writer.whole())).into_response())
}

/// The number of tokens of a request's prompt.
pub(crate) async fn input_tokens(ask: Ask) -> Result<(HeaderMap, Json<Value>), ApiError> {
    let Ask {
        app, mut fields, ..
    } = ask;
    let loaded = app.ready()?;
    let (turn, _) = read(&mut fields, loaded)?;
    let headers = fields.end(HARMLESS)?;
    let count = turn.count(loaded)?;
    let document = json!({"object": "response.input_tokens", "input_tokens": count});
    Ok((headers, Json(document)))
}

/// The answer to a request for a stored response: the server stores none.
pub(crate) async fn stored(Path(id): Path<String>) -> ApiError {
    let message = format!("there is no response {id:?}: this server stores none");
    ApiError::new(StatusCode::NOT_FOUND, message)
}

/// `usage` of this API.
fn usage(counts: &Usage) -> Value {
    json!({
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.completion,
    })
}

/// Reads the keys. The second value has the settings that the answer repeats, as clients expect.
fn read(fields: &mut Fields, loaded: &Loaded) -> Result<(Turn, Map<String, Value>), ApiError> {
    if let Some(id) = fields.take::<String>("previous_response_id")? {
        let message =
            format!("there is no response {id:?}: this server stores none; send the whole input");
        return Err(
            ApiError::new(StatusCode::NOT_FOUND, message).with_param("previous_response_id")
        );
    }
    for name in ["background", "conversation", "prompt"] {
        let is_off = |value: &Value| matches!(value, Value::Bool(false));
        if fields
            .take::<Value>(name)?
            .is_some_and(|value| !is_off(&value))
        {
            return Err(ApiError::bad(name, format!("{name} is not supported")));
        }
    }
    let instructions: Option<String> = fields.take("instructions")?;
    let messages = conversation(fields.require("input")?, instructions.as_deref())?;
    let (mut tools, skipped) = turn::tools_from(fields, tool)?;
    let tool_choice = turn::tool_choice(fields, &mut tools)?;
    let mut form = grammar::key(fields);
    let mut options = params::options(fields, loaded)?;
    let include: Vec<String> = fields.take("include")?.unwrap_or_default();
    let top: Option<usize> = fields.take("top_logprobs")?;
    let wants_logprobs = include
        .iter()
        .any(|name| name == "message.output_text.logprobs");
    if wants_logprobs || top.is_some_and(|top| top > 0) {
        options.logprobs = Some(logprobs::check_top("top_logprobs", top.unwrap_or(0))?);
    }
    let mut kwargs = params::kwargs(fields)?;
    let reasoning = turn::take_reasoning(fields, &mut kwargs)?;
    let max_tokens = params::max_tokens(fields, &["max_output_tokens"])?;
    let is_parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    let text: Map<String, Value> = fields.take("text")?.unwrap_or_default();
    let format = text.get("format").filter(|format| !format.is_null());
    let format = format.cloned().unwrap_or_else(|| json!({"type": "text"}));
    let constraint = grammar::of_format(&format, "text.format")?;
    if constraint.is_some() {
        (options.grammar, form) = (constraint, "text.format");
    }
    let settings = json!({
        "instructions": instructions,
        "max_output_tokens": max_tokens,
        "parallel_tool_calls": is_parallel,
        "reasoning": {"effort": reasoning.get("effort"), "summary": null},
        "temperature": options.sampling.temperature,
        "text": {"format": format},
        "tool_choice": match &tool_choice {
            ToolChoice::Auto => json!("auto"),
            ToolChoice::None => json!("none"),
            ToolChoice::Required => json!("required"),
            ToolChoice::Named(name) => {
                let is_named = |tool: &&Value| tool["function"]["name"] == **name;
                let is_custom = |tool: &Value| tool["custom"].is_object();
                let is_custom = tools.iter().find(is_named).is_some_and(is_custom);
                json!({"type": if is_custom { "custom" } else { "function" }, "name": name})
            }
        },
        "tools": tools.iter().map(flat).collect::<Vec<_>>(),
        "top_p": options.sampling.top_p,
        "truncation": "disabled",
        "metadata": {},
    });
    let Value::Object(settings) = settings else {
        return Err(ApiError::internal());
    };
    let turn = Turn {
        place: "input",
        ids: None,
        messages,
        tools,
        skipped,
        tool_choice,
        is_parallel,
        continues: false,
        add_generation_prompt: true,
        kwargs,
        options,
        form,
        max_tokens,
        budget: turn::budget(fields, &reasoning)?,
        n: 1,
        edits: Edits::take(fields)?,
        long: fields.long(),
    };
    Ok((turn, settings))
}

/// A function in the form of chat completions; `None` for a tool that only OpenAI's servers run.
fn tool(tool: &Value) -> Result<Option<Value>, &'static str> {
    if !tool["type"].is_string() {
        return Err("has no type");
    }
    match tool["type"].as_str() {
        Some("function") => {}
        Some("custom") => return turn::as_function(tool).map(Some),
        _ => return Ok(None),
    }
    let Some(name) = tool["name"].as_str().filter(|name| !name.is_empty()) else {
        return Err("has no name");
    };
    let mut function = json!({"name": name});
    for key in ["description", "parameters", "strict"] {
        if !tool[key].is_null() {
            function[key] = tool[key].clone();
        }
    }
    Ok(Some(json!({"type": "function", "function": function})))
}

/// The same function in the form of this API.
fn flat(tool: &Value) -> Value {
    let (kind, key) = match tool["custom"].is_object() {
        true => ("custom", "custom"),
        false => ("function", "function"),
    };
    let mut flat = tool[key].clone();
    flat["type"] = kind.into();
    flat
}

/// The item of a call.
fn call_item(id: &str, call: &Call, is_custom: bool) -> Value {
    let (kind, key) = match is_custom {
        true => ("custom_tool_call", "input"),
        false => ("function_call", "arguments"),
    };
    let said = match is_custom {
        true => InputReader::whole(&call.arguments),
        false => call.arguments.clone(),
    };
    json!({
        "id": id, "type": kind, "status": "in_progress", "call_id": call.id, "name": call.name, key: said,
    })
}

/// The items of a whole answer.
fn items(ids: &writer::Ids, whole: &Whole, custom: &[String], logprobs: &Value) -> Vec<Value> {
    let mut items = Vec::new();
    let status = match whole.end.map(|end: End| end.reason) {
        Some(FinishReason::Length | FinishReason::Repetition) => "incomplete",
        _ => "completed",
    };
    if !whole.reasoning.is_empty() {
        items.push(json!({
            "id": ids.reasoning, "type": "reasoning", "status": "completed", "summary": [],
            "content": [{"type": "reasoning_text", "text": whole.reasoning}],
        }));
    }
    if !whole.content.is_empty() || whole.calls.is_empty() {
        items.push(json!({
            "id": ids.message, "type": "message", "role": "assistant", "status": status,
            "content": [{
                "type": "output_text", "text": whole.content, "annotations": [], "logprobs": logprobs,
            }],
        }));
    }
    for (call, id) in whole.calls.iter().zip(&ids.calls) {
        let is_custom = custom.contains(&call.name);
        let mut item = call_item(id, call, is_custom);
        item["status"] = if call.is_whole { "completed" } else { status }.into();
        items.push(item);
    }
    items
}
