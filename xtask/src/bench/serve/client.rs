//! One request to `/v1/completions`, streamed, with the times at which its tokens arrived.

use std::io::{BufRead, BufReader, ErrorKind};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

/// How long a client tries to connect, and how long it waits between tries.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// The times of a request, in seconds.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// From sending the request to the first text that is not empty.
    pub first_s: f64,
    /// Between successive pieces of text.
    pub gaps_s: Vec<f64>,
    /// From sending the request to the end of the answer.
    pub whole_s: f64,
    /// Tokens of the answer, as the server counts them. If it does not count them, the requested
    /// number, provided that it ended the answer.
    pub tokens: u64,
    pub text: String,
}

/// The parts of an event that are parsed. The load generator shares the cores with the server, so
/// it parses no others.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: String,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: u64,
}

/// A client of one server. Clones share the connections.
#[derive(Clone)]
pub struct Client {
    agent: ureq::Agent,
    base: String,
    /// Further parameters of the request, which depend on the server.
    extra: Value,
}

impl Client {
    /// A client of the server at `127.0.0.1:port`.
    pub fn new(port: u16, extra: Value) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(600)))
            .max_idle_connections_per_host(64)
            .http_status_as_error(false)
            .build();
        Self {
            agent: config.into(),
            base: format!("http://127.0.0.1:{port}"),
            extra,
        }
    }

    /// Whether the server answers.
    pub fn is_ready(&self) -> bool {
        let models = self.agent.get(format!("{}/v1/models", self.base)).call();
        models.is_ok_and(|response| response.status() == 200)
    }

    /// Continues a prompt greedily by `max_tokens` tokens.
    pub fn complete(&self, prompt: &str, max_tokens: usize) -> Result<Outcome> {
        let mut body = json!({
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let (Value::Object(body), Value::Object(extra)) = (&mut body, &self.extra) {
            body.extend(extra.clone());
        }
        let start = Instant::now();
        let response = self.send_again("/v1/completions", &body, start)?;
        let mut reading = Reading::new(start, max_tokens as u64);
        let mut body = BufReader::new(response.into_body().into_reader());
        let mut line = String::new();
        while body.read_line(&mut line).context("an answer broke off")? > 0 {
            if reading.line(&line)? {
                return reading.end();
            }
            line.clear();
        }
        bail!("an answer ended without [DONE]")
    }

    /// Sends the request until the server accepts the connection. A server with a short queue of
    /// connections (five in Python's `http.server`) resets others. The time until one is accepted
    /// is part of the request's time.
    fn send_again(
        &self,
        path: &str,
        body: &Value,
        start: Instant,
    ) -> Result<ureq::http::Response<ureq::Body>> {
        loop {
            match self.send(path, body) {
                Err(error) if is_refused(&error) && start.elapsed() < PATIENCE => {
                    thread::sleep(PAUSE)
                }
                sent => return sent,
            }
        }
    }

    fn send(&self, path: &str, body: &Value) -> Result<ureq::http::Response<ureq::Body>> {
        let request = self.agent.post(format!("{}{path}", self.base));
        let mut response = request
            .header("Content-Type", "application/json")
            .send(body.to_string())
            .with_context(|| format!("cannot reach {}{path}", self.base))?;
        if response.status() != 200 {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            bail!("{path}: status {}: {text}", response.status());
        }
        Ok(response)
    }
}

/// Whether the server refused the connection.
fn is_refused(error: &anyhow::Error) -> bool {
    let kind = match error.downcast_ref::<ureq::Error>() {
        Some(ureq::Error::Io(error)) => error.kind(),
        _ => return false,
    };
    matches!(
        kind,
        ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
    )
}

/// An answer of which lines still arrive.
struct Reading {
    start: Instant,
    first: Option<Instant>,
    last: Instant,
    gaps_s: Vec<f64>,
    tokens: Option<u64>,
    text: String,
    /// The number of tokens that were requested.
    max_tokens: u64,
}

impl Reading {
    fn new(start: Instant, max_tokens: u64) -> Self {
        Self {
            start,
            first: None,
            last: start,
            gaps_s: Vec::new(),
            tokens: None,
            text: String::new(),
            max_tokens,
        }
    }

    /// Takes a line of the stream; true at its end.
    fn line(&mut self, line: &str) -> Result<bool> {
        // Other lines are blank, or comments that keep the connection open.
        let Some(data) = line.strip_prefix("data:").map(str::trim) else {
            return Ok(false);
        };
        if data == "[DONE]" {
            return Ok(true);
        }
        let event: Event =
            serde_json::from_str(data).with_context(|| format!("no event: {data}"))?;
        if let Some(error) = event.error {
            bail!("an answer failed: {error}");
        }
        if let Some(usage) = event.usage {
            self.tokens = Some(usage.completion_tokens);
        }
        let Some(choice) = event.choices.first() else {
            return Ok(false);
        };
        if choice.finish_reason.as_deref() == Some("length") {
            self.tokens = self.tokens.or(Some(self.max_tokens));
        }
        if !choice.text.is_empty() {
            let now = Instant::now();
            match self.first {
                None => self.first = Some(now),
                Some(_) => self.gaps_s.push((now - self.last).as_secs_f64()),
            }
            self.last = now;
            self.text += &choice.text;
        }
        Ok(false)
    }

    fn end(self) -> Result<Outcome> {
        let first = self.first.context("an answer without text")?;
        Ok(Outcome {
            first_s: (first - self.start).as_secs_f64(),
            gaps_s: self.gaps_s,
            whole_s: self.start.elapsed().as_secs_f64(),
            tokens: self.tokens.context("an answer without usage")?,
            text: self.text,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Result<Outcome> {
        let mut reading = Reading::new(Instant::now(), 2);
        for line in lines {
            if reading.line(line)? {
                return reading.end();
            }
        }
        bail!("no end")
    }

    #[test]
    fn text_is_timed_and_usage_counts_tokens() {
        let outcome = read(&[
            r#"data: {"choices":[{"text":""}],"usage":null}"#,
            r#"data: {"choices":[{"text":"a"}],"usage":null}"#,
            "",
            ": ping",
            r#"data: {"choices":[{"text":"bc"}],"usage":null}"#,
            r#"data: {"choices":[],"usage":{"completion_tokens":3}}"#,
            "data: [DONE]",
        ])
        .unwrap();
        assert_eq!((outcome.tokens, outcome.gaps_s.len()), (3, 1));
        assert_eq!(outcome.text, "abc");
        assert!(outcome.first_s <= outcome.whole_s);
    }

    #[test]
    fn a_server_that_does_not_count_has_ended_at_the_number_asked_for() {
        let ends = |reason: &str| {
            let last =
                format!(r#"data: {{"choices":[{{"text":"b","finish_reason":"{reason}"}}]}}"#);
            read(&[r#"data: {"choices":[{"text":"a"}]}"#, &last, "data: [DONE]"])
        };
        assert_eq!(ends("length").unwrap().tokens, 2);
        assert!(ends("stop").is_err());
    }

    #[test]
    fn an_error_in_the_stream_is_an_error() {
        let error = read(&[r#"data: {"error":{"message":"no memory"}}"#]).unwrap_err();
        assert!(error.to_string().contains("no memory"));
        assert!(read(&[r#"data: {"choices":[{"text":"a"}]}"#, "data: [DONE]"]).is_err());
    }
}
