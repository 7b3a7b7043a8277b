//! What whoever asked for something holds of it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use crate::batch::BatchResult;
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::generate::Event;

/// A request that the engine has taken: an iterator over its events, of which the last is
/// [`Event::Finish`] or an error. It waits for them, and dropping it cancels the request.
#[derive(Debug)]
pub struct Handle {
    pub(super) events: Receiver<Result<Event>>,
    pub(super) backlog: Arc<Backlog>,
    pub(super) cancel: CancelToken,
    pub(super) has_text: bool,
    pub(super) is_done: bool,
}

impl Handle {
    /// Ends the request before its next token.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Cancels this request from anywhere.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<Result<Event>> {
        let event = self.events.try_recv().ok()?;
        self.backlog.taken();
        self.is_done = ends(&event);
        Some(event)
    }

    /// Waits for the end.
    pub fn wait(self) -> BatchResult {
        let mut result = BatchResult::new(self.has_text);
        for event in self {
            result.take(event);
        }
        result
    }
}

impl Iterator for Handle {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let event = self.events.recv().unwrap_or_else(|_| Err(gone()));
        self.backlog.taken();
        self.is_done = ends(&event);
        Some(event)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.is_done {
            self.cancel.cancel();
        }
    }
}

fn ends(event: &Result<Event>) -> bool {
    !matches!(event, Ok(Event::Token { .. }))
}

/// The engine's thread has ended without a word: it has panicked.
pub(super) fn gone() -> Error {
    Error::new(ErrorKind::Closed, "the engine has ended")
}

/// The events of a request that nobody has read yet. From so many on its row pauses; those of a step that
/// is under way then still come.
#[derive(Debug)]
pub(crate) struct Backlog {
    events: AtomicUsize,
    most: usize,
}

impl Backlog {
    pub(super) fn new(most: usize) -> Arc<Self> {
        let events = AtomicUsize::new(0);
        Arc::new(Self { events, most })
    }

    /// Whether nothing more should come until some are read.
    pub(super) fn is_full(&self) -> bool {
        self.events.load(Ordering::Acquire) >= self.most
    }

    fn put(&self) {
        self.events.fetch_add(1, Ordering::AcqRel);
    }

    fn taken(&self) {
        // What is taken was put, but for the error of an engine that has gone.
        let less = |n: usize| Some(n.saturating_sub(1));
        let _ = (self.events).fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

/// One of the requests that may be under way; given back when dropped.
#[derive(Debug)]
pub(super) struct Ticket(Arc<AtomicUsize>);

impl Ticket {
    /// Takes one, if fewer than `most` are taken.
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

/// Where the engine puts the events of a request.
pub(super) struct Outlet {
    events: Sender<Result<Event>>,
    backlog: Arc<Backlog>,
    ticket: Option<Ticket>,
}

impl Outlet {
    pub(super) fn new(
        events: Sender<Result<Event>>,
        backlog: Arc<Backlog>,
        ticket: Ticket,
    ) -> Self {
        Self {
            events,
            backlog,
            ticket: Some(ticket),
        }
    }

    pub(super) fn backlog(&self) -> Arc<Backlog> {
        self.backlog.clone()
    }

    pub(super) fn put(&mut self, event: Result<Event>) -> ControlFlow<()> {
        if ends(&event) {
            // Before whoever waits for the end can hear of it.
            self.ticket = None;
        }
        self.backlog.put();
        match self.events.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}
