//! Errors of communication with a hub, and which of them are retried.

use std::fmt;
use std::time::Duration;

use ureq::Body;
use ureq::http::{Response, Uri};

use super::http::{Client, Purpose};
use super::{OnProgress, Progress};
use crate::error::{Error, ErrorKind};

/// How often a request that returns no bytes is retried.
const RETRIES: u32 = 5;
/// The longest wait that a hub may ask for.
const MAX_WAIT: Duration = Duration::from_secs(300);
/// The length of a hub's own message that an error quotes.
const MAX_QUOTED: usize = 200;

/// A failed request.
pub(super) struct Fault {
    pub(super) error: Error,
    /// Whether a retry may succeed.
    pub(super) is_passing: bool,
    /// The wait that the server asks for.
    pub(super) retry_after: Option<Duration>,
}

/// The result of a request.
pub(super) type Answer<T> = Result<T, Fault>;

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self {
            error,
            is_passing: false,
            retry_after: None,
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        fault.error
    }
}

/// A fault that may pass.
pub(super) fn passing(message: String) -> Fault {
    let error = Error::new(ErrorKind::Network, message);
    Fault {
        error,
        is_passing: true,
        retry_after: None,
    }
}

impl Client {
    /// The error for an answer whose status is not a success.
    pub(super) fn refused(
        &self,
        what: &dyn fmt::Display,
        url: &Uri,
        response: &Response<Body>,
        purpose: Purpose,
    ) -> Fault {
        let status = response.status().as_u16();
        let get = |key: &str| {
            response
                .headers()
                .get(key)
                .and_then(|value| value.to_str().ok())
        };
        let code = get("x-error-code").unwrap_or_default();
        let said = get("x-error-message").map(quoted);
        let said = said.map_or(String::new(), |said| format!(", {said:?}"));
        let hub = &self.endpoint;
        let network = ErrorKind::Network;
        let page = url.path().trim_start_matches("/api/models");
        let repo = page
            .trim_start_matches('/')
            .split('/')
            .take(2)
            .collect::<Vec<_>>()
            .join("/");
        let (kind, message) = match (status, code) {
            _ if !self.is_hub(url) => (
                network,
                format!(
                    "{what}: {} answers {status}",
                    url.host().unwrap_or_default()
                ),
            ),
            (401 | 403, _) => {
                let token = match &self.token {
                    Some(_) => {
                        "the token that was sent may not read it: set HF_TOKEN to one that may"
                    }
                    None => "set HF_TOKEN (or the file HF_TOKEN_PATH) to a token that may read it",
                };
                let state = if code == "GatedRepo" {
                    "it is gated"
                } else {
                    "it is gated, private or not there"
                };
                (
                    network,
                    format!(
                        "{hub} refuses {what} ({status}{said}): {state}; {token}, and accept its licence at {hub}/{repo}"
                    ),
                )
            }
            (404, "RevisionNotFound") => (
                ErrorKind::Missing,
                format!("{hub} has {repo}, but no such revision: {what} (404)"),
            ),
            (404, _) if purpose == Purpose::Json => (
                ErrorKind::Missing,
                format!("{hub} has no model {what} (404{said})"),
            ),
            (429, _) => (
                network,
                format!("{what}: {hub} has had too many requests (429{said})"),
            ),
            _ => (
                network,
                format!(
                    "{what}: {} answers {status}{said}",
                    url.host().unwrap_or_default()
                ),
            ),
        };
        Fault {
            error: Error::new(kind, message),
            is_passing: matches!(status, 408 | 429 | 500..),
            retry_after: get("retry-after").and_then(retry_after),
        }
    }
}

/// The retries of one request.
pub(super) struct Retries<'c> {
    pub(super) client: &'c Client,
    pub(super) done: u32,
}

impl Retries<'_> {
    /// Resets the count, because some bytes were received.
    pub(super) fn reset(&mut self) {
        self.done = 0;
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The fault, if it is permanent, if no retry is left, or if it asks for too long a wait.
    pub(super) fn after(&mut self, fault: Fault, on_progress: &mut OnProgress<'_>) -> Answer<()> {
        let pause = self.client.pause * 2_u32.pow(self.done);
        let wait = fault.retry_after.unwrap_or(pause);
        if fault.is_passing && wait > MAX_WAIT {
            let message = format!(
                "{}; it asks to try again in {} s",
                fault.error,
                wait.as_secs()
            );
            return Err(Error::new(fault.error.kind(), message).into());
        }
        if !fault.is_passing || self.done == RETRIES {
            return Err(fault);
        }
        self.done += 1;
        let seconds = wait.as_secs_f64();
        on_progress(Progress::Note(&format!(
            "{}; trying again in {seconds:.1} s",
            fault.error
        )));
        Ok(self.client.wait(wait)?)
    }
}

/// The wait in `Retry-After`: seconds, or a date.
fn retry_after(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(text.trim())
        .ok()?;
    Some(Duration::try_from(date.duration_since(jiff::Timestamp::now())).unwrap_or_default())
}

/// A hub's message without control characters.
fn quoted(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(MAX_QUOTED)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_seconds_or_dates() {
        assert_eq!(retry_after(" 7 "), Some(Duration::from_secs(7)));
        let date = jiff::Timestamp::now() + Duration::from_secs(100);
        let date = date.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        let wait = retry_after(&date).unwrap().as_secs();
        assert!((95..=100).contains(&wait), "{date}: {wait}");
        assert_eq!(
            retry_after("Wed, 21 Oct 2015 07:28:00 GMT"),
            Some(Duration::ZERO)
        );
        assert_eq!(retry_after("soon"), None);
    }
}
