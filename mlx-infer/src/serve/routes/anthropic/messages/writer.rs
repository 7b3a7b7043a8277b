//! Writes the events of a stream.

use serde_json::{Value, json};

use super::{SIGNATURE, stop_reason, stop_sequence, usage};
use crate::serve::http::error::ApiError;
use crate::serve::http::sse;
use crate::serve::http::trace::{Trace, Usage};
use crate::serve::turn::choices::{Choices, RowStep};
use crate::serve::turn::{Delta, End, Replies, call_id};
use crate::text::chat::reply::Part;

/// The content of the open block of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Open {
    Thinking,
    Text,
    Tool,
}

/// Writes the events of a stream.
pub(super) struct MessagesWriter {
    pub(super) head: Value,
    pub(super) prompt: usize,
    pub(super) stop: Vec<String>,
    pub(super) replies: Replies,
    pub(super) open: Option<Open>,
    pub(super) blocks: usize,
    pub(super) end: Option<End>,
    pub(super) trace: Trace,
}

impl MessagesWriter {
    fn event(name: &str, mut json: Value) -> String {
        json["type"] = name.into();
        sse::event(name, &json)
    }

    fn delta(&self, delta: Value) -> String {
        let index = self.blocks - 1;
        Self::event(
            "content_block_delta",
            json!({"index": index, "delta": delta}),
        )
    }

    fn start(&mut self, kind: Open, block: Value) -> String {
        let mut text = self.stop();
        self.open = Some(kind);
        let start = json!({"index": self.blocks, "content_block": block});
        text += &Self::event("content_block_start", start);
        self.blocks += 1;
        text
    }

    /// Ends the open block.
    fn stop(&mut self) -> String {
        let Some(kind) = self.open.take() else {
            return String::new();
        };
        let mut text = String::new();
        if kind == Open::Thinking {
            text += &self.delta(json!({"type": "signature_delta", "signature": SIGNATURE}));
        }
        text + &Self::event("content_block_stop", json!({"index": self.blocks - 1}))
    }

    fn part(&mut self, part: Part) -> String {
        match part {
            Part::Reasoning(text) => {
                let mut out = String::new();
                if self.open != Some(Open::Thinking) {
                    let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                    out += &self.start(Open::Thinking, block);
                }
                out + &self.delta(json!({"type": "thinking_delta", "thinking": text}))
            }
            Part::Content(text) => {
                let mut out = String::new();
                if self.open != Some(Open::Text) {
                    out += &self.start(Open::Text, json!({"type": "text", "text": ""}));
                }
                out + &self.delta(json!({"type": "text_delta", "text": text}))
            }
            Part::CallStart { name, .. } => {
                let id = format!("toolu_{}", call_id());
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.start(Open::Tool, block)
            }
            Part::CallArguments { json, .. } => {
                self.delta(json!({"type": "input_json_delta", "partial_json": json}))
            }
            Part::CallEnd { .. } => self.stop(),
        }
    }
}

impl sse::EventWriter for MessagesWriter {
    fn begin(&mut self) -> String {
        let mut message = self.head.clone();
        let counts = Usage {
            prompt: self.prompt,
            ..Usage::default()
        };
        message["usage"] = usage(&counts);
        let ping = Self::event("ping", json!({}));
        Self::event("message_start", json!({"message": message})) + &ping
    }

    fn step(&mut self, step: RowStep, choices: &mut Choices) -> String {
        let Delta { parts, end, .. } = self.replies.read(step, choices);
        self.end = end.or(self.end);
        parts.into_iter().map(|part| self.part(part)).collect()
    }

    fn end(&mut self) -> String {
        let mut text = String::new();
        if self.blocks == 0 {
            text += &self.start(Open::Text, json!({"type": "text", "text": ""}));
        }
        text += &self.stop();
        let delta = json!({
            "delta": {
                "stop_reason": stop_reason(self.end.as_ref()),
                "stop_sequence": stop_sequence(self.end.as_ref(), &self.stop),
            },
            "usage": usage(&self.trace.usage()),
        });
        text += &Self::event("message_delta", delta);
        text + &Self::event("message_stop", json!({}))
    }

    fn fail(&mut self, error: &ApiError) -> String {
        sse::event("error", &error.anthropic(&self.trace.id))
    }
}
