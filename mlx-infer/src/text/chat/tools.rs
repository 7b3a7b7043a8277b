//! Tools, calls and results for models whose template does not show them: they become part of the
//! text of other messages.

use serde_json::{Map, Value, json};

use super::Message;
use super::reply::ReplyFormat;

/// The conversation with a text that describes the tools, at the end of the first system message, or in a new one. If
/// the template refuses system messages, the text is put before the first user message.
pub(super) fn described(
    messages: &[Message],
    tools: &[Value],
    format: &ReplyFormat,
) -> Vec<Message> {
    let text = description(tools, format);
    let mut messages = messages.to_vec();
    let place = match format.seen().system {
        true => messages
            .first_mut()
            .filter(|first| first.role() == Some("system")),
        false => messages
            .iter_mut()
            .find(|message| message.role() == Some("user")),
    };
    match place {
        Some(message) => {
            let said = message.text().unwrap_or_default();
            let text = match message.role() {
                Some("system") => format!("{said}\n\n{text}"),
                _ => format!("{text}\n\n{said}"),
            };
            *message = message.clone().with("content", text);
        }
        None => messages.insert(0, Message::new("system", text)),
    }
    messages
}

/// The text that describes tools, which are in OpenAI's form.
fn description(tools: &[Value], format: &ReplyFormat) -> String {
    let schemas = tools.iter().map(|tool| {
        let mut function = tool.get("function").unwrap_or(tool).clone();
        if let Value::Object(function) = &mut function {
            function.shift_remove("strict");
        }
        format!("{function}\n")
    });
    let schemas: String = schemas.collect();
    let call = format.written(&[("NAME", "ARGUMENTS".to_owned())]);
    format!(
        "You can call tools. Their names and the JSON schemas of their parameters:\n<tools>\n{schemas}</tools>\nA call is written so, with a JSON object for ARGUMENTS:\n{call}\nIts result comes between <tool_response> and </tool_response>."
    )
}

/// The same tools, with an empty description and with parameters without properties where these are
/// missing, as OpenAI's form allows. `None` if nothing is missing.
pub(super) fn completed(tools: &[Value]) -> Option<Vec<Value>> {
    let mut completed = tools.to_vec();
    for tool in &mut completed {
        let function = match tool.get("function") {
            Some(_) => tool.get_mut("function"),
            None => Some(tool),
        };
        let Some(Value::Object(function)) = function else {
            continue;
        };
        complete(function, "description", || "".into());
        complete(function, "parameters", || json!({}));
        let Some(Value::Object(parameters)) = function.get_mut("parameters") else {
            continue;
        };
        complete(parameters, "type", || "object".into());
        complete(parameters, "properties", || json!({}));
        let Some(Value::Object(properties)) = parameters.get_mut("properties") else {
            continue;
        };
        for property in properties.values_mut().filter_map(Value::as_object_mut) {
            complete(property, "description", || "".into());
        }
    }
    (completed != tools).then_some(completed)
}

fn complete(map: &mut Map<String, Value>, key: &str, value: impl FnOnce() -> Value) {
    if map.get(key).is_none_or(Value::is_null) {
        map.insert(key.to_owned(), value());
    }
}

/// The conversation with calls in the form that the model writes, and with their results in user messages.
pub(super) fn spelled(messages: Vec<Message>, format: &ReplyFormat) -> Vec<Message> {
    let mut spelled: Vec<Message> = Vec::with_capacity(messages.len());
    let mut is_result = false;
    for message in messages {
        let text = message.text().unwrap_or_default().to_owned();
        match message.role() {
            Some(role @ ("tool" | "user")) => {
                let was_result = std::mem::replace(&mut is_result, role == "tool");
                let text = match is_result {
                    true => format!("<tool_response>\n{text}\n</tool_response>"),
                    false => text,
                };
                // Templates require that user and model take turns.
                match spelled.last_mut().filter(|_| was_result) {
                    Some(last) => {
                        let said = last.text().unwrap_or_default();
                        *last = Message::new("user", format!("{said}\n{text}"));
                    }
                    None if is_result => spelled.push(Message::new("user", text)),
                    None => spelled.push(message),
                }
            }
            _ => {
                is_result = false;
                spelled.push(with_calls(message, text, format));
            }
        }
    }
    spelled
}

/// A message whose calls are part of its text.
fn with_calls(message: Message, text: String, format: &ReplyFormat) -> Message {
    let mut map = message.as_map().clone();
    let Some(Value::Array(calls)) = map.shift_remove("tool_calls") else {
        return message;
    };
    let calls: Vec<(&str, String)> = calls
        .iter()
        .map(|call| {
            let function = call.get("function").unwrap_or(call);
            let arguments = match &function["arguments"] {
                Value::String(text) => text.clone(),
                Value::Null => "{}".to_owned(),
                object => object.to_string(),
            };
            (function["name"].as_str().unwrap_or_default(), arguments)
        })
        .collect();
    let calls = format.written(&calls);
    let text = match text.is_empty() {
        true => calls,
        false => format!("{text}\n{calls}"),
    };
    Message::from(map).with("content", text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{ChatTemplate, RenderOptions, prepare, prompt_text};
    use super::*;
    use crate::text::files::Files;
    use crate::text::tokenizer::Tokenizer;

    fn tokenizer() -> Tokenizer {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/text/tokenizers");
        Tokenizer::load(&Files::directory(folder.join("qwen")).unwrap()).unwrap()
    }

    /// A template in which user and model take turns; `head` begins the first turn.
    const PLAIN: &str = "\
{%- set head = messages[0].content + '/' if messages[0].role == 'system' else '' -%}
{%- for message in (messages[1:] if head else messages) -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('take turns') }}{%- endif -%}
[{{ message.role }}]{{ head if loop.first }}{{ message.content }}
{%- endfor -%}[assistant]";

    fn rendered(template: &str, messages: Value) -> String {
        let tokenizer = tokenizer();
        let template = ChatTemplate::from_source(template, &tokenizer).unwrap();
        let format = ReplyFormat::detect(&template, &tokenizer);
        let tool = json!({"type": "function", "function": {"name": "add", "strict": true, "parameters": {"type": "object"}}});
        let render = RenderOptions {
            tools: Some(vec![tool]),
            add_generation_prompt: true,
            ..Default::default()
        };
        let messages = prepare(Message::list_from_json(messages).unwrap(), &format).unwrap();
        prompt_text(&template, &format, &messages, &render).unwrap()
    }

    const TEXT: &str = "You can call tools. Their names and the JSON schemas of their parameters:\n<tools>\n{\"name\":\"add\",\"parameters\":{\"type\":\"object\"}}\n</tools>\nA call is written so, with a JSON object for ARGUMENTS:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": ARGUMENTS}\n</tool_call>\nIts result comes between <tool_response> and </tool_response>.";

    fn conversation() -> Value {
        let call = json!({"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}});
        json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": null, "tool_calls": [call, call]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "user", "content": "so?"},
        ])
    }

    #[test]
    fn a_template_without_tools_gets_texts() {
        let call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":1}}\n</tool_call>";
        let response = |n: u32| format!("<tool_response>\n{n}\n</tool_response>\n");
        let behind = format!(
            "hi[assistant]{call}\n{call}[user]{}{}so?[assistant]",
            response(2),
            response(3)
        );
        assert_eq!(
            rendered(PLAIN, conversation()),
            format!("[user]{TEXT}/{behind}")
        );
        let mut with_system = conversation();
        let system = json!({"role": "system", "content": "be brief"});
        with_system.as_array_mut().unwrap().insert(0, system);
        assert_eq!(
            rendered(PLAIN, with_system),
            format!("[user]be brief\n\n{TEXT}/{behind}")
        );
        // A template that refuses system messages.
        let strict = PLAIN.replace(
            "messages[0].content + '/' if messages[0].role == 'system' else ''",
            "''",
        );
        assert_eq!(
            rendered(&strict, conversation()),
            format!("[user]{TEXT}\n\n{behind}")
        );
    }

    #[test]
    fn tools_that_leave_something_out_are_rendered() {
        let tokenizer = tokenizer();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/text/templates");
        let typed = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let functions = [
            json!({"name": "add"}),
            json!({"name": "add", "description": "d"}),
            json!({"name": "add", "description": null, "parameters": null}),
            json!({"name": "add", "parameters": {}}),
            json!({"name": "add", "parameters": typed}),
        ];
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let source = std::fs::read_to_string(&path).unwrap();
            let template = ChatTemplate::from_source(&source, &tokenizer).unwrap();
            let format = ReplyFormat::detect(&template, &tokenizer);
            let text = |function: &Value| {
                let render = RenderOptions {
                    tools: Some(vec![json!({"type": "function", "function": function})]),
                    add_generation_prompt: true,
                    kwargs: [("bos_token", "<bos>"), ("eos_token", "<eos>")]
                        .map(|(name, text)| (name.to_owned(), text.into()))
                        .into_iter()
                        .collect(),
                    ..Default::default()
                };
                prompt_text(&template, &format, &[Message::new("user", "q")], &render)
            };
            let whole = json!({"name": "add", "description": "d", "parameters": {"type": "object", "properties": {}}});
            if !text(&whole).is_ok_and(|text| text.contains("add")) {
                continue;
            }
            seen += 1;
            for function in &functions {
                let text = text(function);
                let shows = text.as_ref().is_ok_and(|text| text.contains("add"));
                assert!(shows, "{}: {function}: {text:?}", path.display());
            }
        }
        assert!(seen > 25, "{seen}");
    }

    #[test]
    fn a_template_with_tools_gets_them() {
        let shows = "{{ tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}<tool_call>";
        let text = rendered(shows, conversation());
        assert!(!text.contains("You can call tools"), "{text}");
        assert!(
            text.contains("add") && !text.contains("<tool_response>"),
            "{text}"
        );
    }
}
