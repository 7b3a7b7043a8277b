//! Streams of answers: server-sent events, or another form that an [`EventWriter`] writes.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use serde_json::Value;

use crate::serve::http::error::ApiError;
use crate::serve::http::trace::Trace;
use crate::serve::turn::choices::{Choices, RowStep};

pub(crate) const EVENTS: &str = "text/event-stream; charset=utf-8";
/// A comment, which clients skip. A proxy may close a connection on which nothing is sent for long.
pub(crate) const PING: &str = ": ping\n\n";

/// An event without a name.
pub(crate) fn data(json: &Value) -> String {
    format!("data: {json}\n\n")
}

/// An event with a name.
pub(crate) fn event(name: &str, json: &Value) -> String {
    format!("event: {name}\ndata: {json}\n\n")
}

/// Turns the steps of a request's rows into events. Each call gives the text of any number of events.
pub(crate) trait EventWriter: Send + 'static {
    /// The `Content-Type` of the stream.
    const KIND: &'static str = EVENTS;

    /// What is sent in a silence: a proxy may close a connection on which nothing is sent for long.
    fn ping(&mut self) -> String {
        PING.to_owned()
    }

    /// The events before anything is computed.
    fn begin(&mut self) -> String;
    /// The events of a step.
    fn step(&mut self, step: RowStep, choices: &mut Choices) -> String;
    /// The events after all rows have ended.
    fn end(&mut self) -> String;
    /// The events that report an error. No events come after them.
    fn fail(&mut self, error: &ApiError) -> String;
}

/// The events of a request while it is generated.
pub(crate) struct EventSource<W> {
    choices: Choices,
    writer: W,
    trace: Trace,
    state: State,
}

enum State {
    Begin,
    Steps,
    Done,
}

impl<W: EventWriter> EventSource<W> {
    pub(crate) fn new(choices: Choices, writer: W, trace: Trace) -> Self {
        trace.stream();
        Self {
            choices,
            writer,
            trace,
            state: State::Begin,
        }
    }

    /// The text of the next events, or a comment after a time without any; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<String> {
        match self.state {
            State::Begin => {
                self.state = State::Steps;
                Some(self.writer.begin())
            }
            State::Steps => loop {
                let silence = self.choices.silence();
                let Ok(step) = tokio::time::timeout(silence, self.choices.next()).await else {
                    return Some(self.writer.ping());
                };
                let text = match step {
                    Some(Ok(step)) => self.writer.step(step, &mut self.choices),
                    Some(Err(error)) => {
                        self.done();
                        self.writer.fail(&error)
                    }
                    None => {
                        self.done();
                        self.writer.end()
                    }
                };
                // A step without a complete character makes no event.
                if !text.is_empty() || matches!(self.state, State::Done) {
                    return Some(text);
                }
            },
            State::Done => None,
        }
    }

    /// Ends the events before the last step. Returns the writer, for the events of the end.
    pub(crate) fn break_off(mut self) -> W {
        self.done();
        self.writer
    }

    fn done(&mut self) {
        self.state = State::Done;
        self.trace.end();
    }
}

/// The response that streams a request's events. When the client leaves, the stream is dropped, and with it the request.
pub(crate) fn response<W: EventWriter>(
    choices: Choices,
    writer: W,
    trace: Trace,
    headers: HeaderMap,
) -> Response {
    let source = EventSource::new(choices, writer, trace);
    let events = stream::unfold(source, async |mut source| {
        let text = source.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), source))
    });
    of_events(Body::from_stream(events), headers, W::KIND)
}

/// A response whose events are all known.
pub(crate) fn finished(events: String, headers: HeaderMap) -> Response {
    of_events(Body::from(events), headers, EVENTS)
}

pub(crate) fn of_events(events: Body, mut headers: HeaderMap, kind: &'static str) -> Response {
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    let mut response = Response::new(events);
    *response.headers_mut() = headers;
    response
}
