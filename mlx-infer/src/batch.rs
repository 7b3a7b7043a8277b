//! Several prompts at a time, without a thread: the decode loop runs until all have ended.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::time::Instant;

use crate::cancel::CancelToken;
use crate::engine::Worker;
use crate::error::{Error, Result};
use crate::generate::{Event, FinishReason, Generated};
use crate::metrics::Metrics;
use crate::model::LoadedModel;
use crate::request::Request;
use crate::sampler::Choice;
use crate::scheduler::Limits;

/// What came of one request of a batch.
#[derive(Debug, Default)]
pub struct BatchResult {
    /// The tokens, also those before an error.
    pub tokens: Vec<Choice>,
    /// The text without end tokens and stop strings; `None` without a tokenizer.
    pub text: Option<String>,
    /// Why it ended; `None` if by an error.
    pub finish_reason: Option<FinishReason>,
    /// Counts, times and memory, if it came to its end.
    pub metrics: Metrics,
    /// What went wrong.
    pub error: Option<Error>,
}

impl BatchResult {
    /// The same as one generation gives it.
    ///
    /// # Errors
    /// The one of this request.
    pub fn into_generated(self) -> Result<Generated> {
        match (self.error, self.finish_reason) {
            (None, Some(reason)) => Ok(Generated {
                text: self.text,
                tokens: self.tokens,
                reason,
                metrics: self.metrics,
            }),
            (Some(error), _) => Err(error),
            (None, None) => unreachable!("a request ends with a reason or an error"),
        }
    }

    pub(crate) fn new(has_text: bool) -> Self {
        Self {
            text: has_text.then(String::new),
            ..Default::default()
        }
    }

    /// Adds the next event; whether it was the last.
    pub(crate) fn take(&mut self, event: Result<Event>) -> bool {
        match event {
            Ok(event) => {
                if let Some(text) = &mut self.text {
                    text.push_str(event.text());
                }
                match event {
                    Event::Token { choice, .. } => {
                        self.tokens.push(choice);
                        false
                    }
                    Event::Finish {
                        reason, metrics, ..
                    } => {
                        (self.finish_reason, self.metrics) = (Some(reason), metrics);
                        true
                    }
                }
            }
            Err(error) => {
                self.error = Some(error);
                true
            }
        }
    }
}

impl LoadedModel {
    /// Continues several prompts at a time. Each has its own settings, stop conditions and seed, and gets
    /// the tokens that it would get alone (in single precision to the bit); its error is its own.
    ///
    /// `on_done` is told of each result as soon as it is there, with its place among the requests, and
    /// ends everything by breaking.
    ///
    /// # Errors
    /// A limit is 0.
    pub fn batch_generate_with(
        &self,
        requests: Vec<Request>,
        limits: &Limits,
        mut on_done: impl FnMut(usize, BatchResult) -> ControlFlow<()>,
    ) -> Result<()> {
        limits.check()?;
        let has_text = self.tokenizer_if_any().is_some();
        let done = RefCell::new(Vec::new());
        let mut worker = Worker::new(self, limits.clone());
        for (index, request) in requests.into_iter().enumerate() {
            let mut result = BatchResult::new(has_text);
            let done = &done;
            let sink = move |event| {
                if result.take(event) {
                    done.borrow_mut().push((index, std::mem::take(&mut result)));
                }
                ControlFlow::Continue(())
            };
            worker.submit(
                request,
                Instant::now(),
                CancelToken::new(),
                None,
                Box::new(sink),
            );
        }
        loop {
            for (index, result) in done.take() {
                if on_done(index, result).is_break() {
                    return Ok(());
                }
            }
            if worker.is_idle() {
                return Ok(());
            }
            worker.advance();
        }
    }

    /// Continues several prompts at a time; results in the order of the requests.
    ///
    /// ```
    /// # fn main() -> mlx_infer::Result<()> {
    /// use mlx_infer::{GenerateOptions, Limits, LoadedModel, Request};
    /// let model = LoadedModel::load_default()?;
    /// let options = GenerateOptions { max_tokens: 8, ..Default::default() };
    /// let prompts = ["The red fox", "The old man"];
    /// let requests = prompts.map(|prompt| Request::new(prompt, options.clone()));
    /// for result in model.batch_generate(requests.into(), &Limits::default())? {
    ///     println!("{}", result.text.unwrap_or_default());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A limit is 0.
    pub fn batch_generate(
        &self,
        requests: Vec<Request>,
        limits: &Limits,
    ) -> Result<Vec<BatchResult>> {
        let mut results: Vec<Option<BatchResult>> = requests.iter().map(|_| None).collect();
        self.batch_generate_with(requests, limits, |index, result| {
            results[index] = Some(result);
            ControlFlow::Continue(())
        })?;
        Ok(results
            .into_iter()
            .map(|result| result.expect("every request ends"))
            .collect())
    }
}
