//! Jinja2 templates, as transformers renders them, within limits.
//!
//! A parser and an interpreter for the language of chat templates: jinja2 in its immutable sandbox, with `trim_blocks`,
//! `lstrip_blocks`, loop controls and transformers' `{% generation %}`, over Python's values. Chat templates come with
//! checkpoints from anywhere, so every step and every byte is counted ([`limits`]), and nesting is limited in the
//! source, in values and in calls.

mod attributes;
mod calls;
mod expressions;
mod filters;
mod formats;
mod interpreter;
mod lexer;
mod limits;
mod methods;
mod nodes;
mod operators;
mod parser;
mod repr;
mod scope;
mod tests;
mod values;

use serde_json::{Map, Value as Json};

/// The stack of the interpreter, which is recursive up to its own limits. Only pages that are used take memory.
const STACK_BYTES: usize = 256 << 20;

/// The time that a caller gives for `strftime_now`.
#[cfg(feature = "clock")]
pub(super) type Now = jiff::civil::DateTime;
/// Without the feature `clock` no caller can give one.
#[cfg(not(feature = "clock"))]
#[derive(Clone, Copy)]
pub(super) enum Now {}

type Result<T> = std::result::Result<T, Fail>;

/// The reason why a template could not be parsed or rendered.
#[derive(Debug)]
pub(super) enum Fail {
    /// The error, and the line of the template.
    Error(String, Option<u32>),
    /// The text that the template gave to `raise_exception`.
    Raised(String),
    /// The limit that the template reached.
    Limit(String),
}

impl Fail {
    fn error(message: impl Into<String>) -> Self {
        Self::Error(message.into(), None)
    }

    fn at(line: u32, message: impl std::fmt::Display) -> Self {
        Self::Error(message.to_string(), Some(line))
    }
}

/// A parsed template. Several threads can share and render it.
#[derive(Debug)]
pub(super) struct Template(nodes::Parsed);

impl Template {
    pub(super) fn parse(source: &str) -> Result<Self> {
        on_large_stack(|| parser::parse(source).map(Self))
    }

    /// The text of the template with these variables. `now` is the time for `strftime_now`.
    pub(super) fn render(&self, variables: &Map<String, Json>, now: Option<Now>) -> Result<String> {
        on_large_stack(|| interpreter::render(&self.0, variables, now))
    }
}

fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chat-template".to_owned())
            .stack_size(STACK_BYTES);
        let handle = thread
            .spawn_scoped(scope, work)
            .map_err(|error| Fail::error(format!("cannot start a thread: {error}")))?;
        handle
            .join()
            .unwrap_or_else(|_| Err(Fail::error("the template engine failed")))
    })
}
