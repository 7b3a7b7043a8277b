//! Converts the parts of a request into OpenAI's form.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use crate::serve::turn::check_choice;
use crate::text::chat::reply::ToolChoice;
use crate::text::chat::{Message, check_call, content_text};

/// The beginning of a system block that Claude Code sends. The block changes with every request and would defeat the prefix cache.
const BILLING: &str = "x-anthropic-billing-header";

/// The text of `system`: a text, or blocks of text.
pub(super) fn system_text(system: &Value) -> Result<String, ApiError> {
    let mut system = system.clone();
    if let Value::Array(blocks) = &mut system {
        let is_billing = |block: &Value| {
            block["text"]
                .as_str()
                .is_some_and(|text| text.starts_with(BILLING))
        };
        blocks.retain(|block| !is_billing(block));
    }
    content_text(&system, "\n\n").map_err(|what| ApiError::bad("system", format!("system: {what}")))
}

/// Adds a message in OpenAI's form. Results of tools become messages of their own, before the text of the same turn.
pub(super) fn convert(conversation: &mut Vec<Message>, message: &Value) -> Result<(), String> {
    let role = message["role"].as_str().ok_or("it has no role")?;
    if !["user", "assistant", "system"].contains(&role) {
        return Err(format!(
            "its role must be user, assistant or system, given {role:?}"
        ));
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
        let kind = block["type"].as_str().unwrap_or_default();
        let word = |name: &str| {
            let missing = || format!("a block of type {kind:?} needs {name:?}, a text");
            block[name].as_str().ok_or_else(missing)
        };
        match kind {
            "text" => text.push(word("text")?.to_owned()),
            "thinking" => thinking.push_str(word("thinking")?),
            // Encrypted reasoning, which only Anthropic's servers can read.
            "redacted_thinking" => {}
            "tool_use" => {
                let arguments = check_call(block.get("name"), block.get("input"))
                    .map_err(|what| format!("the use of a tool: {what}"))?;
                calls.push(json!({
                    "id": word("id")?, "type": "function",
                    "function": {"name": block["name"], "arguments": arguments},
                }));
            }
            "tool_result" => {
                let result = content_text(&block["content"], "\n")
                    .map_err(|what| format!("the result of a tool: {what}"))?;
                let result = Message::new("tool", result);
                conversation.push(result.with("tool_call_id", word("tool_use_id")?));
            }
            "image" | "document" => {
                return Err(format!("{kind}s are not supported: this server reads text"));
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

/// A tool in OpenAI's form; none for one that only Anthropic's servers run.
pub(super) fn tool(tool: &Value) -> Result<Vec<Value>, &'static str> {
    let kind = tool["type"].as_str().unwrap_or("custom");
    if kind != "custom" {
        return Ok(Vec::new());
    }
    let Some(name) = tool["name"].as_str().filter(|name| !name.is_empty()) else {
        return Err("has no name");
    };
    let mut function = json!({"name": name});
    if !tool["input_schema"].is_null() {
        function["parameters"] = tool["input_schema"].clone();
    }
    if let Some(text) = tool["description"].as_str() {
        function["description"] = text.into();
    }
    Ok(vec![json!({"type": "function", "function": function})])
}

pub(super) fn tool_choice(
    fields: &mut Fields,
    tools: &[Value],
) -> Result<(ToolChoice, bool), ApiError> {
    let Some(choice) = fields.take::<HashMap<String, Value>>("tool_choice")? else {
        return Ok((ToolChoice::Auto, true));
    };
    let kind = choice.get("type").and_then(Value::as_str).unwrap_or("auto");
    let name = choice.get("name").and_then(Value::as_str);
    let found = match kind {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" => ToolChoice::Required,
        "tool" => ToolChoice::Named(name.unwrap_or_default().to_owned()),
        kind => {
            let message = format!("tool_choice must be auto, none, any or tool, given {kind:?}");
            return Err(ApiError::bad("tool_choice", message));
        }
    };
    let found = check_choice(found, tools)?;
    let is_single = choice.get("disable_parallel_tool_use") == Some(&Value::Bool(true));
    Ok((found, !is_single))
}
