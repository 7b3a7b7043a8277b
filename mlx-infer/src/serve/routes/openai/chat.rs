//! `POST /v1/chat/completions`.

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use crate::request::generation::FinishReason;
use crate::request::metrics::Metrics;
use crate::request::sampling::Choice;
use crate::serve::http::background::{self, AskedEvents, BackgroundWriter};
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::{Ask, Fields};
use crate::serve::http::sse;
use crate::serve::http::trace::new_id;
use crate::serve::routes::openai::chunks::{Chunks, StreamUsage, finish_word};
use crate::serve::routes::openai::completions::score;
use crate::serve::routes::openai::logprobs;
use crate::serve::state::{Loaded, Shared, now};
use crate::serve::turn;
use crate::serve::turn::choices::{Choices, RowStep};
use crate::serve::turn::edits::Edits;
use crate::serve::turn::{Call, Delta, End, InputReader, Replies, Turn, Whole, call_id};
use crate::serve::turn::{grammar, params};
use crate::text::chat::Message;
use crate::text::chat::reply::{INPUT, Part};
use crate::text::tokenizer::Tokenizer;

pub(crate) async fn chat(ask: Ask) -> Result<Response, ApiError> {
    let Ask {
        app,
        trace,
        served,
        mut fields,
    } = ask;
    let loaded = &*served.model;
    let turn = read(&mut fields, loaded)?;
    let is_stream = fields.take("stream")?.unwrap_or(false);
    let is_background = fields.take("background")?.unwrap_or(false);
    if is_background && !is_stream {
        return Err(ApiError::bad("background", "background needs stream: true"));
    }
    let usage = StreamUsage::take(&mut fields, is_stream)?;
    let of_prompt = logprobs::of_prompt(&mut fields, is_stream)?;
    let gives_ids = fields.take("return_token_ids")?.unwrap_or(false);
    let mut headers = fields.end(&[])?;
    let turn_tokenizer = loaded.frontend().tokenizer()?.clone();
    let tokenizer = turn.options.logprobs.map(|_| turn_tokenizer.clone());
    let n = turn.n;
    let custom = turn.custom_tools();
    let mut answers = turn.start(&app, loaded, &served, &trace, &mut headers)?;
    let object = match is_stream {
        true => "chat.completion.chunk",
        false => "chat.completion",
    };
    let id = new_id("chatcmpl-");
    let head = json!({"id": id, "object": object, "created": now(), "model": served.name});
    let chunks = Chunks::new(head, usage, trace.clone());
    if is_stream {
        let writer = ChatWriter {
            chunks,
            replies: answers.replies,
            tokenizer,
            custom,
            inputs: vec![None; n],
            prompt: gives_ids.then_some(answers.prompt),
        };
        if is_background {
            let holder = background::start(&app, &id, answers.choices, writer, trace)?;
            return background::stream(&app, &id, holder, None, headers);
        }
        return Ok(sse::response(answers.choices, writer, trace, headers));
    }
    let prompt_logprobs = match of_prompt {
        None => None,
        Some(top) => {
            let prompts = vec![answers.prompt.clone().into()];
            let scores = score(&app, &served, prompts, top).await?;
            let list = |score| logprobs::list_of_prompt(&turn_tokenizer, score, top);
            scores.first().map(list)
        }
    };
    let mut rows: Vec<Whole> = (0..n).map(|_| Whole::default()).collect();
    while let Some(delta) = answers.next().await {
        let delta = delta?;
        rows[delta.row].add(delta);
    }
    let times = match &rows[..] {
        [Whole { end: Some(end), .. }] => Some(timings(&end.metrics)),
        _ => None,
    };
    let choices = rows.into_iter().enumerate();
    let choices = choices.map(|(index, row)| {
        let ids = gives_ids.then(|| row.ids.clone());
        let mut choice = choice(index, row, &custom, tokenizer.as_ref());
        if let Some(ids) = ids {
            choice["token_ids"] = ids.into();
        }
        choice
    });
    let mut document = chunks.whole(choices.collect());
    if gives_ids {
        document["prompt_token_ids"] = answers.prompt.into();
    }
    if let Some(list) = prompt_logprobs {
        document["prompt_logprobs"] = list;
    }
    if let Some(times) = times {
        document["timings"] = times;
    }
    Ok((headers, Json(document)).into_response())
}

/// `GET /v1/chat/completions/ID?stream=true`: the chunks of a background request.
pub(crate) async fn stored(
    State(app): State<Shared>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let asked = AskedEvents::read(query.as_deref(), &headers)?;
    let holder = app.keys.check(&headers)?;
    if !asked.is_stream {
        let message = "an answer of chat completions is read as a stream: add ?stream=true";
        return Err(ApiError::bad("stream", message));
    }
    background::stream(&app, &id, holder, asked.after, HeaderMap::new())
}

/// `DELETE /v1/chat/completions/ID`: ends a background request, and forgets its chunks.
pub(crate) async fn delete(
    State(app): State<Shared>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    let holder = app.keys.check(&headers)?;
    app.background.delete(&id, &holder).await?;
    let object = "chat.completion.deleted";
    Ok(Json(json!({"id": id, "object": object, "deleted": true})))
}

/// Reads the keys of a conversation.
fn read(fields: &mut Fields, loaded: &Loaded) -> Result<Turn, ApiError> {
    let ids: Option<Vec<u32>> = fields.any(&["prompt_token_ids", "input_ids"])?;
    let mut messages: Value = match &ids {
        None => fields.require("messages")?,
        Some(_) => {
            let messages: Option<Value> = fields.take("messages")?;
            let empty = Value::Array(Vec::new());
            if messages.is_some_and(|messages| messages != empty) {
                let message = "prompt_token_ids and messages exclude each other";
                return Err(ApiError::bad("prompt_token_ids", message));
            }
            empty
        }
    };
    read_custom_calls(&mut messages);
    let messages = match &ids {
        Some(_) => Vec::new(),
        None => Message::list_from_json(messages)
            .map_err(|error| ApiError::from(error).with_param("messages"))?,
    };
    let modalities: Vec<String> = fields.take("modalities")?.unwrap_or_default();
    if let Some(other) = modalities.iter().find(|kind| *kind != "text") {
        let message = format!("modalities: answers are text, given {other:?}");
        return Err(ApiError::bad("modalities", message));
    }
    let mut tools = turn::tools(fields)?;
    let tool_choice = turn::tool_choice(fields, &mut tools)?;
    let is_parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    let form = grammar::key(fields);
    let mut options = params::options(fields, loaded)?;
    options.logprobs = logprobs::of_chat(fields)?;
    let names = ["max_completion_tokens", "max_tokens", "n_predict"];
    let max_tokens = params::max_tokens_or_no_limit(fields, &names, 1)?.flatten();
    let mut kwargs = params::kwargs(fields)?;
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        turn::effort(&mut kwargs, &effort);
    }
    let reasoning = turn::take_reasoning(fields, &mut kwargs)?;
    let continues = fields.take("continue_final_message")?.unwrap_or(false);
    let add_generation_prompt: Option<bool> = fields.take("add_generation_prompt")?;
    if continues && add_generation_prompt == Some(true) {
        let message = "continue_final_message and add_generation_prompt exclude each other: the last message is continued, or a new one is begun";
        return Err(ApiError::bad("continue_final_message", message));
    }
    Ok(Turn {
        place: match &ids {
            Some(_) => "prompt_token_ids",
            None => "messages",
        },
        ids,
        messages,
        tools,
        skipped: Vec::new(),
        tool_choice,
        is_parallel,
        continues,
        add_generation_prompt: add_generation_prompt.unwrap_or(true),
        kwargs,
        options,
        form,
        max_tokens,
        budget: turn::budget(fields, &reasoning)?,
        n: params::choices(fields)?,
        edits: Edits::take(fields)?,
        long: fields.long(),
    })
}

/// Turns the calls of custom tools in a history into calls of functions with their text as the only
/// argument.
fn read_custom_calls(messages: &mut Value) {
    let messages = messages.as_array_mut().into_iter().flatten();
    let calls = messages.filter_map(|message| message.get_mut("tool_calls"));
    for call in calls.filter_map(Value::as_array_mut).flatten() {
        if call["type"] == "custom" {
            let arguments = json!({INPUT: call["custom"]["input"]}).to_string();
            let name = call["custom"]["name"].clone();
            *call = json!({
                "id": call["id"], "type": "function", "function": {"name": name, "arguments": arguments},
            });
        }
    }
}

/// The timings of a request in llama.cpp's form, which some clients show.
pub(crate) fn timings(metrics: &Metrics) -> Value {
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    json!({
        "cache_n": metrics.cached_tokens,
        "prompt_n": metrics.prompt_tokens - metrics.cached_tokens,
        "prompt_ms": ms(metrics.prefill),
        "prompt_per_second": metrics.prefill_tokens_per_s(),
        "predicted_n": metrics.decode_tokens,
        "predicted_ms": ms(metrics.decode),
        "predicted_per_second": metrics.decode_tokens_per_s(),
    })
}

fn finish(end: &End) -> Option<&'static str> {
    let is_cut = matches!(end.reason, FinishReason::Length | FinishReason::Repetition);
    match end.has_calls && !is_cut {
        true => Some("tool_calls"),
        false => finish_word(Some(end.reason)),
    }
}

fn logprobs_of(tokens: &[Choice], tokenizer: Option<&Tokenizer>) -> Value {
    match tokenizer {
        None => Value::Null,
        Some(tokenizer) => {
            let content = tokens.iter().map(|token| logprobs::entry(tokenizer, token));
            json!({"content": content.collect::<Vec<_>>(), "refusal": null})
        }
    }
}

/// A whole answer.
fn choice(index: usize, row: Whole, custom: &[String], tokenizer: Option<&Tokenizer>) -> Value {
    let mut message = json!({"role": "assistant", "content": row.content});
    if !row.reasoning.is_empty() {
        message["reasoning_content"] = row.reasoning.into();
    }
    if !row.calls.is_empty() {
        if row.content.is_empty() {
            message["content"] = Value::Null;
        }
        let call = |call: Call| match custom.contains(&call.name) {
            true => json!({
                "id": call.id, "type": "custom",
                "custom": {"name": call.name, "input": InputReader::whole(&call.arguments)},
            }),
            false => json!({
                "id": call.id, "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }),
        };
        message["tool_calls"] = row.calls.into_iter().map(call).collect();
    }
    json!({
        "index": index,
        "message": message,
        "logprobs": logprobs_of(&row.tokens, tokenizer),
        "finish_reason": row.end.as_ref().and_then(finish),
    })
}

/// The `delta` of a chunk.
#[derive(Debug, Default, Serialize)]
struct ChunkDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
}

impl ChunkDelta {
    /// `custom` has the names of the tools whose input is a text, and `input` reads that of the
    /// last call.
    fn of(parts: Vec<Part>, custom: &[String], input: &mut Option<InputReader>) -> Self {
        let mut delta = Self::default();
        let append = |said: &mut Option<String>, text: String| match said {
            Some(said) => said.push_str(&text),
            None => *said = Some(text),
        };
        for part in parts {
            match part {
                Part::Reasoning(text) => append(&mut delta.reasoning_content, text),
                Part::Content(text) => append(&mut delta.content, text),
                Part::CallStart { index, name } => {
                    *input = custom.contains(&name).then(InputReader::default);
                    let (kind, key) = said_under(input.as_ref());
                    delta.tool_calls.push(json!({
                        "index": index, "id": call_id(), "type": kind, kind: {"name": name, key: ""},
                    }));
                }
                Part::CallArguments { index, json } => {
                    let (kind, key) = said_under(input.as_ref());
                    let said = match input {
                        Some(input) => input.push(&json),
                        None => json,
                    };
                    let calls = &mut delta.tool_calls;
                    let begun = calls.last_mut().filter(|call| call["index"] == index);
                    match begun.map(|call| &mut call[kind][key]) {
                        Some(Value::String(begun)) => begun.push_str(&said),
                        _ if said.is_empty() => {}
                        _ => calls.push(json!({"index": index, kind: {key: said}})),
                    }
                }
                Part::CallEnd { .. } => {}
            }
        }
        delta
    }

    fn is_empty(&self) -> bool {
        self.reasoning_content.is_none() && self.content.is_none() && self.tool_calls.is_empty()
    }
}

/// The type of a call, and the key of its text.
fn said_under(input: Option<&InputReader>) -> (&'static str, &'static str) {
    match input {
        Some(_) => ("custom", "input"),
        None => ("function", "arguments"),
    }
}

/// A choice of a chunk.
#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: ChunkDelta,
    logprobs: Value,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

/// Writes the chunks of a stream.
struct ChatWriter {
    chunks: Chunks,
    replies: Replies,
    tokenizer: Option<Tokenizer>,
    /// The names of the tools whose input is a text.
    custom: Vec<String>,
    /// For each row, the reader of its last call's input, if that call is of such a tool.
    inputs: Vec<Option<InputReader>>,
    /// The ids of the prompt, if ids were asked for.
    prompt: Option<Vec<u32>>,
}

impl ChatWriter {
    fn chunk(
        &self,
        index: usize,
        delta: ChunkDelta,
        tokens: &[Choice],
        ids: Vec<u32>,
        end: Option<&End>,
    ) -> String {
        let logprobs = match tokens {
            [] => Value::Null,
            tokens => logprobs_of(tokens, self.tokenizer.as_ref()),
        };
        let choice = ChunkChoice {
            index,
            delta,
            logprobs,
            finish_reason: end.and_then(finish),
            token_ids: (self.prompt.is_some() && !ids.is_empty()).then_some(ids),
        };
        let times = end.filter(|_| self.inputs.len() == 1);
        let times = times.map(|end| timings(&end.metrics));
        let times = times.as_ref().map(|times| ("timings", times));
        let is_first = choice.delta.role.is_some();
        let prompt = self.prompt.as_ref().filter(|_| is_first);
        let prompt = prompt.map(|ids| json!(ids));
        let prompt = prompt.as_ref().map(|ids| ("prompt_token_ids", ids));
        let more: Vec<_> = prompt.into_iter().chain(times).collect();
        self.chunks.event(&choice, &more)
    }
}

impl sse::EventWriter for ChatWriter {
    fn begin(&mut self) -> String {
        let begin = || ChunkDelta {
            role: Some("assistant"),
            content: Some(String::new()),
            ..Default::default()
        };
        (0..self.inputs.len())
            .map(|row| self.chunk(row, begin(), &[], Vec::new(), None))
            .collect()
    }

    fn step(&mut self, step: RowStep, choices: &mut Choices) -> String {
        let Delta {
            row,
            parts,
            tokens,
            ids,
            end,
        } = self.replies.read(step, choices);
        let delta = ChunkDelta::of(parts, &self.custom, &mut self.inputs[row]);
        let has_logprobs = self.tokenizer.is_some() && !tokens.is_empty();
        let has_ids = self.prompt.is_some() && !ids.is_empty();
        let mut text = match delta.is_empty() && !has_logprobs && !has_ids {
            true => String::new(),
            false => self.chunk(row, delta, &tokens, ids, None),
        };
        if let Some(end) = end {
            text += &self.chunk(row, ChunkDelta::default(), &[], Vec::new(), Some(&end));
        }
        text
    }

    fn end(&mut self) -> String {
        self.chunks.end()
    }

    fn fail(&mut self, error: &ApiError) -> String {
        self.chunks.fail(error)
    }
}

impl BackgroundWriter for ChatWriter {
    fn cancel(&mut self) -> String {
        self.chunks.end()
    }
}
