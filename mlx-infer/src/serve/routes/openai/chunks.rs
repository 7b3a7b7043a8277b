//! The chunks of a stream in the form of chat completions and completions.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::request::generation::FinishReason;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use crate::serve::http::sse;
use crate::serve::http::trace::Trace;

/// Ends a stream.
const DONE: &str = "data: [DONE]\n\n";

/// `stream_options`: whether a stream ends with a chunk that has the usage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamUsage {
    is_included: bool,
}

impl StreamUsage {
    /// # Errors
    /// `stream_options` is no object, a value has another type, or the answer is no stream.
    pub(crate) fn take(fields: &mut Fields, is_stream: bool) -> Result<Self, ApiError> {
        const NAME: &str = "stream_options";
        let options: Option<Map<String, Value>> = fields.take(NAME)?;
        let options = options.unwrap_or_default();
        // `null` counts as absent.
        if !is_stream && options.values().any(|value| !value.is_null()) {
            return Err(ApiError::bad(NAME, "stream_options needs stream: true"));
        }
        fields.name_others(NAME, &options, &["include_usage", "include_obfuscation"])?;
        match options.get("include_usage") {
            None | Some(Value::Null) => Ok(Self::default()),
            Some(&Value::Bool(is_included)) => Ok(Self { is_included }),
            Some(other) => {
                let message = format!("{NAME}: include_usage must be true or false, given {other}");
                Err(ApiError::bad(NAME, message))
            }
        }
    }
}

/// The parts that all chunks of a stream have in common.
pub(crate) struct Chunks {
    /// `id`, `object`, `created`, `model`.
    head: Value,
    /// The event of a chunk before its choice, and after it. Both are the same in each chunk.
    around: [String; 2],
    usage: StreamUsage,
    trace: Trace,
}

impl Chunks {
    pub(crate) fn new(head: Value, usage: StreamUsage, trace: Trace) -> Self {
        let object = head.to_string();
        let open = object.strip_suffix('}').unwrap_or(&object);
        // If the last chunk has the usage, the others have `usage: null`.
        let usage_key = if usage.is_included {
            ",\"usage\":null"
        } else {
            ""
        };
        Self {
            around: [
                format!("data: {open},\"choices\":["),
                format!("]{usage_key}"),
            ],
            head,
            usage,
            trace,
        }
    }

    /// The event of a chunk with one choice. The keys of `more` come after the others.
    pub(crate) fn event(&self, choice: &impl Serialize, more: &[(&str, &Value)]) -> String {
        let [before, after] = &self.around;
        // Serialising a choice, a map with string keys, cannot fail.
        let choice = serde_json::to_string(choice).unwrap_or_default();
        let mut event = String::with_capacity(before.len() + choice.len() + after.len() + 3);
        for part in [before, &choice, after] {
            event += part;
        }
        for (key, value) in more {
            event += &format!(",\"{key}\":{value}");
        }
        event + "}\n\n"
    }

    /// The whole answer, with all choices.
    pub(crate) fn whole(&self, choices: Vec<Value>) -> Value {
        let mut document = self.head.clone();
        document["choices"] = choices.into();
        document["usage"] = self.trace.usage().openai();
        document
    }

    /// The usage, if it was asked for, and the end of the stream.
    pub(crate) fn end(&self) -> String {
        match self.usage.is_included {
            true => sse::data(&self.whole(Vec::new())) + DONE,
            false => DONE.to_owned(),
        }
    }

    /// An error, and the end of the stream.
    pub(crate) fn fail(&self, error: &ApiError) -> String {
        sse::data(&error.openai(&self.trace.id)) + DONE
    }
}

/// OpenAI's word for the reason of an end.
pub(crate) fn finish_word(finish: Option<FinishReason>) -> Option<&'static str> {
    finish.map(|reason| match reason {
        FinishReason::Stop | FinishReason::Cancelled => "stop",
        FinishReason::Length => "length",
        FinishReason::Repetition => "repetition",
    })
}
