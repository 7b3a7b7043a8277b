//! Answers that are generated in the background. A task reads their events to the end, also when no
//! client is connected. The events are stored, and each client reads them from where it wants.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use futures_util::stream;
use tokio::sync::watch;

use crate::serve::http::error::ApiError;
use crate::serve::http::guard::Holder;
use crate::serve::http::sse::{self, EventSource, EventWriter, PING};
use crate::serve::http::trace::Trace;
use crate::serve::state::Shared;
use crate::serve::turn::choices::Choices;

/// The time for which the events of an answer stay after its end.
const KEEP: Duration = Duration::from_secs(600);
/// The bytes of all stored events. Ended answers make room for those in progress, the oldest first.
const MOST_BYTES: usize = 64 << 20;
/// The bytes that a client is sent at a time.
const MOST_SENT: usize = 256 << 10;

/// A writer whose request can be cancelled.
pub(crate) trait BackgroundWriter: EventWriter {
    /// The events that report that the request was cancelled. No events come after them.
    fn cancel(&mut self) -> String;
}

/// The stored answers of a server.
#[derive(Debug, Default)]
pub(crate) struct Background(Mutex<Store>);

#[derive(Debug, Default)]
struct Store {
    answers: BTreeMap<String, Answer>,
    bytes: usize,
}

#[derive(Debug)]
struct Answer {
    /// Only this holder can read the answer.
    holder: Holder,
    events: Vec<Bytes>,
    bytes: usize,
    ended: Option<Instant>,
    /// Told of each change of `events` and of the end.
    news: watch::Sender<()>,
    stop: watch::Sender<bool>,
}

/// Ends an answer when it is dropped, also after a panic of its task.
struct Ending {
    app: Shared,
    id: String,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.app.background.push(&self.id, "", true);
    }
}

/// The events of an answer from some place on.
struct Part {
    events: Vec<Bytes>,
    has_ended: bool,
}

impl Store {
    fn forget(&mut self, id: &str) {
        if let Some(answer) = self.answers.remove(id) {
            self.bytes -= answer.bytes;
            answer.stop.send_replace(true);
        }
    }

    /// Drops answers that ended [`KEEP`] ago.
    fn clear(&mut self) {
        let is_old = |ended: Instant| ended.elapsed() > KEEP;
        let old = self.answers.iter();
        let old = old.filter(|(_, answer)| answer.ended.is_some_and(is_old));
        let old: Vec<String> = old.map(|(id, _)| id.clone()).collect();
        old.iter().for_each(|id| self.forget(id));
    }

    /// Drops ended answers until so many bytes fit. Returns whether they fit.
    fn make_room(&mut self, bytes: usize) -> bool {
        while self.bytes + bytes > MOST_BYTES {
            let ended = self.answers.iter();
            let ended = ended.filter_map(|(id, answer)| Some((answer.ended?, id.clone())));
            let Some((_, oldest)) = ended.min() else {
                return false;
            };
            self.forget(&oldest);
        }
        true
    }
}

impl Background {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an answer. The receiver becomes true when the answer is to be ended early.
    fn begin(&self, id: &str, holder: Holder) -> watch::Receiver<bool> {
        let mut store = self.store();
        store.clear();
        let stop = watch::Sender::new(false);
        let stopped = stop.subscribe();
        let answer = Answer {
            holder,
            events: Vec::new(),
            bytes: 0,
            ended: None,
            news: watch::Sender::new(()),
            stop,
        };
        store.answers.insert(id.to_owned(), answer);
        stopped
    }

    /// Adds events, each with its number as `id`. Returns whether there was room for them.
    fn push(&self, id: &str, text: &str, is_last: bool) -> bool {
        let mut store = self.store();
        let store = &mut *store;
        let has_room = store.make_room(text.len()) || is_last;
        if has_room && let Some(answer) = store.answers.get_mut(id) {
            let mut added = 0;
            for event in text.split_inclusive("\n\n") {
                let event = format!("id: {}\n{event}", answer.events.len());
                added += event.len();
                answer.events.push(Bytes::from(event));
            }
            answer.bytes += added;
            if is_last {
                answer.ended.get_or_insert_with(Instant::now);
            }
            answer.news.send_replace(());
            store.bytes += added;
        }
        has_room
    }

    /// The events of an answer from number `from` on, and what tells of more.
    ///
    /// # Errors
    /// Status 404: there is no such answer of this holder.
    fn read(
        &self,
        id: &str,
        holder: &Holder,
        from: usize,
    ) -> Result<(Part, watch::Receiver<()>), ApiError> {
        let mut store = self.store();
        store.clear();
        let answer = store.answers.get(id).filter(|one| one.holder.is(holder));
        let answer = answer.ok_or_else(|| missing(id))?;
        let mut news = answer.news.subscribe();
        news.mark_unchanged();
        let mut bytes = 0;
        let events = answer.events.iter().skip(from).take_while(|event| {
            let is_first = bytes == 0;
            bytes += event.len();
            is_first || bytes <= MOST_SENT
        });
        let events: Vec<Bytes> = events.cloned().collect();
        let has_ended = answer.ended.is_some() && from + events.len() >= answer.events.len();
        Ok((Part { events, has_ended }, news))
    }

    /// The last event of an answer that satisfies a condition.
    ///
    /// # Errors
    /// The same as those of [`stream`].
    pub(crate) fn last<T>(
        &self,
        id: &str,
        holder: &Holder,
        found: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let mut store = self.store();
        store.clear();
        let answer = store.answers.get(id).filter(|one| one.holder.is(holder));
        let events = &answer.ok_or_else(|| missing(id))?.events;
        let texts = events
            .iter()
            .rev()
            .filter_map(|one| str::from_utf8(one).ok());
        Ok(texts.filter_map(data_of).find_map(found))
    }

    /// Ends an answer early, and waits for its last event. The answer stays stored.
    ///
    /// # Errors
    /// Status 404: there is no such answer of this holder.
    pub(crate) async fn cancel(&self, id: &str, holder: &Holder) -> Result<(), ApiError> {
        let mut from = 0;
        loop {
            let (part, mut news) = self.read(id, holder, from)?;
            if part.has_ended {
                return Ok(());
            }
            from += part.events.len();
            if part.events.is_empty() {
                if let Some(answer) = self.store().answers.get(id) {
                    answer.stop.send_replace(true);
                }
                let _ = news.changed().await;
            }
        }
    }

    /// Ends an answer, if it is in progress, and drops it. Its place among the requests of its key is
    /// free then.
    ///
    /// # Errors
    /// Status 404: there is no such answer of this holder.
    pub(crate) async fn delete(&self, id: &str, holder: &Holder) -> Result<(), ApiError> {
        self.cancel(id, holder).await?;
        self.store().forget(id);
        Ok(())
    }
}

/// Which events of an answer are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct AskedEvents {
    pub(crate) is_stream: bool,
    /// The number of the last event that the client has.
    pub(crate) after: Option<usize>,
}

impl AskedEvents {
    /// Reads `stream` and `starting_after` of a query, or else the header `Last-Event-ID`.
    ///
    /// # Errors
    /// Status 400: a value cannot be read.
    pub(crate) fn read(query: Option<&str>, headers: &HeaderMap) -> Result<Self, ApiError> {
        let number = |name: &str, text: &str| {
            let message = format!("{name} must be the number of an event, given {text:?}");
            text.parse()
                .map(Some)
                .map_err(|_| ApiError::bad(name, message))
        };
        let mut asked = Self::default();
        if let Some(last) = headers.get("last-event-id") {
            asked.after = number("Last-Event-ID", last.to_str().unwrap_or_default())?;
        }
        for pair in query.unwrap_or_default().split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (name, value) {
                ("stream", "true" | "True" | "1") => asked.is_stream = true,
                ("stream", "false" | "False" | "0") => asked.is_stream = false,
                ("stream", other) => {
                    let message = format!("stream must be true or false, given {other:?}");
                    return Err(ApiError::bad("stream", message));
                }
                ("starting_after", number_text) => asked.after = number(name, number_text)?,
                _ => {}
            }
        }
        Ok(asked)
    }
}

fn missing(id: &str) -> ApiError {
    let message = format!(
        "there is no answer {id:?}: this server stores none but those of background requests, for {} minutes after their end",
        KEEP.as_secs() / 60
    );
    ApiError::new(StatusCode::NOT_FOUND, message)
}

/// The data of an event.
fn data_of(event: &str) -> Option<&str> {
    event.lines().find_map(|line| line.strip_prefix("data: "))
}

/// Lets a task generate the answer, whose events [`stream`] reads.
///
/// # Errors
/// Status 500: the request has no holder of a key, as those without a body.
pub(crate) fn start<W: BackgroundWriter>(
    app: &Shared,
    id: &str,
    choices: Choices,
    writer: W,
    trace: Trace,
) -> Result<Holder, ApiError> {
    let holder = trace.holder().ok_or_else(ApiError::internal)?;
    let stopped = app.background.begin(id, holder.clone());
    let source = EventSource::new(choices, writer, trace);
    let ending = Ending {
        app: app.clone(),
        id: id.to_owned(),
    };
    tokio::spawn(async move {
        let Ending { app, id } = &ending;
        let last = generate(app, id, source, stopped).await;
        app.background.push(id, &last, true);
    });
    Ok(holder)
}

/// Stores the events of an answer until its end. Returns the last of them, after the answer has freed
/// its place among the requests of its key.
async fn generate<W: BackgroundWriter>(
    app: &Shared,
    id: &str,
    mut source: EventSource<W>,
    mut stopped: watch::Receiver<bool>,
) -> String {
    loop {
        let text = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return source.break_off().cancel(),
            text = source.next() => text,
        };
        match text.as_deref() {
            None => return String::new(),
            Some(PING) => {}
            Some(text) if app.background.push(id, text, false) => {}
            Some(_) => {
                let message = format!(
                    "the events of background requests fill the {} MiB that this server keeps for them",
                    MOST_BYTES >> 20
                );
                return source.break_off().fail(&ApiError::later(60, message));
            }
        }
    }
}

/// The response that streams the events of an answer after number `after`, until its end.
///
/// # Errors
/// Status 404: there is no such answer of this holder.
pub(crate) fn stream(
    app: &Shared,
    id: &str,
    holder: Holder,
    after: Option<usize>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    app.background.read(id, &holder, usize::MAX)?;
    let from = after.map_or(0, |after| after.saturating_add(1));
    let reader = (app.clone(), id.to_owned(), holder, from, false);
    let events = stream::unfold(reader, async |(app, id, holder, from, has_ended)| {
        if has_ended {
            return None;
        }
        loop {
            // An answer that was deleted has no more events.
            let (part, mut news) = app.background.read(&id, &holder, from).ok()?;
            let text = match part.events.is_empty() {
                false => Bytes::from(part.events.concat()),
                true if part.has_ended => return None,
                true => match tokio::time::timeout(app.settings.ping, news.changed()).await {
                    Ok(_) => continue,
                    Err(_) => Bytes::from_static(PING.as_bytes()),
                },
            };
            let from = from + part.events.len();
            let next = (app, id, holder, from, part.has_ended);
            return Some((Ok::<_, std::convert::Infallible>(text), next));
        }
    });
    Ok(sse::of_events(
        Body::from_stream(events),
        headers,
        sse::EVENTS,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::http::guard::Keys;

    fn holder() -> Holder {
        Keys::new(&[], None).check(&HeaderMap::new()).unwrap()
    }

    #[test]
    fn ended_answers_make_room_for_those_in_progress() {
        let (background, holder) = (Background::default(), holder());
        let event = format!("data: {}\n\n", "x".repeat(MOST_BYTES / 4));
        for id in ["a", "b", "c"] {
            let _ = background.begin(id, holder.clone());
            assert!(background.push(id, &event, id != "c"));
        }
        assert!(background.push("c", &event, false));
        let is_there = |id| background.read(id, &holder, 0).is_ok();
        assert!(!is_there("a") && is_there("b") && is_there("c"));
        // One that fills the store alone gets no more.
        assert!(background.push("c", &event, false));
        assert!(!is_there("b") && !background.push("c", &event, false));
        let bytes = background.store().bytes;
        assert!(bytes > 3 * (MOST_BYTES / 4) && bytes <= MOST_BYTES);
        background.store().forget("c");
        assert_eq!(background.store().bytes, 0);
    }

    #[test]
    fn an_answer_belongs_to_one_holder_and_is_sent_in_parts() {
        let (background, holder) = (Background::default(), holder());
        let stopped = background.begin("a", holder.clone());
        let event = format!("data: {}\n\n", "x".repeat(MOST_SENT / 3));
        assert!(background.push("a", &event.repeat(5), true));
        let (part, _) = background.read("a", &holder, 0).unwrap();
        assert_eq!((part.events.len(), part.has_ended), (2, false));
        assert!(part.events[1].starts_with(b"id: 1\ndata: x"));
        let (part, _) = background.read("a", &holder, 3).unwrap();
        assert_eq!((part.events.len(), part.has_ended), (2, true));
        let other = self::holder();
        assert!(
            background.read("a", &other, 0).is_err()
                && background.last("a", &other, |_| Some(())).is_err()
        );
        assert!(!*stopped.borrow());
        background.store().forget("a");
        assert!(*stopped.borrow());
    }

    #[test]
    fn a_query_or_a_header_says_which_events() {
        let read = |query, headers: &HeaderMap| AskedEvents::read(query, headers);
        let none = HeaderMap::new();
        let mut last = HeaderMap::new();
        last.insert("last-event-id", "7".parse().unwrap());
        let asked = |is_stream, after| AskedEvents { is_stream, after };
        assert_eq!(read(None, &none), Ok(asked(false, None)));
        assert_eq!(read(Some("stream=true"), &last), Ok(asked(true, Some(7))));
        let both = "include=x&stream=true&starting_after=3";
        assert_eq!(read(Some(both), &last), Ok(asked(true, Some(3))));
        for (query, param) in [
            ("starting_after=-1", "starting_after"),
            ("stream=x", "stream"),
        ] {
            assert_eq!(read(Some(query), &none).unwrap_err().param.unwrap(), param);
        }
    }
}
