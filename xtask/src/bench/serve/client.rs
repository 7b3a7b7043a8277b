//! One request to `/v1/completions`, streamed, with the times at which its tokens arrived.

use std::io::{BufRead, BufReader, ErrorKind};
use std::ops::ControlFlow;
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
    /// From sending the request to the first text that is not empty; NaN if there was none, as
    /// when all tokens were special.
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

/// The model that a server names first.
#[derive(Clone, Debug, Deserialize)]
pub struct Served {
    pub id: String,
    /// The most positions of a request, if the server tells.
    pub max_model_len: Option<usize>,
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
        Self::at(&format!("http://127.0.0.1:{port}"), extra)
    }

    /// A client of the server at `base`, as in `http://127.0.0.1:8000`.
    pub fn at(base: &str, extra: Value) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(600)))
            .max_idle_connections_per_host(64)
            .http_status_as_error(false)
            .build();
        Self {
            agent: config.into(),
            base: base.trim_end_matches('/').to_owned(),
            extra,
        }
    }

    /// The model that the server names first.
    pub fn served(&self) -> Result<Served> {
        #[derive(Deserialize)]
        struct Models {
            data: Vec<Served>,
        }
        let url = format!("{}/v1/models", self.base);
        let mut response =
            (self.agent.get(&url).call()).with_context(|| format!("cannot reach {url}"))?;
        if response.status() != 200 {
            bail!("{url}: status {}", response.status());
        }
        let text = response.body_mut().read_to_string()?;
        let models: Models =
            serde_json::from_str(&text).with_context(|| format!("{url}: no list of models"))?;
        let first = models.data.into_iter().next();
        first.with_context(|| format!("{url}: the list of models is empty"))
    }

    /// Sets a parameter of all further requests.
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.extra[name] = value;
        self
    }

    /// Whether the server answers requests. This project's server lists its models while it loads,
    /// and says at `/ready` whether it has loaded; other servers do not know that path.
    pub fn is_ready(&self) -> bool {
        let status = |path: &str| {
            let response = self.agent.get(format!("{}{path}", self.base)).call();
            response.map(|response| response.status().as_u16())
        };
        matches!(status("/v1/models"), Ok(200)) && !matches!(status("/ready"), Ok(503) | Err(_))
    }

    /// Continues a prompt, a text or token ids, greedily by `max_tokens` tokens.
    pub fn complete(&self, prompt: &Value, max_tokens: usize) -> Result<Outcome> {
        let all = |_| ControlFlow::Continue(());
        self.stream(prompt, max_tokens, all)
    }

    /// Like [`complete`](Self::complete). `heard` gets the time of each text that is not empty. If
    /// it breaks, the client leaves, and the outcome has what came until then.
    pub fn stream(
        &self,
        prompt: &Value,
        max_tokens: usize,
        mut heard: impl FnMut(Instant) -> ControlFlow<()>,
    ) -> Result<Outcome> {
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
            let pieces = reading.gaps_s.len();
            let had_first = reading.first.is_some();
            if reading.line(&line)? {
                return reading.end();
            }
            let is_text = reading.gaps_s.len() > pieces || reading.first.is_some() != had_first;
            if is_text && heard(reading.last).is_break() {
                // One piece of text counts as one token: the server has not counted yet.
                let pieces = reading.gaps_s.len() as u64 + 1;
                reading.tokens = reading.tokens.or(Some(pieces));
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
        let first_s = (self.first).map_or(f64::NAN, |first| (first - self.start).as_secs_f64());
        Ok(Outcome {
            first_s,
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
