//! `/v1/responses`: OpenAI's newer API. The only responses that are stored are those of background
//! requests.

mod input;
mod sealed;
mod tools;
mod writer;

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use self::input::conversation;
use self::tools::{OwnTools, shown, tool};
use self::writer::ResponsesWriter;
use crate::request::generation::FinishReason;
use crate::serve::http::background::{self, AskedEvents};
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::{Ask, Fields};
use crate::serve::http::guard::Holder;
use crate::serve::http::sse;
use crate::serve::http::trace::{Usage, new_id};
use crate::serve::routes::openai::logprobs;
use crate::serve::state::{Loaded, Shared, now};
use crate::serve::turn;
use crate::serve::turn::edits::Edits;
use crate::serve::turn::{End, Turn, Whole};
use crate::serve::turn::{grammar, params};
use crate::text::chat::reply::ToolChoice;

/// Keys of this route that have no effect here.
const HARMLESS: &[&str] = &["max_tool_calls", "moderation", "stream_options"];

/// Values of `include`. Those of tools that are called by OpenAI's servers have nothing to include.
const INCLUDES: &[&str] = &[
    LOGPROBS,
    sealed::ASKED,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
];
const LOGPROBS: &str = "message.output_text.logprobs";

pub(crate) async fn responses(ask: Ask) -> Result<Response, ApiError> {
    let Ask {
        app,
        trace,
        served,
        mut fields,
    } = ask;
    let loaded = &*served.model;
    let (turn, settings, seals) = read(&mut fields, loaded)?;
    let is_stream = fields.take("stream")?.unwrap_or(false);
    let is_background = fields.take("background")?.unwrap_or(false);
    let mut headers = fields.end(HARMLESS)?;
    let id = new_id("resp_");
    let mut head = json!({
        "id": id,
        "object": "response",
        "created_at": now(),
        "model": served.name,
        "status": "in_progress",
        "error": null,
        "incomplete_details": null,
        "previous_response_id": null,
        "background": is_background,
        "store": is_background,
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
    let own = OwnTools::of(&turn.tools);
    let answers = turn.start(&app, loaded, &served, &trace, &mut headers)?;
    let mut writer = ResponsesWriter::new(head, answers.replies, trace.clone(), tokenizer, own);
    writer.seals = seals;
    let mut choices = answers.choices;
    if is_background {
        let begun = writer.head().clone();
        let holder = background::start(&app, &id, choices, writer, trace)?;
        return match is_stream {
            true => background::stream(&app, &id, holder, None, headers),
            false => Ok((headers, Json(begun)).into_response()),
        };
    }
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
        served, mut fields, ..
    } = ask;
    let loaded = &*served.model;
    let (turn, ..) = read(&mut fields, loaded)?;
    let headers = fields.end(HARMLESS)?;
    let count = turn.count(loaded)?;
    let document = json!({"object": "response.input_tokens", "input_tokens": count});
    Ok((headers, Json(document)))
}

/// `GET /v1/responses/ID`: the response of a background request, or with `stream=true` its events.
pub(crate) async fn stored(
    State(app): State<Shared>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let asked = AskedEvents::read(query.as_deref(), &headers)?;
    let holder = app.keys.check(&headers)?;
    match asked.is_stream {
        true => background::stream(&app, &id, holder, asked.after, HeaderMap::new()),
        false => Ok(Json(latest(&app, &id, &holder)?).into_response()),
    }
}

/// `POST /v1/responses/ID/cancel`: ends a background request, and returns its response.
pub(crate) async fn cancel(
    State(app): State<Shared>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    let holder = app.keys.check(&headers)?;
    app.background.cancel(&id, &holder).await?;
    latest(&app, &id, &holder).map(Json)
}

/// `DELETE /v1/responses/ID`: ends a background request, and forgets its response.
pub(crate) async fn delete(
    State(app): State<Shared>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    let holder = app.keys.check(&headers)?;
    app.background.delete(&id, &holder).await?;
    Ok(Json(
        json!({"id": id, "object": "response", "deleted": true}),
    ))
}

/// A stored response as it is now. Its output is empty until its end.
fn latest(app: &Shared, id: &str, holder: &Holder) -> Result<Value, ApiError> {
    let response = |data: &str| {
        let mut event: Value = serde_json::from_str(data).ok()?;
        event.get_mut("response").map(Value::take)
    };
    let found = app.background.last(id, holder, response)?;
    found.ok_or_else(|| {
        let message = format!("the response {id:?} has not begun");
        ApiError::later(1, message)
    })
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

/// Takes `truncation`. A prompt that is too long is always refused.
fn take_truncation(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.take::<String>("truncation")?.as_deref() {
        None | Some("disabled") => Ok(()),
        Some("auto") => fields.without_effect("truncation"),
        Some(other) => {
            let message = format!("truncation must be auto or disabled, given {other:?}");
            Err(ApiError::bad("truncation", message))
        }
    }
}

/// Reads the keys. The second value has the settings that the answer repeats, as clients expect. The
/// third one says whether items of reasoning have `encrypted_content`.
fn read(
    fields: &mut Fields,
    loaded: &Loaded,
) -> Result<(Turn, Map<String, Value>, bool), ApiError> {
    if let Some(id) = fields.take::<String>("previous_response_id")? {
        let message =
            format!("there is no response {id:?}: this server stores none; send the whole input");
        return Err(
            ApiError::new(StatusCode::NOT_FOUND, message).with_param("previous_response_id")
        );
    }
    for name in ["conversation", "prompt"] {
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
    for other in include
        .iter()
        .filter(|name| !INCLUDES.contains(&name.as_str()))
    {
        fields.without_effect(&format!("include.{other}"))?;
    }
    let includes = |sought: &str| include.iter().any(|name| name == sought);
    if includes(LOGPROBS) || top.is_some_and(|top| top > 0) {
        options.logprobs = Some(logprobs::check_top("top_logprobs", top.unwrap_or(0))?);
    }
    let mut kwargs = params::kwargs(fields)?;
    let reasoning = turn::take_reasoning(fields, &mut kwargs)?;
    let max_tokens = params::max_tokens(fields, &["max_output_tokens"])?;
    let is_parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    take_truncation(fields)?;
    let text: Map<String, Value> = fields.take("text")?.unwrap_or_default();
    fields.name_others("text", &text, &["format", "verbosity"])?;
    let format = text.get("format").filter(|format| !format.is_null());
    let format = format.cloned().unwrap_or_else(|| json!({"type": "text"}));
    let constraint = grammar::of_format(fields, &format, "text.format")?;
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
            ToolChoice::Named(name) => OwnTools::of(&tools).choice(name),
        },
        "tools": shown(&tools),
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
    Ok((turn, settings, includes(sealed::ASKED)))
}

/// The items of a whole answer.
fn items(
    ids: &writer::Ids,
    whole: &Whole,
    own: &OwnTools,
    seals: bool,
    logprobs: &Value,
) -> Vec<Value> {
    let mut items = Vec::new();
    let status = match whole.end.map(|end: End| end.reason) {
        Some(FinishReason::Length | FinishReason::Repetition) => "incomplete",
        _ => "completed",
    };
    if !whole.reasoning.is_empty() {
        let mut item = json!({
            "id": ids.reasoning, "type": "reasoning", "status": "completed", "summary": [],
            "content": [{"type": "reasoning_text", "text": whole.reasoning}],
        });
        if seals {
            item["encrypted_content"] = sealed::sealed(&whole.reasoning).into();
        }
        items.push(item);
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
        let mut item = own.call_item(id, call);
        item["status"] = if call.is_whole { "completed" } else { status }.into();
        items.push(item);
    }
    items
}
