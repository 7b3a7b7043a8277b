//! The result of one request.

use crate::error::{Error, Result};
use crate::request::generation::{Event, FinishReason, Generated};
use crate::request::metrics::Metrics;
use crate::request::sampling::Choice;

/// The result of one request of a batch.
#[derive(Debug, Default)]
pub struct BatchResult {
    /// The tokens, including those before an error.
    pub tokens: Vec<Choice>,
    /// The text without end tokens and stop strings; `None` without a tokenizer.
    pub text: Option<String>,
    /// Why it ended; `None` if it ended with an error.
    pub finish_reason: Option<FinishReason>,
    /// Counts, times and memory, if it ended without an error.
    pub metrics: Metrics,
    /// The error that ended it.
    pub error: Option<Error>,
}

impl BatchResult {
    /// The result in the form of a single generation.
    ///
    /// # Errors
    /// The error of this request.
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

    /// Adds the next event. Returns whether it was the last.
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
