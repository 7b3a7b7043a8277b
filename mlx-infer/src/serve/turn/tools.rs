//! Reads the tools of a request, and which of them an answer may or must call.

use serde_json::Value;

use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use crate::serve::turn::custom::as_function;
use crate::text::chat::reply::ToolChoice;

/// Takes `tools`, in the form of chat completions.
///
/// # Errors
/// A tool is no function, or a custom tool is malformed.
pub(in super::super) fn tools(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let tools = tools.into_iter().enumerate().map(|(at, tool)| {
        let function = match tool["type"] == "custom" {
            true => as_function(&tool),
            false => check_tool(&tool).map(|()| tool),
        };
        function.map_err(|what| ApiError::bad("tools", format!("tools[{at}] {what}")))
    });
    tools.collect()
}

/// Checks the types of a tool in the form of chat completions.
fn check_tool(tool: &Value) -> Result<(), &'static str> {
    let function = &tool["function"];
    let (schema, text, strict) = (
        &function["parameters"],
        &function["description"],
        &function["strict"],
    );
    match function["name"].as_str() {
        None | Some("") => Err("is not a function with a name"),
        Some(_) if tool["type"] != "function" => Err("is not a function with a name"),
        _ if !schema.is_null() && !schema.is_object() => Err("has a schema that is no object"),
        _ if !text.is_null() && !text.is_string() => Err("has a description that is no text"),
        _ if !strict.is_null() && !strict.is_boolean() => {
            Err("has a strict that is neither true nor false")
        }
        _ => Ok(()),
    }
}

/// Takes `tools` that are not in the form of chat completions. `convert` brings a tool into that
/// form. A tool that holds several becomes several, and one to skip none. Returns the tools, and the
/// places of the skipped ones.
///
/// # Errors
/// Those of `convert`.
pub(in super::super) fn tools_from(
    fields: &mut Fields,
    convert: impl Fn(&Value) -> Result<Vec<Value>, &'static str>,
) -> Result<(Vec<Value>, Vec<String>), ApiError> {
    let given: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let (mut offered, mut skipped) = (Vec::new(), Vec::new());
    for (at, tool) in given.iter().enumerate() {
        let place = format!("tools[{at}]");
        let bad = |what| ApiError::bad("tools", format!("{place} {what}"));
        let tools = convert(tool).map_err(bad)?;
        for tool in &tools {
            check_tool(tool).map_err(bad)?;
        }
        match tools.is_empty() {
            true => skipped.push(place),
            false => offered.extend(tools),
        }
    }
    Ok((offered, skipped))
}

/// Takes `tool_choice` of OpenAI's routes. In chat completions the name of a function is under
/// `function`, in responses beside `type`. The tools of `allowed_tools` are under that name in chat
/// completions, and beside `type` in responses. All other tools are then removed from `tools`.
/// # Errors
/// It is not known, or contradicts `tools`.
pub(in super::super) fn tool_choice(
    fields: &mut Fields,
    tools: &mut Vec<Value>,
) -> Result<ToolChoice, ApiError> {
    let bad = |message: String| Err(ApiError::bad("tool_choice", message));
    let choice = match fields.take::<Value>("tool_choice")? {
        None => ToolChoice::Auto,
        Some(Value::String(word)) => match mode(&word) {
            Some(choice) => choice,
            None => {
                return bad(format!(
                    "tool_choice must be auto, none, required or a function, given {word:?}"
                ));
            }
        },
        Some(object) if object["type"] == "allowed_tools" => {
            let allowed = object.get("allowed_tools").unwrap_or(&object);
            let choice = allowed["mode"].as_str().and_then(mode);
            let (Some(choice), Some(list)) = (choice, allowed["tools"].as_array()) else {
                return bad("tool_choice: allowed_tools needs a mode and tools".to_owned());
            };
            let names: Vec<Value> = list.iter().filter_map(name_of).cloned().collect();
            tools.retain(|tool| names.contains(&tool["function"]["name"]));
            choice
        }
        Some(object) => match name_of(&object).and_then(Value::as_str) {
            Some(name) => ToolChoice::Named(name.to_owned()),
            None => return bad("tool_choice names no function".to_owned()),
        },
    };
    check_choice(choice, tools)
}

/// The name of a tool in a choice.
fn name_of(tool: &Value) -> Option<&Value> {
    let inner = tool.get("function").or(tool.get("custom")).unwrap_or(tool);
    inner.get("name")
}

fn mode(word: &str) -> Option<ToolChoice> {
    match word {
        "auto" => Some(ToolChoice::Auto),
        "none" => Some(ToolChoice::None),
        "required" | "any" => Some(ToolChoice::Required),
        _ => None,
    }
}

/// Checks a choice against the tools in the form of chat completions.
///
/// # Errors
/// It names a tool that is not among them.
pub(in super::super) fn check_choice(
    choice: ToolChoice,
    tools: &[Value],
) -> Result<ToolChoice, ApiError> {
    let message = match &choice {
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool["function"]["name"] == **name) => {
            format!("tool_choice asks for {name:?}, which is not among tools")
        }
        ToolChoice::Required if tools.is_empty() => {
            "tool_choice is required, and there are no tools".to_owned()
        }
        _ => return Ok(choice),
    };
    Err(ApiError::bad("tool_choice", message))
}
