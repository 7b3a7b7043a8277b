//! `POST /api/chat`.

use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Ask;
use crate::serve::routes::ollama::ask::{Common, OllamaAsk, is_given};
use crate::serve::routes::ollama::writer::{AnswerForm, LineWriter};
use crate::serve::turn::tools_from;
use crate::text::chat::Message;
use crate::text::chat::reply::ToolChoice;

pub(super) async fn chat(mut ask: OllamaAsk) -> Result<Response, ApiError> {
    let messages: Vec<Value> = ask.fields.take("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return ask.without_text(AnswerForm::Chat).await;
    }
    let (ask, loading) = ask.with_model().await?;
    let Ask {
        app,
        trace,
        served,
        mut fields,
    } = ask;
    let loaded = &*served.model;
    let (tools, _) = tools_from(&mut fields, tool)?;
    let common = Common::take(&mut fields, loaded)?;
    let long = fields.long();
    let mut headers = fields.end(&[])?;
    let writer = LineWriter::new(AnswerForm::Chat, &served.name, &trace).after(loading);
    let is_stream = common.is_stream;
    let writer = writer.with_logprobs(loaded, &common.options)?;
    let messages = conversation(messages)?;
    let turn = common.turn("messages", messages, (tools, ToolChoice::Auto), long);
    let answers = turn.start(&app, loaded, &served, &trace, &mut headers)?;
    let writer = writer.of_replies(answers.replies);
    writer.respond(answers.choices, is_stream, headers).await
}

/// A tool in the form of chat completions. Ollama's client leaves `type` out.
#[expect(
    clippy::unnecessary_wraps,
    reason = "the signature that `tools_from` calls"
)]
fn tool(given: &Value) -> Result<Vec<Value>, &'static str> {
    let mut tool = given.clone();
    if let Value::Object(tool) = &mut tool {
        tool.entry("type").or_insert_with(|| "function".into());
    }
    Ok(vec![tool])
}

/// The messages in the form of chat completions. Ollama's calls have no ids, and its results name
/// their tool: a result gets the id of the first call of its tool that has none yet.
fn conversation(messages: Vec<Value>) -> Result<Vec<Message>, ApiError> {
    let mut calls = 0;
    // Name and id of the calls without a result.
    let mut open: Vec<(String, String)> = Vec::new();
    let mut converted = Vec::with_capacity(messages.len());
    for (at, message) in messages.into_iter().enumerate() {
        let Value::Object(mut message) = message else {
            converted.push(message);
            continue;
        };
        if message.get("images").is_some_and(is_given) {
            let message =
                format!("messages[{at}]: images are not supported: the model reads texts only");
            return Err(ApiError::bad("messages", message));
        }
        message.shift_remove("images");
        if let Some(thinking) = message.shift_remove("thinking") {
            message.insert("reasoning_content".to_owned(), thinking);
        }
        let given = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in given.into_iter().flatten().filter_map(Value::as_object_mut) {
            calls += 1;
            let id = match call.get("id").and_then(Value::as_str) {
                Some(id) if !id.is_empty() => id.to_owned(),
                _ => format!("call{calls:05}"),
            };
            call.insert("id".to_owned(), id.clone().into());
            call.entry("type").or_insert_with(|| "function".into());
            let name = call
                .get("function")
                .and_then(|function| function["name"].as_str());
            open.push((name.unwrap_or_default().to_owned(), id));
        }
        if message.get("role").is_some_and(|role| role == "tool") {
            answer(&mut message, &mut open);
        }
        converted.push(message.into());
    }
    Message::list_from_json(converted.into())
        .map_err(|error| ApiError::from(error).with_param("messages"))
}

/// Gives the result of a tool the name of its tool and the id of its call.
fn answer(message: &mut Map<String, Value>, open: &mut Vec<(String, String)>) {
    if let Some(name) = message.shift_remove("tool_name") {
        message.entry("name").or_insert(name);
    }
    let text = |key: &str| message.get(key).and_then(Value::as_str);
    let at = match (text("tool_call_id"), text("name")) {
        (Some(id), _) => open.iter().position(|(_, known)| known == id),
        (None, Some(name)) => open.iter().position(|(known, _)| known == name),
        (None, None) => (!open.is_empty()).then_some(0),
    };
    if let Some((name, id)) = at.map(|at| open.remove(at)) {
        message.entry("name").or_insert_with(|| name.into());
        message.entry("tool_call_id").or_insert_with(|| json!(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_get_the_ids_of_their_calls() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {}}});
        let messages = conversation(vec![
            json!({"role": "assistant", "thinking": "Hm.", "tool_calls": [call("a"), call("b"), call("a")]}),
            json!({"role": "tool", "tool_name": "b", "content": "1", "images": []}),
            json!({"role": "tool", "tool_name": "a", "content": "2"}),
            json!({"role": "tool", "content": "3"}),
            json!({"role": "tool", "tool_name": "c", "content": "4"}),
        ])
        .unwrap();
        let key = |at: usize, key: &str| messages[at].as_map().get(key).cloned();
        assert_eq!(key(0, "reasoning_content"), Some("Hm.".into()));
        let ids: Vec<_> = (1..5).map(|at| key(at, "tool_call_id")).collect();
        let id = |id: &str| Some(Value::from(id));
        assert_eq!(
            ids,
            [id("call00002"), id("call00001"), id("call00003"), None]
        );
        let names: Vec<_> = (1..5).map(|at| key(at, "name")).collect();
        assert_eq!(names, [id("b"), id("a"), id("a"), id("c")]);
    }

    #[test]
    fn images_are_refused_by_their_place() {
        let messages = vec![json!({"role": "user", "content": "Look.", "images": ["iVBO"]})];
        let error = conversation(messages).unwrap_err();
        assert!(
            error.message.starts_with("messages[0]: images"),
            "{error:?}"
        );
    }
}
