//! The trace of one request: its id, its line in the log, its share of the metrics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use serde_json::{Map, Value, json};

use crate::engine::sequence::random_seed;
use crate::host::console;
use crate::request::generation::FinishReason;
use crate::request::metrics::Metrics;
use crate::request::speculative::MOST;
use crate::serve::http::guard::{Holder, Permit};
#[cfg(feature = "otel")]
use crate::serve::http::spans::{SpanContext, SpanEnd};
use crate::serve::state::{Shared, now};

/// A request from its arrival to the last byte of its answer. Dropping the last clone writes the line in the log.
pub(crate) type Trace = Arc<Inner>;

pub(crate) struct Inner {
    app: Shared,
    /// The request's id, the client's own or a new one.
    pub(crate) id: String,
    route: String,
    is_probe: bool,
    /// Whether it is a line of a batch, which yields to all other requests.
    pub(crate) is_background: bool,
    arrived: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    permit: Option<Permit>,
    status: Option<u16>,
    /// Whether the answer is a stream.
    is_stream: bool,
    has_ended: bool,
    finishes: Vec<FinishReason>,
    usage: Usage,
    fault: Option<String>,
    /// The name of its model, if the server has several.
    model: Option<String>,
    /// The place of the request in a trace, if traces are sent.
    #[cfg(feature = "otel")]
    span: Option<SpanContext>,
}

/// Counts of a request's tokens, over all of its choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) completion: usize,
    /// Tokens that the engine computed after the end of an answer; they belong to no answer.
    pub(crate) unread: usize,
    pub(crate) reasoning: usize,
    pub(crate) drafted: usize,
    pub(crate) accepted: usize,
    /// Accepted draft tokens by their positions.
    pub(crate) accepted_at: [usize; MOST],
    /// Steps that produced tokens.
    pub(crate) steps: usize,
}

impl Usage {
    /// Adds a row. The prompt of several rows with the same prompt counts once.
    pub(crate) fn add(&mut self, row: &Metrics, is_same_prompt: bool) {
        if !is_same_prompt {
            self.prompt += row.prompt_tokens;
            self.cached += row.cached_tokens;
        }
        self.completion += row.decode_tokens;
        self.drafted += row.drafted_tokens;
        self.accepted += row.accepted_draft_tokens;
        self.steps += row.decode_steps;
        for (sum, n) in self.accepted_at.iter_mut().zip(row.accepted_by_position()) {
            *sum += *n as usize;
        }
    }

    /// The counts without the tokens that belong to no answer.
    fn read(mut self) -> Self {
        self.completion = self
            .completion
            .saturating_sub(std::mem::take(&mut self.unread));
        self
    }

    /// OpenAI's `usage`.
    pub(crate) fn openai(&self) -> Value {
        let mut usage = json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        });
        if self.drafted > 0 {
            let details = &mut usage["completion_tokens_details"];
            details["accepted_prediction_tokens"] = self.accepted.into();
            details["rejected_prediction_tokens"] = (self.drafted - self.accepted).into();
            details["accepted_by_position"] = self.accepted_at.as_slice().into();
            details["tokens_per_step"] = (self.completion as f64 / self.steps.max(1) as f64).into();
        }
        usage
    }
}

/// nginx's status for a client that disconnected before the answer.
const LEFT: u16 = 499;

/// The longest `x-request-id` that is used.
const MAX_ID: usize = 128;

/// A trace of a request that has just arrived.
pub(crate) fn begin(app: Shared, headers: &HeaderMap, route: String, is_background: bool) -> Trace {
    let given = headers.get("x-request-id");
    let given = given.and_then(|id| id.to_str().ok()).filter(|id| {
        !id.is_empty() && id.len() <= MAX_ID && id.bytes().all(|byte| byte.is_ascii_graphic())
    });
    app.enter();
    #[cfg(feature = "otel")]
    let state = State {
        span: app.spans.as_ref().map(|_| SpanContext::begin(headers)),
        ..State::default()
    };
    #[cfg(not(feature = "otel"))]
    let state = State::default();
    Arc::new(Inner {
        id: given.map_or_else(|| new_id("req_"), str::to_owned),
        is_background,
        is_probe: ["GET /health", "GET /ready", "GET /metrics"].contains(&route.as_str()),
        route,
        arrived: Instant::now(),
        state: Mutex::new(state),
        app,
    })
}

/// A new id with a prefix and 24 hexadecimal digits.
pub(crate) fn new_id(prefix: &str) -> String {
    let (a, b) = (random_seed(), random_seed());
    format!("{prefix}{a:016x}{:08x}", b as u32)
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time since the request has arrived.
    pub(crate) fn elapsed(&self) -> Duration {
        self.arrived.elapsed()
    }

    /// Holds a place among the requests of a key until the request has ended.
    pub(crate) fn hold(&self, permit: Permit) {
        self.state().permit = Some(permit);
    }

    /// Names the model in the log.
    pub(crate) fn serve(&self, model: &str) {
        self.state().model = Some(model.to_owned());
    }

    /// The holder of the key of a request with a body; `None` before [`hold`](Self::hold).
    pub(crate) fn holder(&self) -> Option<Holder> {
        self.state().permit.as_ref().map(Permit::holder)
    }

    /// Records the status of the response.
    pub(crate) fn respond(&self, status: u16) {
        self.app.metrics.responded(status);
        self.state().status = Some(status);
    }

    /// Marks the answer as a stream, which [`end`](Self::end) completes.
    pub(crate) fn stream(&self) {
        self.state().is_stream = true;
    }

    /// Marks the stream as complete.
    pub(crate) fn end(&self) {
        self.state().has_ended = true;
    }

    /// Adds the tokens of a prompt that gets no answer.
    pub(crate) fn prompt(&self, tokens: usize) {
        self.state().usage.prompt += tokens;
    }

    /// Removes tokens that the engine computed after the end of an answer from the counts.
    pub(crate) fn unread(&self, tokens: usize) {
        if tokens > 0 {
            self.state().usage.unread += tokens;
        }
    }

    /// Adds tokens of reasoning.
    pub(crate) fn reasoned(&self, tokens: usize) {
        self.state().usage.reasoning += tokens;
    }

    /// The counts so far.
    pub(crate) fn usage(&self) -> Usage {
        self.state().usage.read()
    }

    /// Adds the counts of a row that has ended.
    pub(crate) fn finished(&self, reason: FinishReason, row: &Metrics, is_same_prompt: bool) {
        let mut state = self.state();
        state.finishes.push(reason);
        state.usage.add(row, is_same_prompt);
        #[cfg(feature = "otel")]
        if let Some(span) = &mut state.span {
            span.add(row);
        }
    }

    /// Keeps the reason of a failure for the log. It is not sent to the client.
    pub(crate) fn blame(&self, fault: String) {
        self.state().fault.get_or_insert(fault);
    }
}

#[cfg(feature = "otel")]
impl Inner {
    /// Sends the spans of the request. Probes have none.
    fn end_span(&self, state: &mut State, is_probe: bool) {
        let (Some(exporter), Some(span)) = (&self.app.spans, state.span.take()) else {
            return;
        };
        if is_probe {
            return;
        }
        let usage = state.usage.read();
        let end = SpanEnd {
            route: &self.route,
            request_id: &self.id,
            status: state.status.unwrap_or(LEFT),
            model: &self.app.settings.names[0],
            tokens: [usage.prompt, usage.cached, usage.completion],
            finishes: state.finishes.iter().map(|one| one.as_str()).collect(),
            fault: state.fault.as_deref(),
        };
        exporter.end(span, &end);
    }
}

impl Inner {
    /// The line in the log as JSON.
    fn fields(&self, state: &State, has_left: bool) -> Map<String, Value> {
        let (method, path) = self.route.split_once(' ').unwrap_or_default();
        let usage = state.usage.read();
        let seconds = (self.arrived.elapsed().as_secs_f64() * 1e3).round() / 1e3;
        let finishes: Vec<&str> = state.finishes.iter().map(|one| one.as_str()).collect();
        let fields = json!({
            "message": "request",
            "status": state.status.unwrap_or(LEFT),
            "method": method,
            "path": path,
            "id": self.id,
            "prompt": usage.prompt,
            "cached": usage.cached,
            "tokens": usage.completion,
            "seconds": seconds,
            "finish": finishes,
            "left": has_left,
            "error": state.fault,
        });
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut state = std::mem::take(&mut *self.state());
        drop(state.permit.take());
        self.app.leave();
        let has_left = state.status.is_none() || (state.is_stream && !state.has_ended);
        if has_left {
            self.app.metrics.disconnected();
        }
        // Health probes come every few seconds and would flood the log.
        let is_probe = self.is_probe && state.status == Some(200);
        #[cfg(feature = "otel")]
        self.end_span(&mut state, is_probe);
        // The answers of a batch are in its files, and what there is no room for is tried again.
        let is_usual = state.fault.is_none() || state.status == Some(503);
        let is_probe = is_probe || (self.is_background && is_usual);
        if is_probe || !self.app.settings.log {
            return;
        }
        if self.app.settings.json_log {
            return console::record(self.fields(&state, has_left));
        }
        let time = jiff::Timestamp::from_second(now() as i64).unwrap_or_default();
        let status = state.status.unwrap_or(LEFT);
        let mut line = format!("{time} {status} {} id={}", self.route, self.id);
        if let Some(model) = &state.model {
            line += &format!(" model={model:?}");
        }
        let usage = state.usage.read();
        if usage.prompt > 0 {
            line += &format!(
                " prompt={} cached={} tokens={}",
                usage.prompt, usage.cached, usage.completion
            );
        }
        line += &format!(" s={:.3}", self.arrived.elapsed().as_secs_f64());
        if !state.finishes.is_empty() {
            let words: Vec<&str> = state.finishes.iter().map(|one| one.as_str()).collect();
            line += &format!(" finish={}", words.join(","));
        }
        if has_left {
            line += " left";
        }
        if let Some(fault) = state.fault {
            line += &format!(" error={fault:?}");
        }
        console::note(&line);
    }
}
