//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::choices::{Choices, Step};
use super::error::ApiError;
use super::fields::{Fields, name_ignored};
use super::state::{Loaded, Shared};
use super::trace::{Trace, Usage, new_id};
use super::turn::{self, Delta, End, Replies, Turn, Whole, call_id};
use super::{grammar, params, sse};
use crate::generate::FinishReason;
use crate::text::chat::Message;
use crate::text::chat::reply::{Part, ToolChoice};

/// Keys of this route that change nothing here.
const HARMLESS: &[&str] = &["container", "context_management", "inference_geo", "mcp_servers", "betas"];

/// Begins a block of the system text that Claude Code sends. It changes with every request, and no prefix would ever be found again.
const BILLING: &str = "x-anthropic-billing-header";

pub(super) async fn messages(
    State(app): State<Shared>,
    Extension(trace): Extension<Trace>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let model = app.served_name(fields.model()?.as_deref())?.to_owned();
    let loaded = app.ready()?;
    let mut turn = read(&mut fields, loaded)?;
    let max_tokens: usize = fields.require("max_tokens")?;
    if max_tokens == 0 {
        let message = "max_tokens must be at least 1, given 0";
        return Err(ApiError::bad("max_tokens", message));
    }
    turn.max_tokens = Some(max_tokens);
    let stop = turn.options.stop.clone();
    let is_stream = fields.take("stream")?.unwrap_or(false);
    let mut headers = fields.end(HARMLESS)?;
    let mut answers = turn.start(&app, loaded, &trace)?;
    name_ignored(&mut headers, &answers.ignored);
    let head = json!({
        "id": new_id("msg_"), "type": "message", "role": "assistant", "model": model,
        "content": [], "stop_reason": null, "stop_sequence": null,
    });
    if is_stream {
        let writer = Writer {
            head,
            prompt: answers.prompt,
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

pub(super) async fn count_tokens(
    State(app): State<Shared>,
    mut fields: Fields,
) -> Result<(HeaderMap, Json<Value>), ApiError> {
    app.served_name(fields.model()?.as_deref())?;
    let loaded = app.ready()?;
    let turn = read(&mut fields, loaded)?;
    let headers = fields.end(HARMLESS)?;
    let count = turn.count(loaded)?;
    Ok((headers, Json(json!({"input_tokens": count}))))
}

/// Anthropic's `usage`: tokens of kept prefixes are not among `input_tokens`.
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
        _ if end.has_calls => "tool_use",
        FinishReason::Stop if end.stopped_at.is_some() => "stop_sequence",
        FinishReason::Stop | FinishReason::Cancelled => "end_turn",
        FinishReason::Length => "max_tokens",
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

/// Clients drop a turn whose thinking has none. It proves nothing here.
const SIGNATURE: &str = "mlx-infer";

/// Reads a conversation. `max_tokens` and `stream` are left to the caller.
fn read(fields: &mut Fields, loaded: &Loaded) -> Result<Turn, ApiError> {
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
    let tools = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
    let tools = tools.iter().map(tool).collect::<Result<Vec<_>, _>>()?;
    let tools: Vec<Value> = tools.into_iter().flatten().collect();
    let (tool_choice, is_parallel) = tool_choice(fields, &tools)?;
    let stop: Option<Vec<String>> = fields.take("stop_sequences")?;
    let mut options = params::options(fields, &loaded.defaults)?;
    if let Some(stop) = stop {
        options.stop = stop.into_iter().filter(|text| !text.is_empty()).collect();
    }
    let mut kwargs = Map::new();
    if let Some(thinking) = fields.take::<Value>("thinking")? {
        let is_on = thinking["type"] != "disabled";
        kwargs.insert("enable_thinking".to_owned(), is_on.into());
    }
    if let Some(config) = fields.take::<Value>("output_config")? {
        if let Some(effort) = config["effort"].as_str() {
            turn::effort(&mut kwargs, effort);
        }
        if !config["format"].is_null() {
            options.grammar = grammar::of_format(&config["format"], "output_config.format")?;
        }
    }
    // A conversation that ends with the assistant's own words is gone on with.
    let continues = conversation
        .last()
        .is_some_and(|last| last.role() == Some("assistant") && last.text().is_some());
    Ok(Turn {
        messages: conversation,
        tools,
        tool_choice,
        is_parallel,
        continues,
        add_generation_prompt: true,
        kwargs,
        options,
        max_tokens: None,
        n: 1,
    })
}

/// The text of `system`: a text, or blocks of text.
fn system_text(system: &Value) -> Result<String, ApiError> {
    match system {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let texts = blocks.iter().map(|block| block["text"].as_str());
            let texts: Option<Vec<&str>> = texts.collect();
            let texts = texts.ok_or_else(|| {
                ApiError::bad("system", "system: expected blocks of text")
            })?;
            let kept = texts.into_iter().filter(|text| !text.starts_with(BILLING));
            Ok(kept.collect::<Vec<_>>().join("\n\n"))
        }
        _ => Err(ApiError::bad("system", "system: expected a text or blocks of text")),
    }
}

/// Adds a message in OpenAI's form. Results of tools become messages of their own, before the text of the same turn.
fn convert(conversation: &mut Vec<Message>, message: &Value) -> Result<(), String> {
    let role = message["role"].as_str().ok_or("it has no role")?;
    if !["user", "assistant", "system"].contains(&role) {
        return Err(format!("its role must be user, assistant or system, given {role:?}"));
    }
    let blocks = match &message["content"] {
        Value::String(text) => {
            conversation.push(Message::new(role, text.as_str()));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        _ => return Err("its content must be a text or a list of blocks".to_owned()),
    };
    let (mut text, mut thinking, mut calls) = (Vec::new(), String::new(), Vec::new());
    for block in blocks {
        let word = |name: &str| block[name].as_str().unwrap_or_default();
        match word("type") {
            "text" => text.push(word("text").to_owned()),
            "thinking" => thinking.push_str(word("thinking")),
            // Nobody but its maker can read it.
            "redacted_thinking" => {}
            "tool_use" => calls.push(json!({
                "id": block["id"], "type": "function",
                "function": {"name": block["name"], "arguments": block["input"]},
            })),
            "tool_result" => {
                let result = result_text(&block["content"])?;
                let result = Message::new("tool", result);
                conversation.push(result.with("tool_call_id", block["tool_use_id"].clone()));
            }
            "image" | "document" => {
                return Err(format!("{}s are not supported: this server reads text", word("type")));
            }
            other => return Err(format!("a block of type {other:?} is not known")),
        }
    }
    if text.is_empty() && thinking.is_empty() && calls.is_empty() {
        return Ok(());
    }
    let mut converted = Message::new(role, text.join("\n"));
    if !thinking.is_empty() {
        converted = converted.with("reasoning_content", thinking);
    }
    if !calls.is_empty() {
        converted = converted.with("tool_calls", calls);
    }
    conversation.push(converted);
    Ok(())
}

fn result_text(content: &Value) -> Result<String, String> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| part["text"].as_str());
            let texts: Option<Vec<&str>> = texts.collect();
            let message = "results of tools must be texts: images are not supported";
            Ok(texts.ok_or(message)?.join("\n"))
        }
        _ => Err("the result of a tool must be a text or a list of parts".to_owned()),
    }
}

/// A tool in OpenAI's form; `None` for one that only Anthropic's servers run.
fn tool(tool: &Value) -> Result<Option<Value>, ApiError> {
    let kind = tool["type"].as_str().unwrap_or("custom");
    if kind != "custom" {
        return Ok(None);
    }
    let Some(name) = tool["name"].as_str().filter(|name| !name.is_empty()) else {
        return Err(ApiError::bad("tools", "a tool has no name"));
    };
    let mut function = json!({"name": name, "parameters": tool["input_schema"]});
    if let Some(text) = tool["description"].as_str() {
        function["description"] = text.into();
    }
    Ok(Some(json!({"type": "function", "function": function})))
}

fn tool_choice(fields: &mut Fields, tools: &[Value]) -> Result<(ToolChoice, bool), ApiError> {
    let Some(choice) = fields.take::<HashMap<String, Value>>("tool_choice")? else {
        return Ok((ToolChoice::Auto, true));
    };
    let kind = choice.get("type").and_then(Value::as_str).unwrap_or("auto");
    let found = match kind {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" if !tools.is_empty() => ToolChoice::Required,
        "tool" => {
            let name = choice.get("name").and_then(Value::as_str).unwrap_or("");
            let is_known = tools.iter().any(|tool| tool["function"]["name"] == name);
            if !is_known {
                let message = format!("tool_choice asks for {name:?}, which is not among tools");
                return Err(ApiError::bad("tool_choice", message));
            }
            ToolChoice::Named(name.to_owned())
        }
        kind => {
            let message = format!("tool_choice {kind:?} is not known, or needs tools");
            return Err(ApiError::bad("tool_choice", message));
        }
    };
    let is_single = choice.get("disable_parallel_tool_use") == Some(&Value::Bool(true));
    Ok((found, !is_single))
}

/// What the open block of a stream holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    Tool,
}

/// Writes the events of a stream.
struct Writer {
    head: Value,
    prompt: usize,
    stop: Vec<String>,
    replies: Replies,
    open: Option<Open>,
    blocks: usize,
    end: Option<End>,
    trace: Trace,
}

impl Writer {
    fn event(name: &str, mut json: Value) -> String {
        json["type"] = name.into();
        sse::event(name, &json)
    }

    fn delta(&self, delta: Value) -> String {
        let index = self.blocks - 1;
        Self::event("content_block_delta", json!({"index": index, "delta": delta}))
    }

    fn start(&mut self, kind: Open, block: Value) -> String {
        let mut text = self.stop();
        self.open = Some(kind);
        let start = json!({"index": self.blocks, "content_block": block});
        text += &Self::event("content_block_start", start);
        self.blocks += 1;
        text
    }

    /// Ends the open block.
    fn stop(&mut self) -> String {
        let Some(kind) = self.open.take() else {
            return String::new();
        };
        let mut text = String::new();
        if kind == Open::Thinking {
            text += &self.delta(json!({"type": "signature_delta", "signature": SIGNATURE}));
        }
        text + &Self::event("content_block_stop", json!({"index": self.blocks - 1}))
    }

    fn part(&mut self, part: Part) -> String {
        match part {
            Part::Reasoning(text) => {
                let mut out = String::new();
                if self.open != Some(Open::Thinking) {
                    let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                    out += &self.start(Open::Thinking, block);
                }
                out + &self.delta(json!({"type": "thinking_delta", "thinking": text}))
            }
            Part::Content(text) => {
                let mut out = String::new();
                if self.open != Some(Open::Text) {
                    out += &self.start(Open::Text, json!({"type": "text", "text": ""}));
                }
                out + &self.delta(json!({"type": "text_delta", "text": text}))
            }
            Part::CallStart { name, .. } => {
                let id = format!("toolu_{}", call_id());
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.start(Open::Tool, block)
            }
            Part::CallArguments { json, .. } => {
                self.delta(json!({"type": "input_json_delta", "partial_json": json}))
            }
            Part::CallEnd { .. } => self.stop(),
        }
    }
}

impl sse::Writer for Writer {
    fn begin(&mut self) -> String {
        let mut message = self.head.clone();
        let counts = Usage {
            prompt: self.prompt,
            ..Usage::default()
        };
        message["usage"] = usage(&counts);
        let ping = Self::event("ping", json!({}));
        Self::event("message_start", json!({"message": message})) + &ping
    }

    fn step(&mut self, step: Step, choices: &mut Choices) -> String {
        let Delta { parts, end, .. } = self.replies.read(step, choices);
        self.end = end.or(self.end);
        parts.into_iter().map(|part| self.part(part)).collect()
    }

    fn end(&mut self) -> String {
        let mut text = String::new();
        if self.blocks == 0 {
            text += &self.start(Open::Text, json!({"type": "text", "text": ""}));
        }
        text += &self.stop();
        let delta = json!({
            "delta": {
                "stop_reason": stop_reason(self.end.as_ref()),
                "stop_sequence": stop_sequence(self.end.as_ref(), &self.stop),
            },
            "usage": usage(&self.trace.usage()),
        });
        text += &Self::event("message_delta", delta);
        text + &Self::event("message_stop", json!({}))
    }

    fn fail(&mut self, error: &ApiError) -> String {
        sse::event("error", &error.anthropic(&self.trace.id))
    }
}
