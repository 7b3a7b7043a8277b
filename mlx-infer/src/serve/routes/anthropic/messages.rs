//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API.

mod input;
mod writer;

use axum::Json;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use self::input::{convert, system_text, tool, tool_choice};
use self::writer::MessagesWriter;
use crate::request::generation::FinishReason;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::{Ask, Fields};
use crate::serve::http::sse;
use crate::serve::http::trace::{Usage, new_id};
use crate::serve::state::Loaded;
use crate::serve::turn;
use crate::serve::turn::edits::Edits;
use crate::serve::turn::{End, Turn, Whole};
use crate::serve::turn::{grammar, params};
use crate::text::chat::Message;

/// Keys of this route that have no effect here.
const HARMLESS: &[&str] = &["container", "context_management", "inference_geo", "betas"];

pub(crate) async fn messages(ask: Ask) -> Result<Response, ApiError> {
    let Ask {
        app,
        trace,
        served,
        mut fields,
    } = ask;
    let loaded = &*served.model;
    let mut turn = read(&mut fields, loaded, true)?;
    turn.max_tokens = params::max_tokens(&mut fields, &["max_tokens"])?;
    if turn.max_tokens.is_none() {
        return Err(ApiError::bad("max_tokens", "max_tokens is missing"));
    }
    let stop = turn.options.stop.clone();
    let is_stream = fields.take("stream")?.unwrap_or(false);
    let mut headers = fields.end(HARMLESS)?;
    let mut answers = turn.start(&app, loaded, &served, &trace, &mut headers)?;
    let head = json!({
        "id": new_id("msg_"), "type": "message", "role": "assistant", "model": served.name,
        "content": [], "stop_reason": null, "stop_sequence": null,
    });
    if is_stream {
        let writer = MessagesWriter {
            head,
            prompt: answers.prompt.len(),
            stop,
            replies: answers.replies,
            open: None,
            blocks: 0,
            end: None,
            trace: trace.clone(),
        };
        return Ok(sse::response(answers.choices, writer, trace, headers));
    }
    let mut whole = Whole::default();
    while let Some(delta) = answers.next().await {
        whole.add(delta?);
    }
    let mut document = head;
    document["stop_reason"] = stop_reason(whole.end.as_ref()).into();
    document["stop_sequence"] = stop_sequence(whole.end.as_ref(), &stop).into();
    document["content"] = blocks(whole).into();
    document["usage"] = usage(&trace.usage());
    Ok((headers, Json(document)).into_response())
}

pub(crate) async fn count_tokens(ask: Ask) -> Result<(HeaderMap, Json<Value>), ApiError> {
    let Ask {
        served, mut fields, ..
    } = ask;
    let loaded = &*served.model;
    let turn = read(&mut fields, loaded, false)?;
    let headers = fields.end(HARMLESS)?;
    let count = turn.count(loaded)?;
    Ok((headers, Json(json!({"input_tokens": count}))))
}

/// Anthropic's `usage`: `input_tokens` does not count tokens of stored prefixes.
fn usage(counts: &Usage) -> Value {
    json!({
        "input_tokens": counts.prompt - counts.cached,
        "cache_read_input_tokens": counts.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": counts.completion,
    })
}

fn stop_reason(end: Option<&End>) -> Option<&'static str> {
    end.map(|end| match end.reason {
        // This API has no word for an answer that is cut because it repeats itself.
        FinishReason::Length | FinishReason::Repetition => "max_tokens",
        _ if end.has_calls => "tool_use",
        FinishReason::Stop if end.stopped_at.is_some() => "stop_sequence",
        FinishReason::Stop | FinishReason::Cancelled => "end_turn",
    })
}

fn stop_sequence<'s>(end: Option<&End>, stop: &'s [String]) -> Option<&'s str> {
    let index = end?.stopped_at?;
    stop.get(index).map(String::as_str)
}

fn blocks(whole: Whole) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !whole.reasoning.is_empty() {
        blocks.push(json!({
            "type": "thinking", "thinking": whole.reasoning, "signature": SIGNATURE,
        }));
    }
    if !whole.content.is_empty() || whole.calls.is_empty() {
        blocks.push(json!({"type": "text", "text": whole.content}));
    }
    for call in whole.calls {
        let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        blocks.push(json!({
            "type": "tool_use", "id": format!("toolu_{}", call.id), "name": call.name, "input": input,
        }));
    }
    blocks
}

/// The signature of thinking. Clients drop a turn whose thinking has no signature. This server does
/// not check it.
const SIGNATURE: &str = "mlx-infer";

/// Reads a conversation, which is answered or whose tokens are counted. `max_tokens` and `stream` are left to the caller.
fn read(fields: &mut Fields, loaded: &Loaded, is_answered: bool) -> Result<Turn, ApiError> {
    let system: Option<Value> = fields.take("system")?;
    let given: Vec<Value> = fields.require("messages")?;
    let mut conversation = Vec::new();
    if let Some(system) = system {
        let text = system_text(&system)?;
        if !text.is_empty() {
            conversation.push(Message::new("system", text));
        }
    }
    for (at, message) in given.iter().enumerate() {
        convert(&mut conversation, message).map_err(|what| {
            let message = format!("messages[{at}]: {what}");
            ApiError::bad("messages", message)
        })?;
    }
    let (tools, skipped) = turn::tools_from(fields, tool)?;
    // Their tools would be called by Anthropic's servers.
    if fields
        .take::<Vec<Value>>("mcp_servers")?
        .is_some_and(|servers| !servers.is_empty())
    {
        fields.without_effect("mcp_servers")?;
    }
    let (tool_choice, is_parallel) = tool_choice(fields, &tools)?;
    let stop = params::stop_strings(fields, "stop_sequences")?;
    let mut form = grammar::key(fields);
    let mut options = params::options(fields, loaded)?;
    options.stop = stop.unwrap_or(options.stop);
    let mut kwargs = Map::new();
    let mut budget = turn::budget(fields, &Map::new())?;
    if let Some(thinking) = fields.take::<Map<String, Value>>("thinking")? {
        let is_on = match thinking.get("type").and_then(Value::as_str) {
            Some("enabled" | "adaptive") => true,
            Some("disabled") => false,
            _ => {
                let message = "thinking: its type must be enabled, adaptive or disabled";
                return Err(ApiError::bad("thinking", message));
            }
        };
        // Thinking is never shortened or left out.
        let is_whole = thinking
            .get("display")
            .is_none_or(|how| how == "summarized");
        let known = [
            &["type", "budget_tokens"][..],
            if is_whole { &["display"] } else { &[] },
        ];
        fields.name_others("thinking", &thinking, &known.concat())?;
        kwargs.insert("enable_thinking".to_owned(), is_on.into());
        // Without reasoning there is nothing to limit.
        if is_on {
            let limit = turn::budget_of_thinking(&thinking)?;
            let can_reason = limit.is_none() || loaded.reply_format()?.has_reasoning();
            // Claude Code sends a budget to every model. A model that does not reason keeps to it.
            if !can_reason && is_answered {
                fields.without_effect("thinking.budget_tokens")?;
            }
            budget = limit.filter(|_| can_reason).or(budget);
        }
    }
    if let Some(config) = fields.take::<Map<String, Value>>("output_config")? {
        fields.name_others("output_config", &config, &["effort", "format"])?;
        turn::take_effort(&mut kwargs, "output_config", config.get("effort"))?;
        if let Some(format) = config.get("format").filter(|format| !format.is_null()) {
            form = "output_config.format";
            options.grammar = grammar::of_format(fields, format, form)?;
        }
    }
    // If the last message is the assistant's, the answer continues it.
    let continues = conversation
        .last()
        .is_some_and(|last| last.role() == Some("assistant") && last.text().is_some());
    Ok(Turn {
        place: "messages",
        ids: None,
        messages: conversation,
        tools,
        skipped,
        tool_choice,
        is_parallel,
        continues,
        add_generation_prompt: true,
        kwargs,
        options,
        form,
        max_tokens: None,
        budget,
        n: 1,
        edits: Edits::take(fields)?,
        long: fields.long(),
    })
}
