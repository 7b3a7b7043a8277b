//! Writes answers as lines of JSON, or as one JSON document.

use std::time::Duration;

use axum::Json;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::request::generation::{FinishReason, GenerateOptions};
use crate::request::metrics::Metrics;
use crate::request::sampling::Choice;
use crate::serve::http::error::ApiError;
use crate::serve::http::sse;
use crate::serve::http::trace::Trace;
use crate::serve::routes::openai::logprobs;
use crate::serve::state::Loaded;
use crate::serve::turn::choices::{Choices, RowStep};
use crate::serve::turn::{Replies, call_id};
use crate::text::chat::reply::Part;
use crate::text::tokenizer::Tokenizer;

/// The keys of the text in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerForm {
    /// `message`, an object.
    Chat,
    /// `response`, a text.
    Generate,
}

/// How the steps of a row are read.
enum Source {
    /// Nothing is generated.
    Nothing,
    /// As a reply: reasoning, content and calls.
    Replies(Replies),
    /// As a text. These tokens end it.
    Text(Vec<u32>),
}

/// What a row has said and was not written yet.
#[derive(Default)]
struct Said {
    thinking: String,
    content: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
}

/// Writes an answer.
pub(super) struct LineWriter {
    form: AnswerForm,
    model: String,
    trace: Trace,
    source: Source,
    /// The tokenizer, if the request asks for log probabilities.
    tokenizer: Option<Tokenizer>,
    said: Said,
    /// Name and arguments of the call that is being written.
    call: Option<(String, String)>,
    calls: usize,
    end: Option<(FinishReason, Metrics)>,
    /// How long the request waited for its model.
    loading: Duration,
}

impl LineWriter {
    pub(super) fn new(form: AnswerForm, model: &str, trace: &Trace) -> Self {
        Self {
            form,
            model: model.to_owned(),
            trace: trace.clone(),
            source: Source::Nothing,
            tokenizer: None,
            said: Said::default(),
            call: None,
            calls: 0,
            end: None,
            loading: Duration::ZERO,
        }
    }

    /// The same for a request that waited for its model.
    pub(super) fn after(self, loading: Duration) -> Self {
        Self { loading, ..self }
    }

    /// # Errors
    /// There is no tokenizer, which log probabilities need.
    pub(super) fn with_logprobs(
        mut self,
        loaded: &Loaded,
        options: &GenerateOptions,
    ) -> Result<Self, ApiError> {
        if options.logprobs.is_some() {
            self.tokenizer = Some(loaded.frontend().tokenizer()?.clone());
        }
        Ok(self)
    }

    pub(super) fn of_replies(mut self, replies: Replies) -> Self {
        self.source = Source::Replies(replies);
        self
    }

    pub(super) fn of_text(mut self, ends: Vec<u32>) -> Self {
        self.source = Source::Text(ends);
        self
    }

    /// The answer to a request without a text, which says why it was answered.
    pub(super) fn without_text(mut self, reason: &str, headers: HeaderMap) -> Response {
        let mut document = self.line();
        document["done"] = true.into();
        document["done_reason"] = reason.into();
        (headers, Json(document)).into_response()
    }

    /// The answer, as a stream or as one document.
    ///
    /// # Errors
    /// The row fails before a stream begins.
    pub(super) async fn respond(
        mut self,
        mut choices: Choices,
        is_stream: bool,
        headers: HeaderMap,
    ) -> Result<Response, ApiError> {
        if is_stream {
            let trace = self.trace.clone();
            return Ok(sse::response(choices, self, trace, headers));
        }
        while let Some(step) = choices.next().await {
            self.take(step?, &mut choices);
        }
        Ok((headers, Json(self.last())).into_response())
    }

    fn take(&mut self, step: RowStep, choices: &mut Choices) {
        match &mut self.source {
            Source::Nothing => {}
            Source::Replies(replies) => {
                let delta = replies.read(step, choices);
                for part in delta.parts {
                    self.take_part(part);
                }
                self.take_tokens(delta.tokens.iter());
                let end = delta.end.map(|end| (end.reason, end.metrics));
                self.end = end.or(self.end.take());
            }
            Source::Text(ends) => {
                self.said.content.push_str(&step.text());
                let ends = std::mem::take(ends);
                let tokens = step.tokens.iter().map(|(choice, _)| choice);
                self.take_tokens(tokens.filter(|choice| !ends.contains(&choice.id)));
                self.source = Source::Text(ends);
                self.end = step.end.or(self.end.take());
            }
        }
    }

    fn take_tokens<'c>(&mut self, tokens: impl Iterator<Item = &'c Choice>) {
        if let Some(tokenizer) = &self.tokenizer {
            let entries = tokens.map(|choice| logprobs::entry(tokenizer, choice));
            self.said.logprobs.extend(entries);
        }
    }

    fn take_part(&mut self, part: Part) {
        match part {
            Part::Reasoning(text) => self.said.thinking.push_str(&text),
            Part::Content(text) => self.said.content.push_str(&text),
            Part::CallStart { name, .. } => self.call = Some((name, String::new())),
            Part::CallArguments { json, .. } => {
                if let Some((_, arguments)) = &mut self.call {
                    arguments.push_str(&json);
                }
            }
            Part::CallEnd { .. } => {
                let Some((name, arguments)) = self.call.take() else {
                    return;
                };
                // The parser ends a call when its arguments are a whole object.
                let arguments: Map<String, Value> =
                    serde_json::from_str(&arguments).unwrap_or_default();
                let function = json!({"index": self.calls, "name": name, "arguments": arguments});
                let call = json!({"id": format!("call_{}", call_id()), "function": function});
                self.said.calls.push(call);
                self.calls += 1;
            }
        }
    }

    /// What was said since the last line.
    fn line(&mut self) -> Value {
        let said = std::mem::take(&mut self.said);
        let mut line = json!({
            "model": self.model,
            "created_at": jiff::Timestamp::now().to_string(),
        });
        match self.form {
            AnswerForm::Chat => {
                let mut message = json!({"role": "assistant", "content": said.content});
                if !said.thinking.is_empty() {
                    message["thinking"] = said.thinking.into();
                }
                if !said.calls.is_empty() {
                    message["tool_calls"] = said.calls.into();
                }
                line["message"] = message;
            }
            AnswerForm::Generate => {
                line["response"] = said.content.into();
                if !said.thinking.is_empty() {
                    line["thinking"] = said.thinking.into();
                }
            }
        }
        if !said.logprobs.is_empty() {
            line["logprobs"] = said.logprobs.into();
        }
        line["done"] = false.into();
        line
    }

    /// The last line, with the counts and the times in nanoseconds. A call that was cut has no
    /// whole arguments, and is left out.
    fn last(&mut self) -> Value {
        let mut line = self.line();
        line["done"] = true.into();
        let Some((reason, metrics)) = &self.end else {
            return line;
        };
        line["done_reason"] = match reason {
            FinishReason::Length | FinishReason::Repetition => "length",
            FinishReason::Stop | FinishReason::Cancelled => "stop",
        }
        .into();
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        line["total_duration"] = nanoseconds(self.trace.elapsed()).into();
        line["load_duration"] = nanoseconds(self.loading).into();
        line["prompt_eval_count"] = metrics.prompt_tokens.into();
        line["prompt_eval_duration"] = nanoseconds(metrics.prefill).into();
        line["eval_count"] = metrics.decode_tokens.into();
        line["eval_duration"] = nanoseconds(metrics.decode).into();
        line
    }
}

/// A document on a line.
fn written(line: &Value) -> String {
    format!("{line}\n")
}

impl sse::EventWriter for LineWriter {
    const KIND: &'static str = "application/x-ndjson";

    /// A line without a text: clients parse every line, so there are no comments.
    fn ping(&mut self) -> String {
        written(&self.line())
    }

    fn begin(&mut self) -> String {
        written(&self.line())
    }

    fn step(&mut self, step: RowStep, choices: &mut Choices) -> String {
        self.take(step, choices);
        let said = &self.said;
        let is_empty = said.thinking.is_empty()
            && said.content.is_empty()
            && said.calls.is_empty()
            && said.logprobs.is_empty();
        match is_empty {
            true => String::new(),
            false => written(&self.line()),
        }
    }

    fn end(&mut self) -> String {
        written(&self.last())
    }

    fn fail(&mut self, error: &ApiError) -> String {
        written(&error.ollama(&self.trace.id))
    }
}
