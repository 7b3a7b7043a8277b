//! One message of a conversation.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::text::tokenizer::json_kind;

/// A message: `role`, `content`, and other keys that a template reads (`tool_calls`, `name`, …), in order.
///
/// ```
/// use mlx_infer::Message;
/// let message = Message::new("user", "hello").with("name", "ann");
/// assert_eq!(message.role(), Some("user"));
/// assert_eq!(message.text(), Some("hello"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Message(Map<String, Value>);

impl Message {
    /// A message with a role and a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self::default()
            .with("role", role.into())
            .with("content", content.into())
    }

    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// An answer of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// What the model is told before the conversation.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// The same message with another key, or another value for a key.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.0.insert(key.into(), value.into());
        self
    }

    /// The messages of a JSON list of objects, or of an object that has such a list under `messages`.
    ///
    /// # Errors
    /// When the JSON is anything else, or a message has no role.
    pub fn list_from_json(json: Value) -> Result<Vec<Self>> {
        let list = match json {
            Value::Array(list) => list,
            Value::Object(mut object) => match object.shift_remove("messages") {
                Some(Value::Array(list)) => list,
                Some(other) => {
                    return Err(Error::format(format!(
                        "messages: expected a list, found {}",
                        json_kind(&other)
                    )));
                }
                None => {
                    return Err(Error::format(
                        "expected a list of messages, found an object without messages",
                    ));
                }
            },
            other => {
                return Err(Error::format(format!(
                    "expected a list of messages, found {}",
                    json_kind(&other)
                )));
            }
        };
        let message = |(index, value)| match value {
            Value::Object(object) if object.get("role").is_some_and(Value::is_string) => {
                Ok(Self(object))
            }
            Value::Object(_) => Err(Error::format(format!("message {index} has no role"))),
            other => Err(Error::format(format!(
                "message {index}: expected an object, found {}",
                json_kind(&other)
            ))),
        };
        list.into_iter().enumerate().map(message).collect()
    }

    /// The speaker.
    pub fn role(&self) -> Option<&str> {
        self.0.get("role").and_then(Value::as_str)
    }

    /// The content, if it is a text and not a list of parts.
    pub fn text(&self) -> Option<&str> {
        self.0.get("content").and_then(Value::as_str)
    }

    /// All keys and values.
    pub fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }

    /// The message for templates: nulls removed, and reasoning under each of its names (transformers,
    /// `apply_chat_template` and `_alias_reasoning_fields`).
    pub(super) fn for_template(&self) -> Map<String, Value> {
        let mut kept: Map<String, Value> = self
            .0
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let reasoning = ["reasoning_content", "thinking", "reasoning"]
            .into_iter()
            .find_map(|name| kept.get(name).cloned());
        let Some(reasoning) = reasoning else {
            return kept;
        };
        kept.insert("reasoning_content".to_owned(), reasoning.clone());
        let mut message = Map::new();
        message.insert("thinking".to_owned(), reasoning);
        message.extend(kept);
        message
    }
}

impl From<Map<String, Value>> for Message {
    fn from(map: Map<String, Value>) -> Self {
        Self(map)
    }
}
