//! Values as Python shows them: `str` and `repr`, and what Python counts as white space.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// Deeper values than a conversation or a tool has are a template gone wild.
const MAX_DEPTH: usize = 200;

/// `str(value)`.
pub(super) fn str_of(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Undefined => Ok(String::new()),
        _ => {
            let mut out = String::new();
            repr(value, &mut out, 0)?;
            Ok(out)
        }
    }
}

/// Appends `repr(value)`.
fn repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number if !value.is_integer() => out.push_str(&float(value.clone().try_into()?)),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter()? {
                out.push_str(if count > 0 { ", " } else { "" });
                repr(&item, out, depth + 1)?;
                count += 1;
            }
            out.push_str(match (tuple, count) {
                (false, _) => "]",
                (true, 1) => ",)",
                (true, _) => ")",
            });
        }
        ValueKind::Map => {
            out.push('{');
            for (count, key) in value.try_iter()?.enumerate() {
                out.push_str(if count > 0 { ", " } else { "" });
                repr(&key, out, depth + 1)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

pub(super) fn too_deep() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("value is nested more than {MAX_DEPTH} deep"),
    )
}

/// Whether a value is nested no deeper than anything honest. Looks at a bounded part of it.
pub(super) fn is_shallow(value: &Value) -> bool {
    fn walk(value: &Value, depth: usize, budget: &mut usize) -> bool {
        if depth > MAX_DEPTH {
            return false;
        }
        if *budget == 0 || !matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
            return true;
        }
        *budget -= 1;
        let is_map = value.kind() == ValueKind::Map;
        let Ok(items) = value.try_iter() else {
            return true;
        };
        // The first few: a value that is nested by wrapping it again and again has few items at each level.
        items.take(8).all(|item| {
            let item = if is_map {
                value.get_item(&item).unwrap_or_default()
            } else {
                item
            };
            walk(&item, depth + 1, budget)
        })
    }
    walk(value, 0, &mut 2000)
}

/// `repr` of a float: the shortest digits that read back, with an exponent from 1e16 up and below 1e-4.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let shortest = format!("{number:e}");
    let Some((digits, exponent)) = shortest.split_once('e') else {
        return shortest;
    };
    let power: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&power) {
        let plain = format!("{number}");
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if power < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", power.abs())
}

/// `repr` of a string: single quotes unless only double ones avoid a backslash.
fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == mark => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let code = c as u32;
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(mark);
}

fn is_printable(c: char) -> bool {
    use GeneralCategory as G;
    c == ' '
        || !matches!(
            c.general_category(),
            G::Control
                | G::Format
                | G::Surrogate
                | G::PrivateUse
                | G::Unassigned
                | G::LineSeparator
                | G::ParagraphSeparator
                | G::SpaceSeparator
        )
}

/// What `str.strip` and `str.split` count as white space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.title`: a letter after anything but a letter is upper case, the others lower case.
pub(super) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            title_case(c, &mut out);
        }
        inside = c.is_uppercase() || c.is_lowercase();
    }
    out
}

/// Title case: the upper case of a ligature has its first letter large, of a digraph its own character.
fn title_case(c: char, out: &mut String) {
    match c {
        'Ǆ' | 'ǅ' | 'ǆ' => out.push('ǅ'),
        'Ǉ' | 'ǈ' | 'ǉ' => out.push('ǈ'),
        'Ǌ' | 'ǋ' | 'ǌ' => out.push('ǋ'),
        'Ǳ' | 'ǲ' | 'ǳ' => out.push('ǲ'),
        c => {
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
    }
}

/// `markupsafe.escape`.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python() {
        // From CPython's repr.
        let table = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e15, "1000000000000000.0"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
        ];
        for (number, expected) in table {
            assert_eq!(float(number), expected);
        }
    }

    #[test]
    fn strings_as_python() {
        let table = [
            ("it's", "\"it's\""),
            ("a'\"b", "'a\\'\"b'"),
            ("\u{200b}é\u{7f}😀", "'\\u200bé\\x7f😀'"),
            ("a\u{a0}b\n", "'a\\xa0b\\n'"),
            ("\u{e000}\u{10ffff}", "'\\ue000\\U0010ffff'"),
        ];
        for (text, expected) in table {
            let mut out = String::new();
            quote(text, &mut out);
            assert_eq!(out, expected);
        }
    }
}
