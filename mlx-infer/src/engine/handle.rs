//! The caller's side of a request: its handle, the queue of its events, and its admission ticket.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use crate::error::{Error, ErrorKind, Result};
use crate::request::cancel::CancelToken;
use crate::request::generation::Event;
use crate::request::result::BatchResult;

/// A request that the engine has accepted. Its last event is [`Event::Finish`] or an error.
///
/// There are three ways to read the events, and each continues where the others stopped: an iterator, which blocks; a
/// [`Stream`](futures_core::Stream), which any async runtime can await; and [`try_next`](Self::try_next), which returns at once. Dropping
/// the handle cancels the request.
#[derive(Debug)]
pub struct Handle {
    queue: Arc<Queue>,
    cancel: CancelToken,
    has_text: bool,
    is_done: bool,
}

impl Handle {
    /// A handle and the engine's end of it, with a queue that pauses the request at `most` unread
    /// events.
    pub(super) fn new(most: usize, ticket: Ticket, has_text: bool) -> (Self, Outlet) {
        let queue = Arc::new(Queue {
            state: Mutex::default(),
            changed: Condvar::new(),
            most,
        });
        let outlet = Outlet {
            queue: queue.clone(),
            ticket: Some(ticket),
        };
        let handle = Self {
            queue,
            cancel: CancelToken::new(),
            has_text,
            is_done: false,
        };
        (handle, outlet)
    }

    /// Ends the request before its next token.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// A token that cancels this request, from any thread.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// The next event, without waiting:
    ///
    /// - `Pending`: there is none yet.
    /// - `Ready(Some(..))`: an event, or the error that ended the request. An error of kind
    ///   [`ErrorKind::Closed`] means that the engine's thread ended before the request did.
    /// - `Ready(None)`: the last event was returned before.
    pub fn try_next(&mut self) -> Poll<Option<Result<Event>>> {
        self.poll(None)
    }

    /// Waits for the end of the request.
    pub fn wait(self) -> BatchResult {
        let mut result = BatchResult::new(self.has_text);
        for event in self {
            result.take(event);
        }
        result
    }

    /// The next event. If there is none, `waker` is woken when there is one.
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Option<Result<Event>>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        let mut state = self.queue.lock();
        let Some(event) = state.take() else {
            state.waker = waker.cloned();
            return Poll::Pending;
        };
        drop(state);
        self.is_done = ends(&event);
        Poll::Ready(Some(event))
    }
}

impl Iterator for Handle {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let mut state = self.queue.lock();
        let event = loop {
            match state.take() {
                Some(event) => break event,
                None => {
                    let waited = self.queue.changed.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(state);
        self.is_done = ends(&event);
        Some(event)
    }
}

impl Stream for Handle {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(Some(context.waker()))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.is_done {
            self.cancel.cancel();
        }
        self.queue.lock().has_reader_left = true;
    }
}

fn ends(event: &Result<Event>) -> bool {
    !matches!(event, Ok(Event::Token { .. }))
}

/// The error for requests of an engine whose thread has ended.
pub(super) fn gone() -> Error {
    Error::new(ErrorKind::Closed, "the engine has ended")
}

/// The unread events of one request. When there are `most`, the request's row pauses; the events of a step in progress
/// are still added.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    most: usize,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Result<Event>>,
    /// The waker of the task that awaits the next event.
    waker: Option<Waker>,
    has_reader_left: bool,
    has_writer_left: bool,
}

impl State {
    /// The next event, or an error after the engine has ended.
    fn take(&mut self) -> Option<Result<Event>> {
        let gone = self.has_writer_left.then(|| Err(gone()));
        self.events.pop_front().or(gone)
    }
}

impl Queue {
    /// Whether the request should pause.
    pub(super) fn is_full(&self) -> bool {
        self.lock().events.len() >= self.most
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes the reader.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A place among the requests that may be in progress. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Ticket(Arc<AtomicUsize>);

impl Ticket {
    /// Takes a place if fewer than `most` are taken.
    pub(super) fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n < most).then_some(n + 1)
            })
            .ok()?;
        Some(Self(taken.clone()))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The engine's end of a handle.
#[derive(Debug)]
pub(super) struct Outlet {
    queue: Arc<Queue>,
    ticket: Option<Ticket>,
}

impl Outlet {
    pub(super) fn queue(&self) -> Arc<Queue> {
        self.queue.clone()
    }

    /// Adds an event; breaks if the handle was dropped.
    pub(super) fn put(&mut self, event: Result<Event>) -> ControlFlow<()> {
        if ends(&event) {
            // The place is freed before the reader can see the end, because the reader may submit the next request at
            // once.
            self.ticket = None;
        }
        let mut has_reader_left = false;
        self.queue.change(|state| {
            has_reader_left = state.has_reader_left;
            state.events.push_back(event);
        });
        match has_reader_left {
            false => ControlFlow::Continue(()),
            true => ControlFlow::Break(()),
        }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.queue.change(|state| state.has_writer_left = true);
    }
}
