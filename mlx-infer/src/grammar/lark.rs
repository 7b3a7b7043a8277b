//! Schemas within grammars in Lark.

use std::ops::Range;

use serde_json::Value;

/// The JSON values behind `%json`, and their places in the text. Strings, regular expressions and comments have none.
pub(super) fn schemas(text: &str) -> Vec<(Range<usize>, Value)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(front) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let step = front.chars().next().map_or(1, char::len_utf8);
        at += match front.as_bytes()[0] {
            b'#' => front.find('\n').unwrap_or(front.len()),
            b'/' if front.starts_with("//") => front.find('\n').unwrap_or(front.len()),
            mark @ (b'"' | b'/') => quoted(front, mark),
            b'%' => {
                let keyword = ["%json", "%llguidance", "%regex"]
                    .into_iter()
                    .find(|keyword| front.starts_with(keyword));
                match keyword.and_then(|keyword| Some((keyword, json(&front[keyword.len()..])?))) {
                    None => step,
                    Some((keyword, (value, len))) => {
                        let start = at + keyword.len();
                        if keyword == "%json" {
                            found.push((start..start + len, value));
                        }
                        keyword.len() + len
                    }
                }
            }
            _ => step,
        };
    }
    found
}

/// The length of a text between marks.
fn quoted(text: &str, mark: u8) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            // A string ends with its line; the compiler reports that.
            b'\n' if mark == b'"' => return at,
            _ if byte == mark => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// A JSON value at the start of a text, and its length. `None` if it is malformed: the compiler
/// reports the error.
fn json(text: &str) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, values.byte_offset()))
}
