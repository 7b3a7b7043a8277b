//! The chunks of a stream in the form of chat completions and completions.

use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::Fields;
use super::sse;
use super::trace::Trace;
use crate::generate::FinishReason;

/// Ends a stream.
const DONE: &str = "data: [DONE]\n\n";

/// Whether a stream ends with a chunk that has the usage: `stream_options`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamUsage {
    is_included: bool,
}

impl StreamUsage {
    /// # Errors
    /// `stream_options` is no object, or a value has another type.
    pub(super) fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct Options {
            include_usage: Option<bool>,
        }
        let options: Option<Options> = fields.take("stream_options")?;
        let is_included = options.and_then(|options| options.include_usage);
        Ok(Self {
            is_included: is_included.unwrap_or(false),
        })
    }
}

/// What the chunks of a stream have in common.
pub(super) struct Chunks {
    /// `id`, `object`, `created`, `model`.
    pub(super) head: Value,
    pub(super) usage: StreamUsage,
    pub(super) trace: Trace,
}

impl Chunks {
    /// A chunk with one choice. If the last chunk tells the usage, the others have `usage: null`.
    pub(super) fn chunk(&self, choice: Value) -> Value {
        let mut chunk = self.head.clone();
        chunk["choices"] = json!([choice]);
        if self.usage.is_included {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The whole answer, with all choices.
    pub(super) fn whole(&self, choices: Vec<Value>) -> Value {
        let mut document = self.head.clone();
        document["choices"] = choices.into();
        document["usage"] = self.trace.usage().openai();
        document
    }

    /// The usage, if it was asked for, and the end of the stream.
    pub(super) fn end(&self) -> String {
        match self.usage.is_included {
            true => sse::data(&self.whole(Vec::new())) + DONE,
            false => DONE.to_owned(),
        }
    }

    /// An error, and the end of the stream.
    pub(super) fn fail(&self, error: &ApiError) -> String {
        sse::data(&error.openai(&self.trace.id)) + DONE
    }
}

/// The word for an end in OpenAI's API.
pub(super) fn finish_word(finish: Option<FinishReason>) -> Option<&'static str> {
    finish.map(|reason| match reason {
        FinishReason::Stop | FinishReason::Cancelled => "stop",
        FinishReason::Length => "length",
    })
}
