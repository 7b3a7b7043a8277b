//! Calls in Gemma's notation: `call:name{key:MARKtextMARK,n:3,l:[true]}`.

use super::calls::{ReplyParts, Tools};
use super::json::{self, Json};
use super::parser::{ReplyStep, Seek};
use super::tags;

/// The longest name or key, in bytes. A text with a longer one is not a call.
const MAX_NAME: usize = 256;
/// The longest word outside of marks, in bytes. Texts have marks around them.
const MAX_WORD: usize = 1024;

/// Reads a call and the mark that closes it.
#[derive(Debug)]
pub(super) struct Notation {
    /// The mark before and after a text.
    mark: &'static str,
    close: &'static str,
    at: At,
    /// The brackets that are open.
    open: Vec<char>,
}

#[derive(Debug)]
enum At {
    /// This number of bytes of `call:` was read.
    Call(usize),
    Name(String),
    /// Before a key or inside of one; `may_close` after `{`.
    Key {
        text: String,
        may_close: bool,
    },
    /// Before a value; `may_close` after `[`.
    Value {
        may_close: bool,
    },
    /// A word without marks, or the beginning of a mark.
    Word(String),
    Text(Seek),
    /// A text in JSON's quotation marks.
    Quoted(Json),
    AfterValue,
    /// After the call: this number of bytes of the closing mark was read.
    Tail(usize),
}

const CALL: &str = "call:";

impl Notation {
    pub(super) fn new(mark: &'static str, close: &'static str) -> Self {
        Self {
            mark,
            close,
            at: At::Call(0),
            open: Vec::new(),
        }
    }

    pub(super) fn is_tail(&self) -> bool {
        matches!(self.at, At::Tail(_))
    }

    pub(super) fn take(&mut self, c: char, tools: &Tools, parts: &mut ReplyParts) -> ReplyStep {
        let is_blank = c.is_whitespace();
        match &mut self.at {
            At::Call(0) | At::Value { .. } | At::AfterValue | At::Tail(0) if is_blank => {}
            At::Call(matched) => {
                if !CALL[*matched..].starts_with(c) {
                    return ReplyStep::Broken;
                }
                *matched += 1;
                if *matched == CALL.len() {
                    self.at = At::Name(String::new());
                }
            }
            At::Name(name) if c == '{' => {
                let name = name.trim();
                if !tools.has(name) {
                    return ReplyStep::Broken;
                }
                parts.start(name);
                self.open_bracket(c, parts);
            }
            At::Name(text) | At::Key { text, .. } if text.len() > MAX_NAME => {
                return ReplyStep::Broken;
            }
            At::Name(name) => name.push(c),
            At::Key { text, may_close } => match c {
                '}' if *may_close && text.trim().is_empty() => return self.close_bracket(c, parts),
                // A text in marks may contain a colon.
                ':' if !text.trim_start().starts_with(self.mark)
                    || text.matches(self.mark).count() > 1 =>
                {
                    let key = text.trim().trim_matches('"');
                    let key = key.strip_prefix(self.mark).unwrap_or(key);
                    let key = key.strip_suffix(self.mark).unwrap_or(key);
                    parts.arguments(&format!("{}: ", serde_json::Value::from(key)));
                    self.at = At::Value { may_close: false };
                }
                '{' | '}' | '[' | ']' | ',' => return ReplyStep::Broken,
                _ => text.push(c),
            },
            At::Value { may_close } => match c {
                '{' | '[' => self.open_bracket(c, parts),
                ']' if *may_close => return self.close_bracket(c, parts),
                '"' => {
                    let mut json = Json::default();
                    json.take(c);
                    parts.arguments("\"");
                    self.at = At::Quoted(json);
                }
                '}' | ']' | ',' => return ReplyStep::Broken,
                _ => self.at = At::Word(c.to_string()),
            },
            At::Word(word) => match c {
                '}' | ']' | ',' => {
                    parts.arguments(&tags::bare(word.trim()));
                    return self.after_value(c, parts);
                }
                _ if word.len() > MAX_WORD => return ReplyStep::Broken,
                _ => {
                    word.push(c);
                    if word == self.mark {
                        parts.arguments("\"");
                        self.at = At::Text(Seek::default());
                    }
                }
            },
            At::Text(seek) => {
                let mut text = String::new();
                let is_end = seek.take(c, &[self.mark], &mut text).is_some();
                if !text.is_empty() {
                    parts.arguments(&tags::escaped(&text));
                }
                if is_end {
                    parts.arguments("\"");
                    self.at = At::AfterValue;
                }
            }
            At::Quoted(json) => match json.take(c) {
                json::Read::More => parts.arguments(c.encode_utf8(&mut [0; 4])),
                json::Read::Last => {
                    parts.arguments("\"");
                    self.at = At::AfterValue;
                }
                _ => return ReplyStep::Broken,
            },
            At::AfterValue => return self.after_value(c, parts),
            At::Tail(matched) => {
                if !self.close[*matched..].starts_with(c) {
                    return ReplyStep::Broken;
                }
                *matched += c.len_utf8();
                if *matched == self.close.len() {
                    return ReplyStep::Done;
                }
            }
        }
        ReplyStep::More
    }

    fn open_bracket(&mut self, c: char, parts: &mut ReplyParts) {
        parts.arguments(c.encode_utf8(&mut [0; 4]));
        let (close, at) = match c {
            '{' => (
                '}',
                At::Key {
                    text: String::new(),
                    may_close: true,
                },
            ),
            _ => (']', At::Value { may_close: true }),
        };
        self.open.push(close);
        self.at = at;
    }

    fn close_bracket(&mut self, c: char, parts: &mut ReplyParts) -> ReplyStep {
        if self.open.pop() != Some(c) {
            return ReplyStep::Broken;
        }
        parts.arguments(c.encode_utf8(&mut [0; 4]));
        self.at = At::AfterValue;
        if self.open.is_empty() {
            parts.end();
            self.at = At::Tail(0);
        }
        ReplyStep::More
    }

    fn after_value(&mut self, c: char, parts: &mut ReplyParts) -> ReplyStep {
        match c {
            ',' => {
                parts.arguments(", ");
                self.at = match self.open.last() {
                    Some('}') => At::Key {
                        text: String::new(),
                        may_close: false,
                    },
                    _ => At::Value { may_close: false },
                };
                ReplyStep::More
            }
            _ => self.close_bracket(c, parts),
        }
    }
}
