//! The items of a request's `input` as messages.

use serde_json::{Value, json};

use super::sealed::opened;
use super::tools::joined;
use crate::serve::http::error::ApiError;
use crate::text::chat::{Message, check_call, content_text};

/// The conversation that `instructions` and `input` make.
///
/// # Errors
/// An item is not known or not supported.
pub(super) fn conversation(
    input: Value,
    instructions: Option<&str>,
) -> Result<Vec<Message>, ApiError> {
    let mut messages = Vec::new();
    if let Some(text) = instructions.filter(|text| !text.is_empty()) {
        messages.push(Message::new("system", text));
    }
    let items = match input {
        Value::String(text) => {
            messages.push(Message::new("user", text));
            return Ok(messages);
        }
        Value::Array(items) => items,
        _ => {
            let message = "input must be a text or a list of items";
            return Err(ApiError::bad("input", message));
        }
    };
    let mut reasoning = String::new();
    for (at, item) in items.iter().enumerate() {
        take(&mut messages, &mut reasoning, item)
            .map_err(|what| ApiError::bad("input", format!("input[{at}]: {what}")))?;
    }
    Ok(messages)
}

fn take(messages: &mut Vec<Message>, reasoning: &mut String, item: &Value) -> Result<(), String> {
    if !item.is_object() {
        return Err("it is no object".to_owned());
    }
    let word = |name: &str| item[name].as_str().unwrap_or_default();
    match word("type") {
        "" | "message" => {
            let role = match word("role") {
                "developer" => "system",
                role @ ("user" | "assistant" | "system") => role,
                role => {
                    let known = "user, assistant, system or developer";
                    return Err(format!("its role must be {known}, given {role:?}"));
                }
            };
            let message = Message::new(role, content_text(&item["content"], "")?);
            messages.push(with_reasoning(message, reasoning, role));
        }
        "function_call" => {
            check_call(item.get("name"), item.get("arguments"))?;
            let name = match item["namespace"].as_str() {
                Some(namespace) => joined(namespace, word("name")),
                None => word("name").to_owned(),
            };
            let call = json!({
                "id": item["call_id"], "type": "function",
                "function": {"name": name, "arguments": item["arguments"]},
            });
            // Calls after a text or another call of the same answer belong to its message.
            let last = messages.pop();
            let message = match last {
                Some(last) if last.role() == Some("assistant") => last,
                other => {
                    messages.extend(other);
                    Message::new("assistant", "")
                }
            };
            let calls = message.as_map().get("tool_calls").and_then(Value::as_array);
            let mut calls = calls.cloned().unwrap_or_default();
            calls.push(call);
            let message = message.with("tool_calls", calls);
            messages.push(with_reasoning(message, reasoning, "assistant"));
        }
        "function_call_output" => {
            if item["output"].is_null() || !item["call_id"].is_string() {
                return Err("it needs a call_id and an output".to_owned());
            }
            let result = Message::new("tool", content_text(&item["output"], "")?);
            messages.push(result.with("tool_call_id", item["call_id"].clone()));
        }
        // Calls that Codex and other clients run themselves. Each type has its own keys for the
        // action.
        kind @ ("custom_tool_call" | "local_shell_call" | "shell_call" | "apply_patch_call") => {
            let name = match item["name"].as_str() {
                Some(name) => name,
                None => kind.trim_end_matches("_call"),
            };
            let arguments = match kind {
                "custom_tool_call" => json!({"input": item["input"]}),
                "apply_patch_call" => item["operation"].clone(),
                _ => item["action"].clone(),
            };
            let id = match &item["call_id"] {
                Value::Null => &item["id"],
                id => id,
            };
            if !id.is_string() {
                return Err("it needs a call_id".to_owned());
            }
            check_call(Some(&name.into()), Some(&arguments))?;
            let call = json!({
                "type": "function_call", "call_id": id, "name": name, "namespace": item["namespace"],
                "arguments": arguments.to_string(),
            });
            take(messages, reasoning, &call)?;
        }
        "custom_tool_call_output"
        | "local_shell_call_output"
        | "shell_call_output"
        | "apply_patch_call_output" => {
            let id = match &item["call_id"] {
                Value::Null => &item["id"],
                id => id,
            };
            // The output of a shell is a list of objects without a type.
            let output = match &item["output"] {
                Value::Array(parts) if parts.iter().any(|part| part["type"].is_null()) => {
                    Value::from(item["output"].to_string())
                }
                Value::Null => item["status"].clone(),
                output => output.clone(),
            };
            let output = json!({"type": "function_call_output", "call_id": id, "output": output});
            take(messages, reasoning, &output)?;
        }
        // OpenAI's servers have run these calls. Their results are not in the item, but in the
        // answer that follows.
        "web_search_call" | "file_search_call" => {}
        "item_reference" => {
            let what = "an item_reference names an item of a store, and this server stores none; send the item itself";
            return Err(what.to_owned());
        }
        "reasoning" => {
            let parts = item["content"].as_array().map_or(&[][..], Vec::as_slice);
            for part in parts {
                reasoning.push_str(part["text"].as_str().unwrap_or_default());
            }
            if let (true, Some(content)) = (parts.is_empty(), item["encrypted_content"].as_str()) {
                reasoning.push_str(&opened(content)?.unwrap_or_default());
            }
        }
        other => return Err(format!("an item of type {other:?} is not supported")),
    }
    Ok(())
}

/// Moves the reasoning, which is an item of its own before the message, into a message of the
/// assistant.
fn with_reasoning(message: Message, reasoning: &mut String, role: &str) -> Message {
    match role == "assistant" && !reasoning.is_empty() {
        true => message.with("reasoning_content", std::mem::take(reasoning)),
        false => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages() {
        let input = json!([
            {"role": "developer", "content": "be brief"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "42"}]},
        ]);
        let messages = conversation(input, Some("rules")).unwrap();
        let roles: Vec<&str> = messages.iter().filter_map(Message::role).collect();
        assert_eq!(roles, ["system", "system", "user", "assistant", "tool"]);
        let calls = &messages[3].as_map()["tool_calls"];
        assert_eq!(calls.as_array().map(Vec::len), Some(2));
        assert_eq!(messages[3].as_map()["reasoning_content"], "why");
        assert_eq!(messages[4].text(), Some("42"));
    }

    #[test]
    fn calls_that_clients_run_are_calls() {
        let input = json!([
            {"role": "user", "content": "q"},
            {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
            {"type": "local_shell_call", "call_id": "c2", "status": "completed", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "c2", "output": "a.txt"},
            {"type": "shell_call", "call_id": "c3", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "c3", "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
            {"type": "web_search_call", "id": "w1", "status": "completed", "action": {"type": "search", "query": "x"}},
            {"role": "assistant", "content": "found"},
        ]);
        let messages = conversation(input, None).unwrap();
        let roles: Vec<&str> = messages.iter().filter_map(Message::role).collect();
        assert_eq!(
            roles,
            [
                "user",
                "assistant",
                "tool",
                "assistant",
                "tool",
                "assistant",
                "tool",
                "assistant"
            ]
        );
        for (at, name, arguments) in [
            (1, "apply_patch", r#"{"input":"*** Begin"}"#),
            (3, "local_shell", r#"{"type":"exec","command":["ls"]}"#),
            (5, "shell", r#"{"commands":["ls"]}"#),
        ] {
            let function = &messages[at].as_map()["tool_calls"][0]["function"];
            assert_eq!(function["name"], name);
            assert_eq!(function["arguments"], arguments);
        }
        assert_eq!(
            (messages[2].text(), messages[4].text()),
            (Some("done"), Some("a.txt"))
        );
        assert!(messages[6].text().unwrap().contains("exit_code"));
        for id in [2, 4, 6] {
            let call = &messages[id - 1].as_map()["tool_calls"][0]["id"];
            assert_eq!(&messages[id].as_map()["tool_call_id"], call);
        }
    }

    #[test]
    fn reasoning_comes_back_without_its_text() {
        let content = super::super::sealed::sealed("why");
        let item = |content: &str| json!({"type": "reasoning", "summary": [], "content": null, "encrypted_content": content});
        let call =
            json!({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"});
        let messages = conversation(json!([item(&content), call]), None).unwrap();
        assert_eq!(messages[0].as_map()["reasoning_content"], "why");
        let messages = conversation(json!([item("gAAAA"), call]), None).unwrap();
        assert!(!messages[0].as_map().contains_key("reasoning_content"));
        let error = conversation(json!([item("mlx-infer:%")]), None).unwrap_err();
        assert!(
            error.message.contains("input[0]: its encrypted_content"),
            "{}",
            error.message
        );
    }

    #[test]
    fn other_items_are_refused_by_name() {
        for (item, what) in [
            (
                json!({"type": "item_reference", "id": "x"}),
                "item_reference",
            ),
            (
                json!({"role": "user", "content": [{"type": "input_image"}]}),
                "input_image",
            ),
            (json!({"role": "robot", "content": ""}), "robot"),
            (
                json!({"type": "custom_tool_call", "name": "f", "input": "x"}),
                "call_id",
            ),
            (
                json!({"type": "image_generation_call", "id": "x"}),
                "image_generation_call",
            ),
            (json!(null), "it is no object"),
            (
                json!({"type": "function_call", "call_id": "c"}),
                "it names no function",
            ),
            (
                json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}),
                "arguments are not valid JSON",
            ),
            (
                json!({"type": "function_call_output", "call_id": "c"}),
                "it needs a call_id and an output",
            ),
            (
                json!({"type": "function_call_output", "output": "x"}),
                "it needs a call_id and an output",
            ),
        ] {
            let error = conversation(json!([item]), None).unwrap_err();
            assert!(error.message.contains(what), "{}", error.message);
        }
    }
}
