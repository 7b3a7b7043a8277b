//! Calls in Python's notation: `[f(a=1, b="x"), g()]`, or as JSON in the same place.
//!
//! A block is read when it is complete. If the reply ends within a block, the block is content.

use serde_json::{Map, Value};

use super::calls::{ReplyParts, Tools};
use super::parser::ReplyStep;

/// The longest block, in bytes. A longer text has no calls.
const MAX_BYTES: usize = 1 << 20;
/// The deepest nesting of a value.
const MAX_DEPTH: usize = 64;

/// Reads the calls of a block, and the mark that closes it.
#[derive(Debug)]
pub(super) struct Pythonic {
    /// The closing mark. Empty for a list that ends with its bracket.
    close: &'static str,
    text: String,
}

impl Pythonic {
    /// Before the first call.
    pub(super) fn new(close: &'static str) -> Self {
        Self {
            close,
            text: String::new(),
        }
    }

    /// A list without marks.
    pub(super) fn bare() -> Self {
        Self::new("")
    }

    pub(super) fn take(&mut self, c: char, tools: &Tools, parts: &mut ReplyParts) -> ReplyStep {
        self.text.push(c);
        let is_bare = self.close.is_empty();
        if self.text.len() > MAX_BYTES || is_bare && !may_be_list(&self.text) {
            return ReplyStep::Broken;
        }
        if is_bare && c != ']' {
            return ReplyStep::More;
        }
        let Some(text) = self.text.strip_suffix(self.close) else {
            return ReplyStep::More;
        };
        let calls = json_calls(text).or_else(|| Source { rest: text }.calls());
        let calls = calls.filter(|calls| calls.iter().all(|(name, _)| tools.has(name)));
        let Some(calls) = calls.filter(|calls| !calls.is_empty()) else {
            // The mark may be inside a string argument, and the bracket may end a list in an argument.
            return match is_open(text) || is_bare && !is_balanced(text) {
                true => ReplyStep::More,
                false => ReplyStep::Broken,
            };
        };
        for (name, arguments) in calls {
            parts.start(&name);
            parts.arguments(&Value::Object(arguments).to_string());
            parts.end();
        }
        ReplyStep::Done
    }
}

type Call = (String, Map<String, Value>);

/// Calls in JSON: `{"name": .., "arguments": {..}}`, one or a list.
fn json_calls(text: &str) -> Option<Vec<Call>> {
    let calls = match serde_json::from_str(text).ok()? {
        Value::Array(calls) => calls,
        call => vec![call],
    };
    let call = |mut call: Value| {
        let name = call.get("name")?.as_str()?.to_owned();
        let key = ["arguments", "parameters"].into_iter();
        let key = key.clone().find(|key| call.get(*key).is_some());
        let arguments = match key.and_then(|key| call.get_mut(key)).map(Value::take) {
            Some(Value::Object(arguments)) => arguments,
            None | Some(Value::Null) => Map::new(),
            Some(_) => return None,
        };
        Some((name, arguments))
    };
    calls.into_iter().map(call).collect()
}

/// Whether the text ends within a string.
fn is_open(text: &str) -> bool {
    scanned(text).0
}

/// Whether every bracket is closed.
fn is_balanced(text: &str) -> bool {
    scanned(text) == (false, 0)
}

/// Whether the text ends within a string, and how many brackets are open.
fn scanned(text: &str) -> (bool, i64) {
    let (mut quote, mut is_escaped, mut depth) = (None, false, 0);
    for c in text.chars() {
        match quote {
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if c == '\\' => is_escaped = true,
            Some(mark) if c == mark => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if "([{".contains(c) => depth += 1,
            None if ")]}".contains(c) => depth -= 1,
            None => {}
        }
    }
    (quote.is_some(), depth)
}

/// Whether the text may be the beginning of a list of calls: a bracket, a name, a parenthesis.
fn may_be_list(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('[').map(str::trim_start) else {
        return false;
    };
    let is_name = |c: char| c.is_alphanumeric() || "_.-".contains(c);
    let behind = rest.trim_start_matches(is_name);
    let has_name = behind.len() < rest.len();
    match behind.chars().next() {
        None => true,
        Some(first) => has_name && first == '(',
    }
}

/// The part of the text that was not read.
struct Source<'t> {
    rest: &'t str,
}

impl Source<'_> {
    /// All calls, in a list or one on each line.
    fn calls(mut self) -> Option<Vec<Call>> {
        let is_list = self.eat('[');
        let mut calls = Vec::new();
        while !self.is_at_end(is_list) {
            if is_list && !calls.is_empty() && !self.eat(',') {
                return None;
            }
            calls.push(self.call()?);
        }
        let is_closed = !is_list || self.eat(']');
        (is_closed && self.blank().is_empty()).then_some(calls)
    }

    fn is_at_end(&mut self, is_list: bool) -> bool {
        let rest = self.blank();
        rest.is_empty() || is_list && rest.starts_with(']')
    }

    /// Skips blanks.
    fn blank(&mut self) -> &str {
        self.rest = self.rest.trim_start();
        self.rest
    }

    fn eat(&mut self, c: char) -> bool {
        let after = self.blank().strip_prefix(c).map(str::len);
        if let Some(left) = after {
            self.rest = &self.rest[self.rest.len() - left..];
        }
        after.is_some()
    }

    /// A name: of a tool, which may have dots and dashes, or of a parameter.
    fn name(&mut self) -> Option<String> {
        let rest = self.blank();
        let end = rest.find(|c: char| !(c.is_alphanumeric() || "_.-".contains(c)));
        let (name, rest) = self.rest.split_at(end?);
        self.rest = rest;
        (!name.is_empty()).then(|| name.to_owned())
    }

    fn call(&mut self) -> Option<Call> {
        let name = self.name()?;
        if !self.eat('(') {
            return None;
        }
        let mut arguments = Map::new();
        while !self.eat(')') {
            if !arguments.is_empty() && !self.eat(',') {
                return None;
            }
            let key = self.name()?;
            if !self.eat('=') || arguments.contains_key(&key) {
                return None;
            }
            arguments.insert(key, self.value(0)?);
        }
        Some((name, arguments))
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.blank().chars().next()? {
            quote @ ('"' | '\'') => self.string(quote).map(Value::from),
            '[' => self.list('[', ']', depth),
            '(' => self.list('(', ')', depth),
            '{' => {
                self.eat('{');
                let mut object = Map::new();
                while !self.eat('}') {
                    if !object.is_empty() && !self.eat(',') {
                        return None;
                    }
                    let quote = self.blank().chars().next().filter(|c| "\"'".contains(*c))?;
                    let key = self.string(quote)?;
                    if !self.eat(':') {
                        return None;
                    }
                    object.insert(key, self.value(depth + 1)?);
                }
                Some(Value::Object(object))
            }
            _ => {
                let end = self
                    .rest
                    .find(|c: char| !(c.is_alphanumeric() || "+-._".contains(c)));
                let (word, rest) = self.rest.split_at(end?);
                self.rest = rest;
                match word {
                    "True" | "true" => Some(true.into()),
                    "False" | "false" => Some(false.into()),
                    "None" | "null" => Some(Value::Null),
                    number => serde_json::from_str(number).ok().filter(Value::is_number),
                }
            }
        }
    }

    fn list(&mut self, open: char, close: char, depth: usize) -> Option<Value> {
        self.eat(open);
        let mut list = Vec::new();
        while !self.eat(close) {
            if !list.is_empty() && !self.eat(',') {
                return None;
            }
            list.push(self.value(depth + 1)?);
        }
        Some(Value::Array(list))
    }

    /// A string with the escapes of Python and JSON.
    fn string(&mut self, quote: char) -> Option<String> {
        self.eat(quote);
        let mut units: Vec<u16> = Vec::new();
        let mut chars = self.rest.char_indices();
        loop {
            let (at, c) = chars.next()?;
            if c == quote {
                self.rest = &self.rest[at + 1..];
                return String::from_utf16(&units).ok();
            }
            let c = match c {
                '\\' => match chars.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    escape @ ('u' | 'x') => {
                        let digits = if escape == 'u' { 4 } else { 2 };
                        let digits: String = chars.by_ref().take(digits).map(|(_, c)| c).collect();
                        units.push(u16::from_str_radix(&digits, 16).ok()?);
                        continue;
                    }
                    other @ ('\\' | '\'' | '"' | '/') => other,
                    _ => return None,
                },
                c => c,
            };
            units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
        }
    }
}
