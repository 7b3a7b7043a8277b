//! Reads JSON character by character, and calls in it: `{"name": .., "arguments": {..}}`, one or a list of them.

use super::calls::{ReplyParts, Tools};
use super::parser::ReplyStep;

/// The effect of a character on a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// The character belongs to the value, which continues.
    More,
    /// The character is the last of the value.
    Last,
    /// The character is not part of the value, which ended before it (numbers only).
    Behind,
    /// The character cannot continue the value.
    Broken,
}

/// Reads one JSON value, by RFC 8259.
#[derive(Clone, Debug)]
pub(super) struct Json {
    /// The brackets that are open.
    open: Vec<char>,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Before a value; `may_close` after `[`.
    Value {
        may_close: bool,
    },
    /// Before a key; `may_close` after `{`.
    Key {
        may_close: bool,
    },
    Text {
        is_key: bool,
    },
    Escape {
        is_key: bool,
    },
    /// This number of digits of `\u` is missing.
    Hex {
        is_key: bool,
        missing: u8,
    },
    Colon,
    /// After a value inside of brackets.
    After,
    Number(Number),
    /// The rest of `true`, `false` or `null`.
    Word(&'static str),
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

impl Default for Json {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            state: State::Value { may_close: false },
        }
    }
}

impl Json {
    /// Takes the next character. Blanks before the value belong to it.
    pub(super) fn take(&mut self, c: char) -> Read {
        let is_blank = is_blank(c);
        self.state = match self.state {
            State::Value { .. } | State::Key { .. } | State::Colon | State::After if is_blank => {
                return Read::More;
            }
            State::Value { may_close } => match c {
                '{' => {
                    self.open.push('}');
                    State::Key { may_close: true }
                }
                '[' => {
                    self.open.push(']');
                    State::Value { may_close: true }
                }
                ']' if may_close => return self.close(c),
                '"' => State::Text { is_key: false },
                '-' => State::Number(Number::Minus),
                '0' => State::Number(Number::Zero),
                '1'..='9' => State::Number(Number::Whole),
                't' => State::Word("rue"),
                'f' => State::Word("alse"),
                'n' => State::Word("ull"),
                _ => return Read::Broken,
            },
            State::Key { may_close } => match c {
                '"' => State::Text { is_key: true },
                '}' if may_close => return self.close(c),
                _ => return Read::Broken,
            },
            State::Text { is_key } => match c {
                '"' if is_key => State::Colon,
                '"' => return self.ended(),
                '\\' => State::Escape { is_key },
                '\0'..='\u{1f}' => return Read::Broken,
                _ => return Read::More,
            },
            State::Escape { is_key } => match c {
                'u' => State::Hex { is_key, missing: 4 },
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => State::Text { is_key },
                _ => return Read::Broken,
            },
            State::Hex { is_key, missing } if c.is_ascii_hexdigit() => match missing {
                1 => State::Text { is_key },
                _ => State::Hex {
                    is_key,
                    missing: missing - 1,
                },
            },
            State::Hex { .. } => return Read::Broken,
            State::Colon if c == ':' => State::Value { may_close: false },
            State::Colon => return Read::Broken,
            State::After => match (c, self.open.last()) {
                (',', Some('}')) => State::Key { may_close: false },
                (',', Some(_)) => State::Value { may_close: false },
                _ => return self.close(c),
            },
            State::Number(number) => match number.next(c) {
                Some(number) => State::Number(number),
                None if !number.may_end() => return Read::Broken,
                None if self.open.is_empty() => return Read::Behind,
                None => {
                    self.state = State::After;
                    return self.take(c);
                }
            },
            State::Word(rest) => match rest.strip_prefix(c) {
                Some("") => return self.ended(),
                Some(rest) => State::Word(rest),
                None => return Read::Broken,
            },
        };
        Read::More
    }

    /// Whether the value has not begun.
    pub(super) fn is_front(&self) -> bool {
        self.open.is_empty() && matches!(self.state, State::Value { .. })
    }

    fn close(&mut self, c: char) -> Read {
        match self.open.pop() {
            Some(open) if open == c => self.ended(),
            _ => Read::Broken,
        }
    }

    fn ended(&mut self) -> Read {
        self.state = State::After;
        match self.open.is_empty() {
            true => Read::Last,
            false => Read::More,
        }
    }
}

impl Number {
    fn next(self, c: char) -> Option<Self> {
        Some(match (self, c) {
            (Self::Minus, '0') => Self::Zero,
            (Self::Minus | Self::Whole, '0'..='9') => Self::Whole,
            (Self::Zero | Self::Whole, '.') => Self::Point,
            (Self::Point | Self::Fraction, '0'..='9') => Self::Fraction,
            (Self::Zero | Self::Whole | Self::Fraction, 'e' | 'E') => Self::Exponent,
            (Self::Exponent, '+' | '-') => Self::Sign,
            (Self::Exponent | Self::Sign | Self::Power, '0'..='9') => Self::Power,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(
            self,
            Self::Zero | Self::Whole | Self::Fraction | Self::Power
        )
    }
}

/// White space of JSON.
pub(super) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\n' | '\r' | '\t')
}

/// Reads the objects of a block of calls, and the mark that closes the block.
#[derive(Debug)]
pub(super) struct Envelope {
    close: &'static str,
    /// Separates two objects outside of a list.
    separator: Option<char>,
    /// Whether an object with other keys is not a call.
    is_strict: bool,
    /// Whether the name of a tool is the key of its arguments.
    is_keyed: bool,
    in_list: bool,
    at: At,
    call: Call,
}

#[derive(Debug)]
enum At {
    /// Before an object or a list.
    Front,
    /// Before a key; `may_close` after `{`.
    Key {
        may_close: bool,
    },
    /// In a key, as it is written.
    KeyText {
        json: Json,
        text: String,
    },
    Colon(String),
    Value {
        key: Key,
        json: Json,
        text: String,
        is_live: bool,
    },
    AfterValue,
    /// After an object of a list.
    AfterItem,
    /// After the last object or the list: this number of bytes of the closing mark was read.
    Tail(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Name,
    Arguments,
    /// The value has the name and the arguments, if it is an object.
    Function,
    Other,
}

/// The known parts of a call.
#[derive(Debug, Default)]
struct Call {
    name: Option<String>,
    /// Arguments that were read before the name.
    early: String,
    has_arguments: bool,
    /// Whether the object of the call is inside another one, under `function`.
    is_inner: bool,
}

impl Envelope {
    /// Before the first object of a block that `close` ends.
    pub(super) fn new(close: &'static str) -> Self {
        Self {
            close,
            separator: None,
            is_strict: false,
            is_keyed: false,
            in_list: false,
            at: At::Front,
            call: Call::default(),
        }
    }

    /// Objects whose only key is the name of a tool.
    pub(super) fn keyed(close: &'static str) -> Self {
        Self {
            is_keyed: true,
            ..Self::new(close)
        }
    }

    /// Objects outside of a list, separated by `;`.
    pub(super) fn bare() -> Self {
        Self {
            separator: Some(';'),
            is_strict: true,
            ..Self::new("")
        }
    }

    /// Whether only a closing mark is missing.
    pub(super) fn is_tail(&self) -> bool {
        matches!(self.at, At::Tail(_)) || self.in_list && matches!(self.at, At::AfterItem)
    }

    /// Whether the arguments of the call that was begun are complete.
    pub(super) fn is_complete(&self) -> bool {
        self.call.has_arguments && matches!(self.at, At::AfterValue)
    }

    pub(super) fn take(&mut self, c: char, tools: &Tools, parts: &mut ReplyParts) -> ReplyStep {
        let is_blank = is_blank(c);
        match &mut self.at {
            At::Front
            | At::Key { .. }
            | At::Colon(_)
            | At::AfterValue
            | At::AfterItem
            | At::Tail(0)
                if is_blank => {}
            At::Front => match c {
                '{' => {
                    self.call = Call::default();
                    self.at = At::Key { may_close: true };
                }
                '[' if !self.in_list && !self.is_strict => self.in_list = true,
                _ => return ReplyStep::Broken,
            },
            At::Key { may_close } => match c {
                '"' => {
                    let mut json = Json::default();
                    json.take(c);
                    self.at = At::KeyText {
                        json,
                        text: c.to_string(),
                    };
                }
                '}' if *may_close => return self.close_object(tools, parts),
                _ => return ReplyStep::Broken,
            },
            At::KeyText { json, text } => {
                text.push(c);
                match json.take(c) {
                    Read::More => {}
                    Read::Last => match decoded(text) {
                        Some(key) => self.at = At::Colon(key),
                        None => return ReplyStep::Broken,
                    },
                    _ => return ReplyStep::Broken,
                }
            }
            At::Colon(key) if self.is_keyed => {
                if c != ':' || !tools.has(key) {
                    return ReplyStep::Broken;
                }
                self.call.name = Some(std::mem::take(key));
                self.at = At::Value {
                    key: Key::Arguments,
                    json: Json::default(),
                    text: String::new(),
                    is_live: false,
                };
            }
            At::Colon(key) => {
                let kind = match key.as_str() {
                    "name" => Key::Name,
                    "tool_name" if !self.is_strict => Key::Name,
                    "arguments" | "parameters" => Key::Arguments,
                    "function" if !self.call.is_inner => Key::Function,
                    "type" | "id" | "function" => Key::Other,
                    _ if self.is_strict => return ReplyStep::Broken,
                    _ => Key::Other,
                };
                // A repeated key makes the call ambiguous.
                let is_known = match kind {
                    Key::Name => self.call.name.is_some(),
                    Key::Arguments => self.call.has_arguments,
                    Key::Function | Key::Other => false,
                };
                if c != ':' || is_known {
                    return ReplyStep::Broken;
                }
                self.at = At::Value {
                    key: kind,
                    json: Json::default(),
                    text: String::new(),
                    is_live: false,
                };
            }
            At::Value { .. } => return self.value(c, tools, parts),
            At::AfterValue => match c {
                ',' if !self.is_keyed => self.at = At::Key { may_close: false },
                '}' => return self.close_object(tools, parts),
                _ => return ReplyStep::Broken,
            },
            At::AfterItem => match c {
                ',' => self.at = At::Front,
                ']' => return self.tail(),
                _ => return ReplyStep::Broken,
            },
            At::Tail(0) if Some(c) == self.separator => self.at = At::Front,
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

    fn value(&mut self, c: char, tools: &Tools, parts: &mut ReplyParts) -> ReplyStep {
        let At::Value {
            key,
            json,
            text,
            is_live,
        } = &mut self.at
        else {
            return ReplyStep::Broken;
        };
        if text.is_empty() {
            if is_blank(c) {
                return ReplyStep::More;
            }
            if *key == Key::Function && c == '{' {
                self.call.is_inner = true;
                self.at = At::Key { may_close: true };
                return ReplyStep::More;
            }
            // If the tool is known, arguments are returned while they are read.
            *is_live = *key == Key::Arguments && c == '{' && self.call.name.is_some();
            if *is_live && let Some(name) = &self.call.name {
                parts.start(name);
            }
        }
        let step = json.take(c);
        match step {
            Read::Broken => return ReplyStep::Broken,
            Read::Behind => {}
            _ if *is_live => {
                parts.arguments(c.encode_utf8(&mut [0; 4]));
                // A text that is not empty marks that the value has begun.
                if text.is_empty() {
                    text.push(c);
                }
            }
            _ => text.push(c),
        }
        if step == Read::More {
            return ReplyStep::More;
        }
        let (key, text, is_live) = (*key, std::mem::take(text), *is_live);
        self.at = At::AfterValue;
        let is_right = match key {
            Key::Name => self.name(&text, tools, parts),
            Key::Arguments if is_live => {
                self.call.has_arguments = true;
                true
            }
            Key::Arguments => self.arguments(&text, parts),
            Key::Function | Key::Other => true,
        };
        match step {
            _ if !is_right => ReplyStep::Broken,
            Read::Behind => self.take(c, tools, parts),
            _ => ReplyStep::More,
        }
    }

    /// Takes the name. Returns whether an offered tool has it.
    fn name(&mut self, text: &str, tools: &Tools, parts: &mut ReplyParts) -> bool {
        let Some(name) = decoded(text).filter(|name| tools.has(name)) else {
            return false;
        };
        if self.call.has_arguments {
            parts.start(&name);
            parts.arguments(&std::mem::take(&mut self.call.early));
        }
        self.call.name = Some(name);
        true
    }

    /// Takes arguments that were read before the name, or that are not an object: a text with JSON
    /// in it, or `null`.
    fn arguments(&mut self, text: &str, parts: &mut ReplyParts) -> bool {
        let text = match text {
            "null" | "\"\"" | "\"null\"" => "{}".to_owned(),
            object if object.starts_with('{') => object.to_owned(),
            other => match decoded(other) {
                Some(inner) if is_object(&inner) => inner,
                _ => return false,
            },
        };
        self.call.has_arguments = true;
        match &self.call.name {
            Some(name) => {
                parts.start(name);
                parts.arguments(&text);
            }
            None => self.call.early = text,
        }
        true
    }

    fn close_object(&mut self, tools: &Tools, parts: &mut ReplyParts) -> ReplyStep {
        if std::mem::take(&mut self.call.is_inner) {
            self.at = At::AfterValue;
            return ReplyStep::More;
        }
        let Some(name) = self.call.name.take().filter(|name| tools.has(name)) else {
            return ReplyStep::Broken;
        };
        if !self.call.has_arguments {
            parts.start(&name);
            parts.arguments("{}");
        }
        parts.end();
        match self.in_list {
            true => {
                self.at = At::AfterItem;
                ReplyStep::More
            }
            false => self.tail(),
        }
    }

    fn tail(&mut self) -> ReplyStep {
        self.at = At::Tail(0);
        match self.close.is_empty() && self.separator.is_none() {
            true => ReplyStep::Done,
            false => ReplyStep::More,
        }
    }
}

/// The decoded text of a JSON string.
fn decoded(text: &str) -> Option<String> {
    serde_json::from_str(text).ok()
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(text).is_ok_and(|value| value.is_object())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether the text is one value.
    fn accepts(text: &str) -> bool {
        let mut json = Json::default();
        let mut has_ended = false;
        for c in text.chars().chain([' ']) {
            if has_ended {
                if !is_blank(c) {
                    return false;
                }
                continue;
            }
            match json.take(c) {
                Read::More => {}
                Read::Last => has_ended = true,
                Read::Behind if is_blank(c) => has_ended = true,
                Read::Behind => return false,
                Read::Broken => return false,
            }
        }
        has_ended
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn accepts_what_serde_json_accepts(text in r#"[-{}\[\],:"0-2.eE+ \\untrfalsb]{0,12}"#) {
            // serde_json refuses numbers that are too large for it. They are valid JSON.
            let parsed = serde_json::from_str::<serde_json::Value>(&text);
            let by_value = parsed.as_ref().is_err_and(|error| error.to_string().contains("out of range"));
            prop_assert_eq!(accepts(&text), parsed.is_ok() || by_value, "{:?}", text);
        }
    }

    #[test]
    fn values_end_where_they_end() {
        for text in [
            r#"{"a": "}\"{", "b": [1, {"c": "\\"}, -0.5e+3, true], "d": {}}"#,
            "[]",
            "\"\\u00e9\"",
            "null",
        ] {
            assert!(accepts(text), "{text}");
            let mut json = Json::default();
            let steps: Vec<Read> = text.chars().map(|c| json.take(c)).collect();
            assert_eq!(
                steps.iter().position(|step| *step != Read::More),
                Some(steps.len() - 1)
            );
        }
        for bad in [
            "{\"a\" 1}",
            "[1,]",
            "{,}",
            "\"a\nb\"",
            "01",
            "1.",
            "\"\\x\"",
            "nul",
            "{]",
            "\"\\u12g4\"",
        ] {
            assert!(!accepts(bad), "{bad}");
        }
    }
}
