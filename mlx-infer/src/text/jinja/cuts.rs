//! Parts of a text: stripping, splitting, lines, and ranges.

use super::compare::index;
use super::show::is_space;
use super::value::Value;
use super::{Fail, Result, budget};

pub(super) fn strip(text: &str, chars: Option<&str>, method: &str) -> Result<String> {
    if let Some(chars) = chars {
        budget::work((text.len() as u64).saturating_mul(chars.len() as u64) / 8)?;
    }
    let matches = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if method == "rstrip" {
        text
    } else {
        text.trim_start_matches(matches)
    };
    Ok(if method == "lstrip" {
        text
    } else {
        text.trim_end_matches(matches)
    }
    .to_owned())
}

pub(super) fn split<'a>(
    text: &'a str,
    separator: Option<&str>,
    limit: i128,
    from_end: bool,
) -> Result<Vec<&'a str>> {
    // Python counts splits, Rust pieces; a negative count is no limit.
    let pieces = usize::try_from(limit).map_or(usize::MAX, |limit| limit.saturating_add(1));
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(Fail::error("empty separator")),
        Some(separator) if from_end => text.rsplitn(pieces, separator).collect(),
        Some(separator) => return Ok(text.splitn(pieces, separator).collect()),
        None => words(text, pieces, from_end),
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts)
}

/// Words between white space. With a limit, the last piece keeps its white space on the far side.
fn words(text: &str, pieces: usize, from_end: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = if from_end {
            rest.trim_end_matches(is_space)
        } else {
            rest.trim_start_matches(is_space)
        };
        if rest.is_empty() {
            return parts;
        }
        if parts.len() + 1 >= pieces {
            parts.push(rest);
            return parts;
        }
        let at = if from_end {
            rest.rfind(is_space)
                .map(|at| at + rest[at..].chars().next().map_or(0, char::len_utf8))
        } else {
            rest.find(is_space)
        };
        let Some(at) = at else {
            parts.push(rest);
            return parts;
        };
        let (before, after) = rest.split_at(at);
        let (part, left) = if from_end {
            (after, before)
        } else {
            (before, after)
        };
        parts.push(part);
        rest = left;
    }
}

/// The lines of a text, with their ends where `keep`.
pub(super) fn lines(text: &str, keep: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let at = rest.find(ends).unwrap_or(rest.len());
        let mark = &rest[at..];
        let length = if mark.starts_with("\r\n") {
            2
        } else {
            mark.chars().next().map_or(0, char::len_utf8)
        };
        lines.push(&rest[..if keep { at + length } else { at }]);
        rest = &rest[at + length..];
    }
    lines
}

/// The part of a text between two positions, and the position of its start; none where the end is before the start,
/// or the start behind the end of the text.
pub(super) fn window(
    text: &str,
    start: Option<Value>,
    end: Option<Value>,
) -> Result<Option<(&str, usize)>> {
    let count = text.chars().count();
    let place = |value: Option<Value>, default: usize| -> Result<usize> {
        let Some(value) = value.filter(|value| !matches!(value, Value::None)) else {
            return Ok(default);
        };
        let at = index(&value)?;
        let at = if at < 0 {
            at.saturating_add(count as i128).max(0)
        } else {
            at
        };
        Ok(usize::try_from(at).unwrap_or(usize::MAX))
    };
    let from = place(start, 0)?;
    let to = place(end, count)?.min(count);
    if from > to {
        return Ok(None);
    }
    let byte = |at: usize| {
        text.char_indices()
            .nth(at)
            .map_or(text.len(), |(byte, _)| byte)
    };
    Ok(Some((&text[byte(from)..byte(to)], from)))
}
