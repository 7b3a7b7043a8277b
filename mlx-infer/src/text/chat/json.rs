//! The `tojson` filter, as transformers defines it: Python's `json.dumps` with `ensure_ascii=False`.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::python;

struct Style {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
}

/// `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if args.len() > names.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let arg = |at: usize| -> Result<Value, Error> {
        match args.get(at) {
            Some(value) => Ok(value.clone()),
            None => Ok(kwargs.get::<Option<Value>>(names[at])?.unwrap_or_default()),
        }
    };
    let indent = indent_of(&arg(1)?)?;
    let (item, key) = separators_of(&arg(2)?, indent.is_some())?;
    let style = Style {
        ascii: arg(0)?.is_true(),
        sort: arg(3)?.is_true(),
        indent,
        item,
        key,
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write(value, &style, &mut out, 0)?;
    Ok(out)
}

fn indent_of(value: &Value) -> Result<Option<String>, Error> {
    if value.is_none() || value.is_undefined() {
        return Ok(None);
    }
    if let Some(text) = value.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let width: i64 = value.clone().try_into()?;
    let width = usize::try_from(width).unwrap_or(0);
    if width > 1000 {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("indent is {width}; expected at most 1000"),
        ));
    }
    Ok(Some(" ".repeat(width)))
}

fn separators_of(value: &Value, indented: bool) -> Result<(String, String), Error> {
    if value.is_none() || value.is_undefined() {
        return Ok((
            if indented { "," } else { ", " }.to_owned(),
            ": ".to_owned(),
        ));
    }
    let parts: Vec<Value> = value.try_iter()?.collect();
    match parts.as_slice() {
        [item, key] if item.as_str().is_some() && key.as_str().is_some() => {
            Ok((python::str_of(item)?, python::str_of(key)?))
        }
        _ => Err(Error::new(
            ErrorKind::InvalidOperation,
            "separators: expected two strings",
        )),
    }
}

fn write(value: &Value, style: &Style, out: &mut String, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)?),
        ValueKind::String => string(value.as_str().unwrap_or_default(), style.ascii, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            block(('[', ']'), items.len(), style, out, depth, |at, out| {
                write(&items[at], style, out, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort {
                keys.sort();
            }
            block(('{', '}'), keys.len(), style, out, depth, |at, out| {
                string(&key_text(&keys[at])?, style.ascii, out);
                out.push_str(&style.key);
                write(&value.get_item(&keys[at])?, style, out, depth + 1)
            })?;
        }
        other => return Err(not_json(&other.to_string())),
    }
    Ok(())
}

fn block(
    (open, close): (char, char),
    count: usize,
    style: &Style,
    out: &mut String,
    depth: usize,
    mut each: impl FnMut(usize, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    if depth > 200 {
        return Err(python::too_deep());
    }
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(open);
    for at in 0..count {
        if at > 0 {
            out.push_str(&style.item);
        }
        line(out, depth + 1);
        each(at, out)?;
    }
    if count > 0 {
        line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    Ok(match value.clone().try_into()? {
        number if f64::is_nan(number) => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        number => python::float(number),
    })
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => python::str_of(key),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => number(key),
        other => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("keys must be str, int, float, bool or None, not {other}"),
        )),
    }
}

fn not_json(kind: &str) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("{kind} value is not JSON serializable"),
    )
}

fn string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ascii && !(' '..='~').contains(&c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
