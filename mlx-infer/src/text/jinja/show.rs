//! Values as text in Python: `str` and `repr`; and Python's white space.

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

use super::budget::{self, Builder, MAX_DEPTH};
use super::value::{Object, Str, Value, View};
use super::{Fail, Result, number};

/// `str(value)`.
pub(super) fn str_of(value: &Value) -> Result<Str> {
    match value {
        Value::Str(text) => Ok(text.clone()),
        Value::Undefined(_) => Str::new(""),
        other => {
            let mut out = Builder::default();
            repr(other, &mut out, 0)?;
            Str::new(out.finish())
        }
    }
}

/// Appends `repr(value)`.
pub(super) fn repr(value: &Value, out: &mut Builder, depth: u32) -> Result<()> {
    budget::work(1)?;
    if depth > MAX_DEPTH {
        return Err(Fail::Limit(format!(
            "nests values more than {MAX_DEPTH} deep"
        )));
    }
    match value {
        Value::Undefined(_) => out.push("Undefined"),
        Value::None => out.push("None"),
        Value::Bool(flag) => out.push(if *flag { "True" } else { "False" }),
        Value::Int(number) => out.push(&number.to_string()),
        Value::Float(number) => out.push(&number::float(*number)),
        Value::Str(text) if text.is_safe() => {
            out.push("Markup(")?;
            quote(text, out)?;
            out.push(")")
        }
        Value::Str(text) => quote(text, out),
        Value::List(items) => series(items, "[", "]", out, depth),
        Value::Tuple(items) if items.len() == 1 => series(items, "(", ",)", out, depth),
        Value::Tuple(items) => series(items, "(", ")", out, depth),
        Value::Dict(dict) => pairs(
            dict.entries().iter().map(|(key, value)| (key, value)),
            out,
            depth,
        ),
        Value::Range(range) if range.step == 1 => {
            out.push(&format!("range({}, {})", range.start, range.stop))
        }
        Value::Range(range) => out.push(&format!(
            "range({}, {}, {})",
            range.start, range.stop, range.step
        )),
        Value::View(view, _) => {
            out.push(match view {
                View::Keys => "dict_keys(",
                View::Values => "dict_values(",
                View::Items => "dict_items(",
            })?;
            series(&value.items()?, "[", "]", out, depth + 1)?;
            out.push(")")
        }
        Value::Iter(_) => out.push("<generator object>"),
        Value::Object(object) => match &**object {
            Object::Namespace(attributes) => {
                out.push("<Namespace ")?;
                let attributes = attributes.borrow().clone();
                let attributes: Vec<(Value, Value)> = attributes
                    .into_iter()
                    .map(|(name, value)| (Value::Str(name), value))
                    .collect();
                pairs(
                    attributes.iter().map(|(key, value)| (key, value)),
                    out,
                    depth,
                )?;
                out.push(">")
            }
            Object::Loop(state) => out.push(&format!(
                "<LoopContext {}/{}>",
                state.index.get() + 1,
                state.items.len()
            )),
            Object::Macro(bound) => match &bound.name {
                Some(name) => {
                    out.push("<Macro ")?;
                    quote(name, out)?;
                    out.push(">")
                }
                None => out.push("<Macro anonymous>"),
            },
            Object::Function(_) => out.push("<function>"),
            Object::Method(_, name) => out.push(&format!("<built-in method {name}>")),
            Object::Cycler(..) => out.push("<Cycler>"),
            Object::Joiner(..) => out.push("<Joiner>"),
        },
    }
}

fn series(items: &[Value], open: &str, close: &str, out: &mut Builder, depth: u32) -> Result<()> {
    out.push(open)?;
    for (at, item) in items.iter().enumerate() {
        out.push(if at > 0 { ", " } else { "" })?;
        repr(item, out, depth + 1)?;
    }
    out.push(close)
}

fn pairs<'a>(
    pairs: impl Iterator<Item = (&'a Value, &'a Value)>,
    out: &mut Builder,
    depth: u32,
) -> Result<()> {
    out.push("{")?;
    for (at, (key, value)) in pairs.enumerate() {
        out.push(if at > 0 { ", " } else { "" })?;
        repr(key, out, depth + 1)?;
        out.push(": ")?;
        repr(value, out, depth + 1)?;
    }
    out.push("}")
}

/// `repr` of a string: single quotes unless only double ones avoid a backslash.
pub(super) fn quote(text: &str, out: &mut Builder) -> Result<()> {
    budget::scan(text.len())?;
    let mark = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut quoted = String::new();
    for c in text.chars() {
        match c {
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\\' => quoted.push_str("\\\\"),
            c if c == mark => {
                quoted.push('\\');
                quoted.push(c);
            }
            c if is_printable(c) => quoted.push(c),
            c => quoted.push_str(&escape_code(c)),
        }
    }
    out.push_char(mark)?;
    out.push(&quoted)?;
    out.push_char(mark)
}

/// A character by its number, as Python writes it.
pub(super) fn escape_code(c: char) -> String {
    match c as u32 {
        code @ 0..=0xff => format!("\\x{code:02x}"),
        code @ 0x100..=0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

pub(super) fn is_printable(c: char) -> bool {
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

/// The characters that `str.strip` and `str.split` regard as white space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `markupsafe.escape`.
pub(super) fn escape(text: &str) -> Result<String> {
    budget::scan(text.len())?;
    let special = text.bytes().filter(|c| b"&<>\"'".contains(c)).count();
    budget::text(text.len().saturating_add(special.saturating_mul(4)))?;
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
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let mut out = Builder::default();
            quote(text, &mut out).unwrap();
            assert_eq!(out.finish(), expected);
        }
    }
}
