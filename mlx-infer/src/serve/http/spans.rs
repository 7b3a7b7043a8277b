//! Traces of requests in OpenTelemetry's form, sent to a collector (OTLP over HTTP, as JSON).
//!
//! Each request is a span of the server, a child of the span in its `traceparent` header if it has
//! one. Each of its rows has three spans below it: the time in the queue, the prompt's computation,
//! and the generation. Names of attributes are those of OpenTelemetry's conventions for HTTP and for
//! generative models. Spans are sent by a thread of their own; those that do not fit into its queue
//! are dropped, with a warning.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::engine::sequence::random_seed;
use crate::request::metrics::Metrics;

/// Most traces that wait to be sent.
const QUEUE: usize = 4096;
/// Most spans that are sent at a time.
const BATCH: usize = 512;
/// How long spans wait for others.
const WAIT: Duration = Duration::from_secs(2);
/// How long a collector may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// OpenTelemetry's kinds of spans.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
/// The status of a span that failed.
const FAILED: u8 = 2;

/// Sends spans to a collector. Dropping it sends those that wait.
pub(crate) struct SpanExporter {
    spans: Mutex<Option<SyncSender<Vec<Value>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    has_warned: AtomicBool,
}

/// The place of a request in a trace.
pub(crate) struct SpanContext {
    trace: String,
    span: String,
    parent: Option<String>,
    /// Whether the client has asked for its spans.
    is_sampled: bool,
    began: SystemTime,
    rows: Vec<Value>,
}

/// What a request's span says at its end.
pub(crate) struct SpanEnd<'a> {
    pub(crate) route: &'a str,
    pub(crate) request_id: &'a str,
    pub(crate) status: u16,
    pub(crate) model: &'a str,
    /// Tokens of the prompt, those of it that were not computed, and tokens of the answer.
    pub(crate) tokens: [usize; 3],
    pub(crate) finishes: Vec<&'static str>,
    pub(crate) fault: Option<&'a str>,
}

impl SpanExporter {
    /// Starts the thread for a collector at `endpoint`, such as `http://localhost:4318`.
    pub(crate) fn start(endpoint: &str, service: &str) -> Self {
        let (sender, spans) = sync_channel(QUEUE);
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let service = service.to_owned();
        let run = move || send_all(&spans, &url, &service);
        let thread = std::thread::Builder::new()
            .name("mlx-spans".to_owned())
            .spawn(run);
        if let Err(error) = &thread {
            tracing::warn!("no traces are sent: {error}");
        }
        Self {
            spans: Mutex::new(thread.is_ok().then_some(sender)),
            thread: Mutex::new(thread.ok()),
            has_warned: AtomicBool::new(false),
        }
    }

    /// Queues the spans of a request that has ended.
    pub(crate) fn end(&self, context: SpanContext, end: &SpanEnd<'_>) {
        if !context.is_sampled {
            return;
        }
        let lock = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sender) = &*lock else { return };
        let sent = sender.try_send(context.spans(end, SystemTime::now()));
        if sent.is_err() && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("traces are dropped: the collector takes them too slowly");
        }
    }

    /// Sends what waits, and ends the thread.
    pub(crate) fn finish(&self) {
        drop(
            self.spans
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let _ = thread.map(JoinHandle::join);
    }
}

impl Drop for SpanExporter {
    fn drop(&mut self) {
        self.finish();
    }
}

impl SpanContext {
    /// The context of a request that has just arrived, from its header `traceparent` (W3C Trace
    /// Context).
    pub(crate) fn begin(headers: &HeaderMap) -> Self {
        let given = headers
            .get("traceparent")
            .and_then(|value| value.to_str().ok());
        let parent = given.and_then(parsed);
        let (trace, parent, is_sampled) = match parent {
            Some((trace, span, is_sampled)) => (trace, Some(span), is_sampled),
            None => (new_id(2), None, true),
        };
        Self {
            trace,
            span: new_id(1),
            parent,
            is_sampled,
            began: SystemTime::now(),
            rows: Vec::new(),
        }
    }

    /// Adds the spans of a row that has ended.
    pub(crate) fn add(&mut self, row: &Metrics) {
        let end = SystemTime::now();
        let Some(start) = end.checked_sub(row.total) else {
            return;
        };
        let first = start + row.time_to_first_token;
        for (name, from, to) in [
            ("queue", start, start + row.queued),
            ("prefill", start + row.queued, first),
            ("decode", first, first + row.decode),
        ] {
            self.rows.push(json!({
                "traceId": self.trace,
                "spanId": new_id(1),
                "parentSpanId": self.span,
                "name": name,
                "kind": INTERNAL,
                "startTimeUnixNano": nanos(from),
                "endTimeUnixNano": nanos(to),
            }));
        }
    }

    /// All spans of the request.
    fn spans(self, end: &SpanEnd<'_>, now: SystemTime) -> Vec<Value> {
        let (method, path) = end.route.split_once(' ').unwrap_or_default();
        let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
        let number =
            |key: &str, value: usize| json!({"key": key, "value": {"intValue": value.to_string()}});
        let [prompt, cached, answer] = end.tokens;
        let mut attributes = vec![
            text("http.request.method", method),
            text("url.path", path),
            number("http.response.status_code", end.status.into()),
            text("http.request.header.x-request-id", end.request_id),
        ];
        if prompt > 0 {
            let reasons = end
                .finishes
                .iter()
                .map(|reason| json!({"stringValue": reason}));
            let reasons: Vec<Value> = reasons.collect();
            attributes.extend([
                text("gen_ai.request.model", end.model),
                number("gen_ai.usage.input_tokens", prompt),
                number("gen_ai.usage.cache_read.input_tokens", cached),
                number("gen_ai.usage.output_tokens", answer),
                json!({"key": "gen_ai.response.finish_reasons", "value": {"arrayValue": {"values": reasons}}}),
            ]);
        }
        let mut span = json!({
            "traceId": self.trace,
            "spanId": self.span,
            "name": end.route,
            "kind": SERVER,
            "startTimeUnixNano": nanos(self.began),
            "endTimeUnixNano": nanos(now),
            "attributes": attributes,
        });
        if let Some(parent) = self.parent {
            span["parentSpanId"] = parent.into();
        }
        if end.status >= 500 {
            span["status"] = json!({"code": FAILED, "message": end.fault.unwrap_or_default()});
        }
        let mut spans = vec![span];
        spans.extend(self.rows);
        spans
    }
}

/// The ids of the trace and of the parent span of a `traceparent` header, and whether its spans are
/// wanted.
fn parsed(header: &str) -> Option<(String, String, bool)> {
    let parts: Vec<&str> = header.trim().split('-').collect();
    let [version, trace, span, flags, ..] = parts[..] else {
        return None;
    };
    let is_hex = |text: &str, length: usize| {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        text.len() == length && text.bytes().all(is_digit)
    };
    let is_id = |text: &str, length| is_hex(text, length) && text.bytes().any(|byte| byte != b'0');
    // Later versions may have more parts.
    let is_known = version == "00" && parts.len() == 4
        || is_hex(version, 2) && !["00", "ff"].contains(&version);
    let is_whole = is_known && is_id(trace, 32) && is_id(span, 16) && is_hex(flags, 2);
    let is_sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    is_whole.then(|| (trace.to_owned(), span.to_owned(), is_sampled))
}

/// An id of so many times 8 bytes.
fn new_id(words: usize) -> String {
    // An id of zeros is invalid.
    (0..words)
        .map(|_| format!("{:016x}", random_seed().max(1)))
        .collect()
}

fn nanos(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos().to_string()
}

/// Sends spans until their sender is dropped.
fn send_all(spans: &Receiver<Vec<Value>>, url: &str, service: &str) {
    let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT));
    let agent = config.build().new_agent();
    let mut has_failed = false;
    loop {
        let Ok(mut batch) = spans.recv() else { return };
        let until = Instant::now() + WAIT;
        while batch.len() < BATCH {
            match spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(more) => batch.extend(more),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let body = document(&batch, service).to_string();
        let request = agent.post(url).header("content-type", "application/json");
        match request.send(body.as_bytes()) {
            Ok(_) => has_failed = false,
            // One warning for each failure of the collector, not for each batch.
            Err(error) if !has_failed => {
                tracing::warn!("traces cannot be sent to {url}: {error}");
                has_failed = true;
            }
            Err(_) => {}
        }
    }
}

/// The body of a request to a collector.
fn document(spans: &[Value], service: &str) -> Value {
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let version = env!("CARGO_PKG_VERSION");
    json!({"resourceSpans": [{
        "resource": {"attributes": [text("service.name", service), text("service.version", version)]},
        "scopeSpans": [{"scope": {"name": "mlx-infer", "version": version}, "spans": spans}],
    }]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_read_as_the_standard_says() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let read = |header: &str| parsed(header).map(|(_, _, is_sampled)| is_sampled);
        assert_eq!(read(&format!("00-{trace}-{span}-01")), Some(true));
        assert_eq!(read(&format!("00-{trace}-{span}-00")), Some(false));
        assert_eq!(read(&format!("01-{trace}-{span}-03-more")), Some(true));
        for header in [
            format!("00-{trace}-{span}-01-more"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{trace}-{span}"),
            format!("00-{trace}-{span}-é"),
            String::new(),
        ] {
            assert_eq!(read(&header), None, "{header}");
        }
        assert_eq!((new_id(2).len(), new_id(1).len()), (32, 16));
    }
}
