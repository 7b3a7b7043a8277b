//! Writes a response, whole or as events.

use serde_json::{Value, json};

use super::tools::OwnTools;
use super::{items, usage};
use crate::request::generation::FinishReason;
use crate::serve::http::background::BackgroundWriter;
use crate::serve::http::error::ApiError;
use crate::serve::http::sse;
use crate::serve::http::trace::{Trace, new_id};
use crate::serve::routes::openai::logprobs;
use crate::serve::turn::choices::{Choices, RowStep};
use crate::serve::turn::{Call, InputReader, Replies, Whole};
use crate::text::chat::reply::Part;
use crate::text::tokenizer::Tokenizer;

/// The ids of an answer's items.
#[derive(Clone, Debug)]
pub(super) struct Ids {
    pub(super) reasoning: String,
    pub(super) message: String,
    pub(super) calls: Vec<String>,
}

/// The item that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Reasoning,
    Message,
    Call,
}

/// The state of a response.
pub(super) struct ResponsesWriter {
    head: Value,
    replies: Replies,
    trace: Trace,
    tokenizer: Option<Tokenizer>,
    own: OwnTools,
    /// Whether items of reasoning have `encrypted_content`.
    pub(super) seals: bool,
    /// Reads the input of the call that is being written, if its tool is one of these.
    input: Option<InputReader>,
    whole: Whole,
    /// The number of first tokens whose log probabilities were in an event, or that belong to the
    /// reasoning.
    told: usize,
    ids: Ids,
    open: Option<Open>,
    /// The number of items that were begun.
    begun: usize,
    sequence: usize,
}

impl ResponsesWriter {
    pub(super) fn new(
        head: Value,
        replies: Replies,
        trace: Trace,
        tokenizer: Option<Tokenizer>,
        own: OwnTools,
    ) -> Self {
        Self {
            head,
            replies,
            trace,
            tokenizer,
            own,
            seals: false,
            input: None,
            whole: Whole::default(),
            told: 0,
            ids: Ids {
                reasoning: new_id("rs_"),
                message: new_id("msg_"),
                calls: Vec::new(),
            },
            open: None,
            begun: 0,
            sequence: 0,
        }
    }

    /// The response before anything is computed.
    pub(super) fn head(&self) -> &Value {
        &self.head
    }

    /// Takes a step and returns the parts that it adds.
    pub(super) fn read(&mut self, step: RowStep, choices: &mut Choices) -> Vec<Part> {
        let delta = self.replies.read(step, choices);
        let parts = delta.parts.clone();
        self.whole.add(delta);
        let known = self.ids.calls.len();
        for call in &self.whole.calls[known..] {
            let is_custom = self.own.is_custom(&call.name);
            let id = new_id(if is_custom { "ctc_" } else { "fc_" });
            self.ids.calls.push(id);
        }
        parts
    }

    /// The log probabilities of the tokens from `start` on, if they were asked for.
    fn logprobs(&self, start: usize) -> Value {
        match &self.tokenizer {
            Some(tokenizer) => {
                let tokens = self.whole.tokens[start..].iter();
                tokens
                    .map(|token| logprobs::entry(tokenizer, token))
                    .collect()
            }
            None => json!([]),
        }
    }

    fn items(&self) -> Vec<Value> {
        let logprobs = self.logprobs(0);
        items(&self.ids, &self.whole, &self.own, self.seals, &logprobs)
    }

    /// The response in its final state.
    pub(super) fn whole(&self) -> Value {
        let mut response = self.head.clone();
        let cut = match self.whole.end.map(|end| end.reason) {
            Some(FinishReason::Length) => Some("max_output_tokens"),
            Some(FinishReason::Repetition) => Some("repetition"),
            _ => None,
        };
        let status = cut.map_or("completed", |_| "incomplete");
        response["status"] = status.into();
        if let Some(reason) = cut {
            response["incomplete_details"] = json!({"reason": reason});
        }
        response["output"] = self.items().into();
        response["usage"] = usage(&self.trace.usage());
        response
    }

    fn event(&mut self, name: &str, mut json: Value) -> String {
        let name = format!("response.{name}");
        json["type"] = name.as_str().into();
        json["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        sse::event(&name, &json)
    }

    fn index(&self) -> usize {
        self.begun - 1
    }

    /// An event about the open item's only part.
    fn in_part(&mut self, name: &str, id: &str, mut json: Value) -> String {
        json["item_id"] = id.into();
        json["output_index"] = self.index().into();
        json["content_index"] = 0.into();
        self.event(name, json)
    }

    fn start(&mut self, kind: Open, item: Value) -> String {
        let mut text = self.stop();
        self.open = Some(kind);
        self.begun += 1;
        let index = self.index();
        text += &self.event(
            "output_item.added",
            json!({"output_index": index, "item": item}),
        );
        text
    }

    /// Ends the open item.
    fn stop(&mut self) -> String {
        let Some(kind) = self.open.take() else {
            return String::new();
        };
        let mut text = String::new();
        let all = self.items();
        let wanted = match kind {
            Open::Reasoning => self.ids.reasoning.clone(),
            Open::Message => self.ids.message.clone(),
            Open::Call => self.ids.calls.last().cloned().unwrap_or_default(),
        };
        let item = all.into_iter().find(|item| item["id"] == wanted);
        let item = item.unwrap_or_default();
        match kind {
            Open::Reasoning => {
                let said = item["content"][0]["text"].clone();
                text += &self.in_part("reasoning_text.done", &wanted, json!({"text": said}));
            }
            Open::Message => {
                let part = item["content"][0].clone();
                let done = json!({"text": part["text"], "logprobs": part["logprobs"]});
                text += &self.in_part("output_text.done", &wanted, done);
                text += &self.in_part("content_part.done", &wanted, json!({"part": part}));
            }
            Open::Call => {
                let index = self.index();
                let mut done = json!({"item_id": wanted, "output_index": index});
                let name = match self.input.take() {
                    Some(_) => {
                        done["input"] = item["input"].clone();
                        "custom_tool_call_input.done"
                    }
                    None => {
                        done["name"] = item["name"].clone();
                        done["arguments"] = item["arguments"].clone();
                        "function_call_arguments.done"
                    }
                };
                text += &self.event(name, done);
            }
        }
        let index = self.index();
        text + &self.event(
            "output_item.done",
            json!({"output_index": index, "item": item}),
        )
    }

    fn begin_message(&mut self) -> String {
        let id = self.ids.message.clone();
        let item = json!({
            "id": id, "type": "message", "role": "assistant", "status": "in_progress", "content": [],
        });
        let mut text = self.start(Open::Message, item);
        let part = json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
        text += &self.in_part("content_part.added", &id, json!({"part": part}));
        text
    }

    fn part(&mut self, part: Part) -> String {
        match part {
            Part::Reasoning(said) => {
                self.told = self.whole.tokens.len();
                let id = self.ids.reasoning.clone();
                let mut text = String::new();
                if self.open != Some(Open::Reasoning) {
                    let item = json!({
                        "id": id, "type": "reasoning", "status": "in_progress",
                        "summary": [], "content": [],
                    });
                    text += &self.start(Open::Reasoning, item);
                }
                text + &self.in_part("reasoning_text.delta", &id, json!({"delta": said}))
            }
            Part::Content(said) => {
                let id = self.ids.message.clone();
                let mut text = String::new();
                if self.open != Some(Open::Message) {
                    text += &self.begin_message();
                }
                let told = std::mem::replace(&mut self.told, self.whole.tokens.len());
                let delta = json!({"delta": said, "logprobs": self.logprobs(told)});
                text + &self.in_part("output_text.delta", &id, delta)
            }
            Part::CallStart { index, name } => {
                let is_custom = self.own.is_custom(&name);
                let call = self.whole.calls.get(index).cloned().unwrap_or_default();
                // The whole answer may have more of the call than this event.
                let call = Call {
                    arguments: String::new(),
                    ..call
                };
                let id = self.ids.calls.get(index).cloned().unwrap_or_default();
                let text = self.start(Open::Call, self.own.call_item(&id, &call));
                self.input = is_custom.then(InputReader::default);
                text
            }
            Part::CallArguments { index, json } => {
                let (name, said) = match &mut self.input {
                    Some(input) => ("custom_tool_call_input.delta", input.push(&json)),
                    None => ("function_call_arguments.delta", json),
                };
                if said.is_empty() {
                    return String::new();
                }
                let delta = json!({
                    "item_id": self.ids.calls.get(index), "output_index": self.index(), "delta": said,
                });
                self.event(name, delta)
            }
            Part::CallEnd { .. } => self.stop(),
        }
    }
}

impl sse::EventWriter for ResponsesWriter {
    fn begin(&mut self) -> String {
        let response = self.head.clone();
        let created = self.event("created", json!({"response": response}));
        created + &self.event("in_progress", json!({"response": response}))
    }

    fn step(&mut self, step: RowStep, choices: &mut Choices) -> String {
        let parts = self.read(step, choices);
        parts.into_iter().map(|part| self.part(part)).collect()
    }

    fn end(&mut self) -> String {
        let mut text = String::new();
        if self.begun == 0 {
            text += &self.begin_message();
        }
        text += &self.stop();
        let response = self.whole();
        let name = match response["status"] == "incomplete" {
            true => "incomplete",
            false => "completed",
        };
        text + &self.event(name, json!({"response": response}))
    }

    fn fail(&mut self, error: &ApiError) -> String {
        let mut response = self.head.clone();
        response["status"] = "failed".into();
        let error = error.openai(&self.trace.id);
        let code = error["error"]["type"].clone();
        response["error"] = json!({"code": code, "message": error["error"]["message"]});
        self.event("failed", json!({"response": response}))
    }
}

impl BackgroundWriter for ResponsesWriter {
    fn cancel(&mut self) -> String {
        let mut response = self.head.clone();
        response["status"] = "cancelled".into();
        response["output"] = self.items().into();
        self.event("cancelled", json!({"response": response}))
    }
}
