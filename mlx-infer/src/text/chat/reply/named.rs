//! Calls with the name before the arguments: `name[ARGS]{..}` and similar forms.

use super::calls::{ReplyParts, Tools};
use super::json::{self, Json, is_blank};
use super::parser::ReplyStep;

/// The longest head, in bytes. A longer text is not a call.
const MAX_HEAD: usize = 256;

/// Finds a tool's name in the text before the arguments.
pub(super) type FindName = fn(&str) -> &str;

/// Reads one call: a head with the name, the arguments, and the mark that closes the call.
#[derive(Debug)]
pub(super) struct Named {
    name: FindName,
    close: &'static str,
    at: At,
}

#[derive(Debug)]
enum At {
    Head(String),
    Arguments(Json),
    /// After the arguments: this number of bytes of the closing mark was read.
    Tail(usize),
}

impl Named {
    /// Before a head. Without `close` a call ends with its arguments.
    pub(super) fn new(name: FindName, close: &'static str) -> Self {
        Self {
            name,
            close,
            at: At::Head(String::new()),
        }
    }

    /// Before the arguments of a call that was begun.
    pub(super) fn arguments() -> Self {
        Self {
            name: |head| head,
            close: "",
            at: At::Arguments(Json::default()),
        }
    }

    pub(super) fn is_tail(&self) -> bool {
        matches!(self.at, At::Tail(_))
    }

    pub(super) fn take(&mut self, c: char, tools: &Tools, parts: &mut ReplyParts) -> ReplyStep {
        match &mut self.at {
            At::Head(head) if c == '{' => {
                let name = (self.name)(head).trim();
                if !tools.has(name) {
                    return ReplyStep::Broken;
                }
                parts.start(name);
                self.at = At::Arguments(Json::default());
                self.take(c, tools, parts)
            }
            At::Head(head) => {
                head.push(c);
                match head.len() > MAX_HEAD {
                    true => ReplyStep::Broken,
                    false => ReplyStep::More,
                }
            }
            At::Arguments(json) => {
                let is_front = json.is_front();
                match json.take(c) {
                    json::Read::More if is_front && is_blank(c) => ReplyStep::More,
                    json::Read::More if is_front && c != '{' => ReplyStep::Broken,
                    json::Read::More => {
                        parts.arguments(c.encode_utf8(&mut [0; 4]));
                        ReplyStep::More
                    }
                    json::Read::Last => {
                        parts.arguments(c.encode_utf8(&mut [0; 4]));
                        parts.end();
                        self.at = At::Tail(0);
                        match self.close.is_empty() {
                            true => ReplyStep::Done,
                            false => ReplyStep::More,
                        }
                    }
                    json::Read::Behind | json::Read::Broken => ReplyStep::Broken,
                }
            }
            // DeepSeek closes the fence around the arguments before the mark.
            At::Tail(0) if is_blank(c) || c == '`' => ReplyStep::More,
            At::Tail(matched) => {
                if !self.close[*matched..].starts_with(c) {
                    return ReplyStep::Broken;
                }
                *matched += c.len_utf8();
                match *matched == self.close.len() {
                    true => ReplyStep::Done,
                    false => ReplyStep::More,
                }
            }
        }
    }
}

/// Mistral: `name[ARGS]`, since 2025 with `[CALL_ID]id` between them.
pub(super) fn mistral(head: &str) -> &str {
    let head = head.split("[ARGS]").next().unwrap_or_default();
    head.split("[CALL_ID]").next().unwrap_or_default()
}

/// DeepSeek V3.1: `name<｜tool▁sep｜>`. Earlier versions: `function<｜tool▁sep｜>name` and a fence.
pub(super) fn deepseek(head: &str) -> &str {
    let head = head.trim_end();
    let head = head.strip_suffix("```json").unwrap_or(head).trim_end();
    match head.rsplit_once("<｜tool▁sep｜>") {
        Some((name, "")) => name,
        Some((_, name)) => name,
        None => head,
    }
}

/// Kimi: `functions.name:0<|tool_call_argument_begin|>`.
pub(super) fn kimi(head: &str) -> &str {
    let head = head
        .split("<|tool_call_argument_begin|>")
        .next()
        .unwrap_or_default()
        .trim();
    let head = head.strip_prefix("functions.").unwrap_or(head);
    match head.rsplit_once(':') {
        Some((name, number)) if number.chars().all(|c| c.is_ascii_digit()) => name,
        _ => head,
    }
}
