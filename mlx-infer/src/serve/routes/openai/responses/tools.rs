//! Tools in the form of this API: functions, tools whose input is a text, and namespaces of tools.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::serve::turn::{self, Call, InputReader};

/// Stands between the name of a namespace and that of a tool in the name that the model sees. The
/// names of tools may have letters, digits, `_` and `-`.
const JOINT: &str = "__";

/// The name under which the model sees a tool of a namespace.
pub(super) fn joined(namespace: &str, name: &str) -> String {
    format!("{namespace}{JOINT}{name}")
}

/// A tool as functions in the form of chat completions. A namespace is the functions in it, and a
/// tool that only OpenAI's servers run is none.
///
/// # Errors
/// It has no type or no name, or a namespace holds a tool that is no function.
pub(super) fn tool(tool: &Value) -> Result<Vec<Value>, &'static str> {
    if !tool["type"].is_string() {
        return Err("has no type");
    }
    match tool["type"].as_str() {
        Some("function") => function(tool).map(|tool| vec![tool]),
        Some("custom") => turn::as_function(tool).map(|tool| vec![tool]),
        Some("namespace") => {
            let (Some(namespace), Some(tools)) = (name(tool), tool["tools"].as_array()) else {
                return Err("is a namespace without a name or without a list of tools");
            };
            let about = json!({"name": namespace, "description": tool["description"]});
            let within = |inner: &Value| {
                let mut offered = match inner["type"].as_str() {
                    Some("function") => function(inner)?,
                    Some("custom") => turn::as_function(inner)?,
                    _ => {
                        return Err(
                            "is a namespace with a tool that is neither function nor custom",
                        );
                    }
                };
                let own = offered["function"]["name"].as_str().unwrap_or_default();
                let joined = joined(namespace, own);
                offered["namespace"] = json!({"name": own, "about": about});
                offered["function"]["name"] = joined.into();
                Ok(offered)
            };
            tools.iter().map(within).collect()
        }
        _ => Ok(Vec::new()),
    }
}

fn name(tool: &Value) -> Option<&str> {
    tool["name"].as_str().filter(|name| !name.is_empty())
}

fn function(tool: &Value) -> Result<Value, &'static str> {
    let Some(name) = name(tool) else {
        return Err("has no name");
    };
    let mut function = json!({"name": name});
    for key in ["description", "parameters", "strict"] {
        if !tool[key].is_null() {
            function[key] = tool[key].clone();
        }
    }
    Ok(json!({"type": "function", "function": function}))
}

/// Tools in the form of this API.
pub(super) fn shown(tools: &[Value]) -> Vec<Value> {
    let mut shown: Vec<Value> = Vec::new();
    for tool in tools {
        let mut flat = flat(tool);
        let about = &tool["namespace"]["about"];
        if about.is_null() {
            shown.push(flat);
            continue;
        }
        flat["name"] = tool["namespace"]["name"].clone();
        let is_same =
            |last: &&mut Value| last["type"] == "namespace" && last["name"] == about["name"];
        match shown.last_mut().filter(is_same) {
            Some(last) => {
                if let Some(tools) = last["tools"].as_array_mut() {
                    tools.push(flat);
                }
            }
            None => {
                let mut space = about.clone();
                space["type"] = "namespace".into();
                space["tools"] = json!([flat]);
                shown.push(space);
            }
        }
    }
    shown
}

fn flat(tool: &Value) -> Value {
    let (kind, key) = match tool["custom"].is_object() {
        true => ("custom", "custom"),
        false => ("function", "function"),
    };
    let mut flat = tool[key].clone();
    flat["type"] = kind.into();
    flat
}

/// The tools of a request whose calls have a form of their own, by the names that the model sees.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnTools(HashMap<String, Own>);

#[derive(Clone, Debug)]
struct Own {
    /// Whether its input is a text.
    is_custom: bool,
    /// Its namespace, and its name in it.
    namespace: Option<(Value, Value)>,
}

impl OwnTools {
    /// The tools among these, which are in the form of chat completions.
    pub(super) fn of(tools: &[Value]) -> Self {
        let own = tools.iter().filter_map(|tool| {
            let is_custom = tool["custom"].is_object();
            let space = &tool["namespace"];
            let namespace = space.is_object().then(|| {
                let about = space["about"]["name"].clone();
                (about, space["name"].clone())
            });
            let name = tool["function"]["name"].as_str()?.to_owned();
            let own = Own {
                is_custom,
                namespace,
            };
            (own.is_custom || own.namespace.is_some()).then_some((name, own))
        });
        Self(own.collect())
    }

    pub(super) fn is_custom(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|own| own.is_custom)
    }

    /// Sets the name of a tool, and its namespace if it has one.
    fn set_name(&self, object: &mut Value, name: &str) {
        object["name"] = name.into();
        if let Some(Own {
            namespace: Some((space, own)),
            ..
        }) = self.0.get(name)
        {
            object["name"] = own.clone();
            object["namespace"] = space.clone();
        }
    }

    /// The choice of a tool.
    pub(super) fn choice(&self, name: &str) -> Value {
        let kind = if self.is_custom(name) {
            "custom"
        } else {
            "function"
        };
        let mut choice = json!({"type": kind});
        self.set_name(&mut choice, name);
        choice
    }

    /// The item of a call.
    pub(super) fn call_item(&self, id: &str, call: &Call) -> Value {
        let (kind, key, said) = match self.is_custom(&call.name) {
            true => (
                "custom_tool_call",
                "input",
                InputReader::whole(&call.arguments),
            ),
            false => ("function_call", "arguments", call.arguments.clone()),
        };
        let mut item = json!({
            "id": id, "type": kind, "status": "in_progress", "call_id": call.id, "name": "", key: said,
        });
        self.set_name(&mut item, &call.name);
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_its_tools() {
        let inner = |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object"}});
        let space = json!({"type": "namespace", "name": "agents", "description": "Of agents.",
            "tools": [inner("open"), inner("close"), {"type": "custom", "name": "say"}]});
        let tools = tool(&space).unwrap();
        let names: Vec<&str> = tools
            .iter()
            .filter_map(|tool| tool["function"]["name"].as_str())
            .collect();
        assert_eq!(names, ["agents__open", "agents__close", "agents__say"]);
        let back = shown(&[tools.clone(), tool(&inner("open")).unwrap()].concat());
        assert_eq!(back.len(), 2);
        assert_eq!(
            back[0]["tools"].as_array().unwrap()[..2],
            space["tools"].as_array().unwrap()[..2]
        );
        for key in ["type", "name", "description"] {
            assert_eq!(back[0][key], space[key]);
        }
        assert_eq!(back[1], inner("open"));
        let own = OwnTools::of(&tools);
        assert_eq!(
            own.choice("agents__say"),
            json!({"type": "custom", "name": "say", "namespace": "agents"})
        );
        assert_eq!(
            own.choice("open"),
            json!({"type": "function", "name": "open"})
        );
        for (fault, what) in [
            (json!({"type": "namespace", "tools": []}), "without a name"),
            (json!({"type": "namespace", "name": "a"}), "without a list"),
            (
                json!({"type": "namespace", "name": "a", "tools": [{"type": "x"}]}),
                "neither function nor custom",
            ),
            (
                json!({"type": "namespace", "name": "a", "tools": [{"type": "function"}]}),
                "has no name",
            ),
        ] {
            assert!(tool(&fault).unwrap_err().contains(what), "{fault}");
        }
    }
}
