//! The rows of a request (`n` choices of each of its prompts), and their events as one stream.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_util::StreamExt;

use crate::engine::Handle;
use crate::engine::sequence::random_seed;
use crate::error::{Error, ErrorKind};
use crate::model::checked::Checked;
use crate::request::generation::{Event, FinishReason};
use crate::request::metrics::Metrics;
use crate::request::sampling::Choice;
use crate::serve::http::error::ApiError;
use crate::serve::http::trace::Trace;
use crate::serve::pool::Lease;
use crate::serve::state::{Loaded, Served, Shared};
use crate::serve::turn::edits::Filter;

/// The maximum number of choices of a prompt.
pub(crate) const MAX_CHOICES: usize = 16;
/// The maximum number of rows of a request.
pub(crate) const MAX_ROWS: usize = 1024;

/// The new events of one row.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowStep {
    /// The index of the row: prompt times `n` plus choice.
    pub(crate) row: usize,
    /// Its new tokens, each with the text that it completes.
    pub(crate) tokens: Vec<(Choice, String)>,
    /// The text that was held back until the end.
    pub(crate) rest: String,
    /// The reason why the row ended, and its counts and times.
    pub(crate) end: Option<(FinishReason, Metrics)>,
}

impl RowStep {
    /// All text of the step.
    pub(crate) fn text(&self) -> String {
        let pieces = self.tokens.iter().map(|(_, text)| text.as_str());
        pieces.chain([self.rest.as_str()]).collect()
    }
}

/// The rows of a request before they are submitted.
pub(crate) struct AskedRows<'a> {
    pub(crate) prompts: &'a [Checked],
    /// The number of rows of each prompt.
    pub(crate) n: usize,
    pub(crate) filter: Option<&'a Arc<Filter>>,
}

/// The rows of a request. Dropping them cancels those in progress.
pub(crate) struct Choices {
    rows: Vec<Option<Row>>,
    /// The row to poll first, so that every row gets its turn.
    first: usize,
    /// The number of choices of each prompt.
    n: usize,
    ready: VecDeque<RowStep>,
    trace: Trace,
    app: Shared,
    /// The model, which stays in memory until the rows have ended.
    model: Lease,
}

struct Row {
    handle: Handle,
    /// Whether the row was ended because its text is complete.
    is_complete: bool,
    last_token: Option<Instant>,
}

impl Choices {
    /// Submits the rows. Row i of a prompt has the seed plus i.
    ///
    /// # Errors
    /// The queue is full: no row was submitted, or those that were are cancelled.
    pub(crate) fn start(
        app: &Shared,
        loaded: &Loaded,
        served: &Served,
        trace: &Trace,
        rows: AskedRows<'_>,
    ) -> Result<Self, ApiError> {
        let AskedRows { prompts, n, filter } = rows;
        let given = prompts
            .first()
            .and_then(|prompt| prompt.options().sampling.seed);
        let seed = given.unwrap_or_else(random_seed);
        let mut rows = Vec::with_capacity(prompts.len() * n);
        for prompt in prompts {
            for choice in 0..n as u64 {
                let processor = filter.map(|filter| filter.processor(prompt.ids().len()));
                let seed = seed.wrapping_add(choice);
                let mut request = loaded.frontend().choice(prompt, seed, processor)?;
                request.adapter.clone_from(&served.adapter);
                request.adapter_scale = served.adapter_scale;
                request.is_background = trace.is_background;
                let handle = loaded.engine.submit_checked(request).map_err(|error| {
                    let wait = wait_for_room(loaded, app.settings.engine.limits.rows);
                    match error.kind() {
                        ErrorKind::Busy => ApiError::later(wait, error.to_string()),
                        _ => error.into(),
                    }
                })?;
                rows.push(Some(Row {
                    handle,
                    is_complete: false,
                    last_token: None,
                }));
            }
        }
        Ok(Self {
            rows,
            first: 0,
            n,
            ready: VecDeque::new(),
            trace: trace.clone(),
            app: app.clone(),
            model: served.model.clone(),
        })
    }

    /// The time without an event after which a stream gets a comment.
    pub(crate) fn silence(&self) -> Duration {
        self.app.settings.ping
    }

    /// The number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The next step of a row; `None` when all rows have ended. It can be dropped before it is ready and called again.
    ///
    /// # Errors
    /// A row failed. The others are cancelled when this value is dropped.
    pub(crate) async fn next(&mut self) -> Option<Result<RowStep, ApiError>> {
        StreamExt::next(self).await
    }

    /// Ends a row early, because its text is complete.
    pub(crate) fn end(&mut self, row: usize) {
        if let Some(Some(row)) = self.rows.get_mut(row) {
            row.is_complete = true;
            row.handle.cancel();
        }
    }

    /// The new events of a row: several tokens, if the row is faster than its client.
    fn look(&mut self, at: usize, cx: &mut Context<'_>) -> Option<Result<RowStep, Error>> {
        let row = self.rows[at].as_mut()?;
        let mut step = None;
        while let Poll::Ready(event) = Pin::new(&mut row.handle).poll_next(cx) {
            let step = step.get_or_insert_with(|| RowStep {
                row: at,
                ..RowStep::default()
            });
            let ended = match event {
                Some(Ok(Event::Token { choice, text })) => {
                    let now = Instant::now();
                    if let Some(last) = row.last_token.replace(now) {
                        self.model.metrics().between_tokens(now - last);
                    }
                    step.tokens.push((choice, text));
                    continue;
                }
                Some(Ok(Event::Finish {
                    reason,
                    text,
                    metrics,
                })) => {
                    step.rest = text;
                    step.end = Some((reason, metrics));
                    let is_cancelled = reason == FinishReason::Cancelled;
                    let told = match is_cancelled && row.is_complete {
                        true => FinishReason::Stop,
                        false => reason,
                    };
                    self.model.metrics().finished(told, &metrics);
                    self.trace
                        .finished(told, &metrics, !at.is_multiple_of(self.n));
                    match is_cancelled && !row.is_complete {
                        true => Err(Error::new(ErrorKind::Cancelled, "cancelled by the server")),
                        false => Ok(()),
                    }
                }
                Some(Err(error)) => Err(error),
                None => Err(Error::new(ErrorKind::Closed, "the engine has ended")),
            };
            self.rows[at] = None;
            if let Err(error) = ended {
                self.model.metrics().failed();
                self.trace.blame(error.to_string());
                return Some(Err(error));
            }
            break;
        }
        step.map(Ok)
    }
}

impl Drop for Choices {
    /// Dropping the remaining rows cancels them. They count as left, also after the failure of
    /// another row: in the trace they have no other end.
    fn drop(&mut self) {
        let left = self.rows.iter().flatten().count();
        self.model.metrics().aborted(left);
    }
}

impl Stream for Choices {
    type Item = Result<RowStep, ApiError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(step) = this.ready.pop_front() {
            return Poll::Ready(Some(Ok(step)));
        }
        let (n, first) = (this.rows.len(), this.first);
        for at in (0..n).map(|offset| (first + offset) % n) {
            match this.look(at, cx) {
                None => {}
                Some(Ok(step)) => this.ready.push_back(step),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
        this.first = (first + 1) % n.max(1);
        match this.ready.pop_front() {
            Some(step) => Poll::Ready(Some(Ok(step))),
            None if this.rows.iter().all(Option::is_none) => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// Seconds until another request may be accepted: one second, and one more for each full batch that
/// waits.
fn wait_for_room(loaded: &Loaded, rows: usize) -> u64 {
    let waiting = loaded.engine.load().waiting;
    (1 + waiting / rows.max(1)).min(60) as u64
}
