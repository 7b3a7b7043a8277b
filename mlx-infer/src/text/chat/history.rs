//! Conversations as clients send them, in the form that templates read.

use serde_json::{Map, Value};

use super::reply::{ReplyFormat, ToolFormat};
use super::{Message, tools};
use crate::error::{Error, Result};

/// Brings messages into the form that templates read:
///
/// - the role `developer` is `system`;
/// - a list of parts becomes one text, with line breaks between the parts; no content is an empty text;
/// - arguments of calls that are texts with JSON become objects, as transformers passes them; `""`
///   and `"null"` are no arguments. DeepSeek's templates read texts, and get texts;
/// - calls and their results become texts if the template does not show them;
/// - ids of calls and results become 9 letters or digits, where the template refuses others (Mistral's). The same id
///   always becomes the same.
///
/// # Errors
/// A content is no text and no list of texts, a reasoning is no text, a call has no name, or its arguments are no JSON object; the message names
/// the place.
pub fn prepare(messages: Vec<Message>, format: &ReplyFormat) -> Result<Vec<Message>> {
    let wants_text = format.tools() == ToolFormat::DeepSeek;
    let needs_short_ids = !format.seen().long_ids;
    let messages = messages.into_iter().enumerate();
    let prepared: Result<Vec<Message>> = messages
        .map(|(at, message)| {
            let mut map = message.as_map().clone();
            if map.get("role").is_some_and(|role| role == "developer") {
                map.insert("role".to_owned(), "system".into());
            }
            if needs_short_ids {
                shorten(&mut map, "tool_call_id");
            }
            let content = map.get("content").unwrap_or(&Value::Null);
            if !content.is_string() {
                let text = content_text(content, "\n").map_err(|what| place(at, &what))?;
                map.insert("content".to_owned(), text.into());
            }
            for name in ["reasoning_content", "reasoning", "thinking"] {
                let is_text = |value: &Value| matches!(value, Value::Null | Value::String(_));
                if map.get(name).is_some_and(|value| !is_text(value)) {
                    return Err(place(at, &format!("its {name} must be a text")));
                }
            }
            let calls = match map.get_mut("tool_calls") {
                None | Some(Value::Null) => &mut Vec::new(),
                Some(Value::Array(calls)) => calls,
                Some(_) => return Err(place(at, "its tool_calls must be a list")),
            };
            for (index, call) in calls.iter_mut().enumerate() {
                let bad = |what: &str| place(at, &format!("tool_calls[{index}]{what}"));
                let Value::Object(call) = call else {
                    return Err(bad(" is no object"));
                };
                if needs_short_ids {
                    shorten(call, "id");
                }
                let function = match call.contains_key("function") {
                    true => call.get_mut("function").and_then(Value::as_object_mut),
                    false => Some(call),
                };
                let function = function.ok_or_else(|| bad(": its function is no object"))?;
                let checked = check_call(function.get("name"), function.get("arguments"));
                let object = checked.map_err(|what| bad(&format!(": {what}")))?;
                if function.contains_key("arguments") {
                    let given = match wants_text {
                        true => Value::Object(object).to_string().into(),
                        false => object.into(),
                    };
                    function.insert("arguments".to_owned(), given);
                }
            }
            Ok(map.into())
        })
        .collect();
    match format.seen().calls {
        true => prepared,
        false => prepared.map(|messages| tools::spelled(messages, format)),
    }
}

/// Replaces an id by one of 9 letters or digits.
fn shorten(map: &mut Map<String, Value>, key: &str) {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let Some(Value::String(id)) = map.get_mut(key) else {
        return;
    };
    if id.len() == 9 && id.bytes().all(|c| c.is_ascii_alphanumeric()) {
        return;
    }
    // FNV-1a, then the last step of SplitMix64, which lets each bit of the hash change all letters.
    let mut number = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^= number >> 31;
    let mut letter = || {
        let at = number % 62;
        number /= 62;
        char::from(LETTERS[at as usize])
    };
    *id = (0..9).map(|_| letter()).collect();
}

/// The same conversation with all system messages merged into one at its beginning, for templates
/// that refuse them elsewhere. `None` if there are none elsewhere.
pub fn merge_system(messages: &[Message]) -> Option<Vec<Message>> {
    let is_system = |message: &&Message| message.role() == Some("system");
    if !messages.iter().skip(1).any(|message| is_system(&message)) {
        return None;
    }
    let texts = messages.iter().filter(is_system).filter_map(Message::text);
    let text = texts.collect::<Vec<_>>().join("\n\n");
    let rest = messages
        .iter()
        .filter(|message| !is_system(message))
        .cloned();
    Some(
        [Message::new("system", text)]
            .into_iter()
            .chain(rest)
            .collect(),
    )
}

fn place(at: usize, what: &str) -> Error {
    Error::format(format!("messages[{at}]: {what}"))
}

/// The text of a content: a text, or parts of text joined by `between`; a missing content is an
/// empty text.
///
/// # Errors
/// A part is no text; the message names its type.
pub(crate) fn content_text(content: &Value, between: &str) -> std::result::Result<String, String> {
    let parts = match content {
        Value::Null => return Ok(String::new()),
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => return Err("its content must be a text or a list of parts".to_owned()),
    };
    let text = |part: &Value| {
        let kind = part["type"].as_str().unwrap_or("text");
        let text = match (part, kind) {
            (Value::String(text), _) => Some(text.as_str()),
            (_, "text" | "input_text" | "output_text") => part["text"].as_str(),
            (_, "refusal") => part["refusal"].as_str(),
            _ => None,
        };
        let message =
            || format!("a part of type {kind:?} is no text, and only texts are supported");
        text.map(str::to_owned).ok_or_else(message)
    };
    let texts: std::result::Result<Vec<String>, String> = parts.iter().map(text).collect();
    Ok(texts?.join(between))
}

/// The arguments of a call as an object. They are given as an object or as a text that holds one; a
/// missing value, `""` and `"null"` are no arguments.
///
/// # Errors
/// The call has no name, or its arguments are something else.
pub(crate) fn check_call(
    name: Option<&Value>,
    arguments: Option<&Value>,
) -> std::result::Result<Map<String, Value>, String> {
    let name = name.and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() {
        return Err("it names no function".to_owned());
    }
    match arguments {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(object)) => Ok(object.clone()),
        Some(Value::String(text)) => match text.trim() {
            "" | "null" => Ok(Map::new()),
            text => match serde_json::from_str(text) {
                Ok(Value::Object(object)) => Ok(object),
                Ok(_) => Err("arguments must be a JSON object".to_owned()),
                Err(error) => Err(format!("arguments are not valid JSON: {error}")),
            },
        },
        Some(_) => Err("arguments must be a JSON object".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::reply::ReplyFormat;
    use super::super::{ChatTemplate, RenderOptions, prompt_text};
    use super::*;
    use crate::text::files::Files;
    use crate::text::tokenizer::Tokenizer;
    use serde_json::json;

    fn prepared(messages: Value) -> Result<Vec<Message>> {
        let format = ReplyFormat::of(None, ToolFormat::Hermes);
        prepare(Message::list_from_json(messages).unwrap(), &format)
    }

    #[test]
    fn arguments_become_objects() {
        for (given, expected) in [
            (json!("{\"a\": 1}"), json!({"a": 1})),
            (json!({"a": 1}), json!({"a": 1})),
            (json!(""), json!({})),
            (json!("null"), json!({})),
            (Value::Null, json!({})),
        ] {
            let call = json!({"function": {"name": "f", "arguments": given}});
            let messages =
                prepared(json!([{"role": "assistant", "content": null, "tool_calls": [call]}]));
            let found =
                messages.unwrap()[0].as_map()["tool_calls"][0]["function"]["arguments"].clone();
            assert_eq!(found, expected);
        }
        for bad in [json!("{\"a\": "), json!("[1]"), json!(3)] {
            let call = json!({"function": {"name": "f", "arguments": bad}});
            let error = prepared(json!([{"role": "assistant", "tool_calls": [call]}])).unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with("messages[0]: tool_calls[0]: arguments"),
                "{error}"
            );
        }
    }

    #[test]
    fn ids_of_calls_are_short_where_the_template_wants_them() {
        let tokenizers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/text");
        let files = Files::directory(tokenizers.join("tokenizers/qwen")).unwrap();
        let tokenizer = Tokenizer::load(&files).unwrap();
        let template = |name: &str| {
            let path = tokenizers.join(format!("templates/{name}.jinja"));
            let source = std::fs::read_to_string(path).unwrap();
            ChatTemplate::from_source(&source, &tokenizer).unwrap()
        };
        let ids = |name: &str, id: &str| {
            let call =
                json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
            let messages = json!([
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": null, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": id, "content": "r"},
            ]);
            let template = template(name);
            let format = ReplyFormat::detect(&template, &tokenizer);
            let messages = prepare(Message::list_from_json(messages).unwrap(), &format).unwrap();
            let options = RenderOptions {
                kwargs: [("bos_token".to_owned(), "".into())].into_iter().collect(),
                ..Default::default()
            };
            prompt_text(&template, &format, &messages, &options).unwrap();
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            (
                text(&messages[1].as_map()["tool_calls"][0]["id"]),
                text(&messages[2].as_map()["tool_call_id"]),
            )
        };
        let (call, result) = ids("mistral", "call_0fypS1hVXabc");
        assert_eq!(call, result);
        assert!(
            call.len() == 9 && call.bytes().all(|c| c.is_ascii_alphanumeric()),
            "{call}"
        );
        assert_eq!(ids("mistral", "call_0fypS1hVXabc").0, call);
        assert_ne!(ids("mistral", "call_0fypS1hVXabd").0, call);
        assert_eq!(ids("mistral", "a1B2c3D4e").0, "a1B2c3D4e");
        assert_eq!(ids("qwen25", "call_0fypS1hVXabc").0, "call_0fypS1hVXabc");
    }

    #[test]
    fn messages_of_other_types_are_refused_in_their_place() {
        let call = |function: Value| json!({"role": "assistant", "tool_calls": [function]});
        for (message, what) in [
            (json!({"role": "user", "content": 3}), "its content must be"),
            (
                json!({"role": "tool", "content": {"a": 1}}),
                "its content must be",
            ),
            (
                json!({"role": "assistant", "tool_calls": "f"}),
                "its tool_calls must be a list",
            ),
            (
                json!({"role": "assistant", "reasoning": 3}),
                "its reasoning must be a text",
            ),
            (call(json!(1)), "tool_calls[0] is no object"),
            (
                call(json!({"function": "f"})),
                "tool_calls[0]: its function is no object",
            ),
            (
                call(json!({"id": "c"})),
                "tool_calls[0]: it names no function",
            ),
            (
                call(json!({"function": {"name": 3, "arguments": "{}"}})),
                "tool_calls[0]: it names no function",
            ),
        ] {
            let error = prepared(json!([message])).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("messages[0]: {what}")),
                "{error}"
            );
        }
        for content in [json!(null), json!([]), json!("x")] {
            let message = json!({"role": "assistant", "content": content, "tool_calls": null, "reasoning": null});
            assert!(prepared(json!([message])).is_ok());
        }
    }

    #[test]
    fn parts_are_joined_and_others_refused() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let messages = prepared(json!([{"role": "developer", "content": parts}])).unwrap();
        assert_eq!(
            (messages[0].role(), messages[0].text()),
            (Some("system"), Some("a\nb"))
        );
        let image = json!([{"role": "user", "content": [{"type": "image_url"}]}]);
        let error = prepared(image).unwrap_err().to_string();
        assert!(error.contains("image_url"), "{error}");
    }

    #[test]
    fn system_messages_move_to_the_front() {
        let messages = [("system", "a"), ("user", "b"), ("system", "c")];
        let messages = messages.map(|(role, text)| Message::new(role, text));
        let merged = merge_system(&messages).unwrap();
        assert_eq!(merged.len(), 2);
        assert_eq!(merged[0].text(), Some("a\n\nc"));
        assert!(merge_system(&merged).is_none());
    }
}
