//! The requests in progress on a bridge, and the start of a new bridge after one has ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::child::Child;
use super::protocol::{BridgeAnswer, BridgeCommand, BridgeGenerate, BridgeStep, BridgeToken};
use super::request::{BridgeRequest, Stage};
use super::start::{BridgeStart, Folder, refused};
use crate::engine::sequence::Sequence;
use crate::engine::{Decode, EngineLoad, Queue, Sink};
use crate::error::{Error, ErrorKind};
use crate::model::checked::Checked;
use crate::model::frontend::Frontend;
use crate::request::cancel::CancelToken;
use crate::request::generation::{Event, FinishReason};
use crate::request::limits::Limits;
use crate::request::metrics::Metrics;

/// How long one call waits for an answer. Commands, cancellations and timeouts have to wait for it.
pub(super) const WAIT: Duration = Duration::from_millis(5);

enum State {
    /// There is no process. The next request starts one.
    Down,
    /// The model is loading.
    Starting {
        child: Child,
        since: Instant,
        /// Holds the files of the built-in model until they are loaded.
        _folder: Option<Folder>,
    },
    Up(Child),
}

/// The requests in progress on a bridge.
pub(crate) struct Session {
    frontend: Arc<Frontend>,
    start: BridgeStart,
    state: State,
    requests: BTreeMap<u64, BridgeRequest>,
    submitted: u64,
    /// The maximum number of requests that the bridge computes at a time.
    rows: usize,
    /// Whether mlx_lm computes several requests at a time.
    batches: bool,
    load_time: Duration,
    /// The time of the bridge's last message, or when it became busy.
    last_answer: Instant,
    steps: usize,
    metrics: Metrics,
    /// Whether the end of a process is logged.
    notes: bool,
}

impl Session {
    pub(super) fn new(
        frontend: Arc<Frontend>,
        start: BridgeStart,
        child: Child,
        batches: bool,
        load_time: Duration,
    ) -> Self {
        Self {
            frontend,
            start,
            state: State::Up(child),
            requests: BTreeMap::new(),
            submitted: 0,
            rows: Limits::default().rows,
            batches,
            load_time,
            last_answer: Instant::now(),
            steps: 0,
            metrics: Metrics::default(),
            notes: false,
        }
    }

    pub(super) fn set_rows(&mut self, rows: usize) {
        self.rows = rows;
    }

    pub(super) fn set_notes(&mut self) {
        self.notes = true;
    }

    pub(super) fn load_time(&self) -> Duration {
        self.load_time
    }

    /// The metrics of the last generation that has finished.
    pub(super) fn metrics(&self) -> Metrics {
        self.metrics
    }

    fn count(&self, stage: Stage) -> usize {
        self.requests
            .values()
            .filter(|request| request.stage == stage)
            .count()
    }

    fn is_busy(&self) -> bool {
        self.requests
            .values()
            .any(|request| request.stage != Stage::Waiting)
    }

    /// Sends waiting requests, as many as can be computed at a time.
    fn send_waiting(&mut self) {
        let State::Up(child) = &self.state else {
            return;
        };
        let rows = if self.batches { self.rows } else { 1 };
        let free = rows.saturating_sub(self.requests.len() - self.count(Stage::Waiting));
        if free > 0 && !self.is_busy() {
            self.last_answer = Instant::now();
        }
        let waiting = self
            .requests
            .iter_mut()
            .filter(|(_, request)| request.stage == Stage::Waiting);
        for (&id, request) in waiting.take(free) {
            child.send(&BridgeCommand::Generate(Box::new(BridgeGenerate::new(
                id,
                &request.sequence,
            ))));
            request.stage = Stage::Prefill;
        }
    }

    /// Removes a request that has ended, here and on the bridge.
    fn remove(&mut self, id: u64) -> Option<BridgeRequest> {
        let request = self.requests.remove(&id)?;
        if let State::Up(child) = &self.state
            && request.stage != Stage::Waiting
        {
            // If it has ended on the bridge too, this has no effect.
            child.send(&BridgeCommand::Cancel { id });
        }
        Some(request)
    }

    fn finish(&mut self, id: u64, reason: FinishReason, memory: Option<&BridgeStep>) {
        let Some(mut request) = self.remove(id) else {
            return;
        };
        let mut event = request.sequence.finish(reason);
        if let Ok(Event::Finish { metrics, .. }) = &mut event {
            // The arrays are in the other process.
            metrics.peak_memory_bytes = memory.map_or(0, |step| step.peak);
            metrics.active_memory_bytes = memory.map_or(0, |step| step.active);
            self.metrics = *metrics;
        }
        request.send(event);
    }

    fn fail(&mut self, id: u64, error: Error) {
        if let Some(mut request) = self.remove(id) {
            request.send(Err(error));
        }
    }

    /// Ends all requests, because the bridge cannot be used any more. The next request starts a new
    /// bridge.
    fn ended(&mut self, error: &Error) {
        // Ends the process.
        self.state = State::Down;
        if self.notes {
            tracing::warn!("{error}; the next request starts a new process");
        }
        for id in self.requests.keys().copied().collect::<Vec<_>>() {
            self.fail(id, error.copy());
        }
    }

    /// Handles an answer that came too late for its request, or notices that the process has ended. Returns whether
    /// there was an answer.
    fn receive_idle(&mut self) -> bool {
        let State::Up(child) = &mut self.state else {
            return false;
        };
        match child.receive(Duration::ZERO) {
            Ok(answer) => answer.is_some(),
            Err(_) => {
                self.state = State::Down;
                false
            }
        }
    }

    fn take(&mut self, answer: BridgeAnswer) {
        self.last_answer = Instant::now();
        match answer {
            BridgeAnswer::Loaded(_) => {
                if let State::Starting { child, .. } =
                    std::mem::replace(&mut self.state, State::Down)
                {
                    self.state = State::Up(child);
                }
            }
            BridgeAnswer::Error { message, .. } if !matches!(self.state, State::Up(_)) => {
                self.ended(&refused(&message))
            }
            BridgeAnswer::Error { ids, message } => {
                for id in ids {
                    self.fail(
                        id,
                        Error::new(ErrorKind::Compute, format!("mlx_lm: {message}")),
                    );
                }
            }
            BridgeAnswer::Step(mut step) => {
                self.steps += 1;
                for id in &step.prompts {
                    if let Some(request) = self.requests.get_mut(id) {
                        request.sequence.begin();
                    }
                }
                for token in std::mem::take(&mut step.tokens) {
                    self.accept(token, &step);
                }
            }
        }
    }

    fn accept(&mut self, token: BridgeToken, step: &BridgeStep) {
        let id = token.id;
        // Tokens for a request that has ended here may still arrive.
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        if !token.finite {
            let message = "the model gives numbers that are not finite";
            return self.fail(id, Error::new(ErrorKind::NotFinite, message));
        }
        request.stage = Stage::Decode;
        request.sequence.begin();
        match request.sequence.accept(token.choice()) {
            Ok((event, ends)) => {
                request.send(Ok(event));
                if let Some(reason) = ends {
                    self.finish(id, reason, Some(step));
                }
            }
            Err(error) => self.fail(id, error),
        }
    }

    /// Handles one answer of the bridge. Returns whether there was one.
    fn receive(&mut self, wait: Duration) -> bool {
        let timeout = self.start.timeout();
        let is_busy = self.is_busy();
        let received = match &mut self.state {
            State::Down => return false,
            State::Starting { child, since, .. } => match child.receive(wait) {
                Ok(None) if since.elapsed() > timeout => Err(self.start.too_slow(child)),
                received => received,
            },
            State::Up(child) => match child.receive(wait) {
                Ok(None) if is_busy && self.last_answer.elapsed() > timeout => {
                    let seconds = timeout.as_secs_f64();
                    Err(child.failed(&format!("no answer for {seconds} s")))
                }
                received => received,
            },
        };
        match received {
            Ok(None) => false,
            Ok(Some(answer)) => {
                self.take(answer);
                true
            }
            Err(error) => {
                self.ended(&error);
                false
            }
        }
    }
}

impl Decode<'static> for Session {
    fn submit(
        &mut self,
        request: Checked,
        requested: Instant,
        dropped: CancelToken,
        _backlog: Option<Arc<Queue>>,
        mut sink: Sink<'static>,
    ) {
        match Sequence::new(&self.frontend, self.load_time, request, requested) {
            Ok(sequence) => {
                self.submitted += 1;
                let request = BridgeRequest {
                    sequence,
                    sink,
                    dropped,
                    abandoned: false,
                    stage: Stage::Waiting,
                };
                self.requests.insert(self.submitted, request);
            }
            Err(error) => {
                let _ = sink(Err(error));
            }
        }
    }

    fn advance(&mut self) {
        let cancelled = self
            .requests
            .iter()
            .filter(|(_, request)| request.is_cancelled());
        for id in cancelled.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.finish(id, FinishReason::Cancelled, None);
        }
        if self.requests.is_empty() {
            return;
        }
        // Notices a process that has ended while it was idle, before a request is sent to it.
        if !self.is_busy() {
            while let State::Up(_) = self.state
                && self.receive_idle()
            {}
        }
        if let State::Down = self.state {
            match self.start.begin() {
                Ok((child, _folder)) => {
                    let since = Instant::now();
                    self.state = State::Starting {
                        child,
                        since,
                        _folder,
                    };
                }
                Err(error) => return self.ended(&error),
            }
        }
        self.send_waiting();
        let mut wait = WAIT;
        while self.receive(wait) {
            wait = Duration::ZERO;
            self.send_waiting();
        }
    }

    fn cancel_all(&mut self) {
        for id in self.requests.keys().copied().collect::<Vec<_>>() {
            self.finish(id, FinishReason::Cancelled, None);
        }
    }

    fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    fn is_stalled(&self) -> bool {
        false
    }

    fn load(&self) -> EngineLoad {
        EngineLoad {
            waiting: self.count(Stage::Waiting),
            prefilling: self.count(Stage::Prefill),
            decoding: self.count(Stage::Decode),
            forwards: self.steps,
            ..Default::default()
        }
    }
}
