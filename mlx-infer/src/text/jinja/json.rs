//! The `tojson` filter, as transformers defines it: Python's `json.dumps` with `ensure_ascii=False`.

use std::fmt::Write as _;

use super::budget::{self, Builder, MAX_DEPTH, MAX_WIDTH};
use super::calls::Args;
use super::value::Value;
use super::{Fail, Result, compare, number};

struct Style {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
}

/// `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(value: &Value, args: &Args) -> Result<Value> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sort] = args.bind("tojson", names, 0)?;
    let is_true = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some(text.to_string()),
        Some(width) => {
            let width = compare::index(&width)?;
            if width > MAX_WIDTH {
                return Err(Fail::error(format!(
                    "tojson: indent is {width}; expected at most {MAX_WIDTH}"
                )));
            }
            Some(" ".repeat(usize::try_from(width).unwrap_or(0)))
        }
    };
    let (item, key) = match separators {
        None | Some(Value::None) if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None | Some(Value::None) => (", ".to_owned(), ": ".to_owned()),
        Some(separators) => match separators.items()?.as_slice() {
            [Value::Str(item), Value::Str(key)] => (item.to_string(), key.to_string()),
            _ => return Err(Fail::error("tojson: separators must be two strings")),
        },
    };
    let style = Style {
        ascii: is_true(ascii),
        sort: is_true(sort),
        indent,
        item,
        key,
    };
    let mut out = Builder::default();
    write(value, &style, &mut out, 0)?;
    Value::text(&out.finish())
}

fn write(value: &Value, style: &Style, out: &mut Builder, depth: u32) -> Result<()> {
    budget::work(1)?;
    match value {
        Value::None => out.push("null"),
        Value::Bool(flag) => out.push(if *flag { "true" } else { "false" }),
        Value::Int(number) => out.push(&number.to_string()),
        Value::Float(number) => out.push(&float(*number)),
        Value::Str(text) => string(text, style.ascii, out),
        Value::List(items) | Value::Tuple(items) => {
            block(("[", "]"), items, style, out, depth, |item, out| {
                write(item, style, out, depth + 1)
            })
        }
        Value::Dict(dict) => {
            let mut entries: Vec<&(Value, Value)> = dict.entries().iter().collect();
            if style.sort {
                entries = compare::sort(
                    entries
                        .into_iter()
                        .map(|entry| (entry.0.clone(), entry))
                        .collect(),
                    false,
                )?;
            }
            block(
                ("{", "}"),
                &entries,
                style,
                out,
                depth,
                |(key, value), out| {
                    match key {
                        Value::Str(text) => string(text, style.ascii, out)?,
                        other => string(&key_text(other)?, style.ascii, out)?,
                    }
                    out.push(&style.key)?;
                    write(value, style, out, depth + 1)
                },
            )
        }
        other => Err(Fail::error(format!(
            "Object of type {} is not JSON serializable",
            other.type_name()
        ))),
    }
}

fn block<T>(
    (open, close): (&str, &str),
    items: &[T],
    style: &Style,
    out: &mut Builder,
    depth: u32,
    mut each: impl FnMut(&T, &mut Builder) -> Result<()>,
) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Fail::Limit(format!(
            "nests values more than {MAX_DEPTH} deep"
        )));
    }
    let line = |out: &mut Builder, depth: u32| match &style.indent {
        Some(indent) => {
            out.push("\n")?;
            out.repeat(indent, depth as usize)
        }
        None => Ok(()),
    };
    out.push(open)?;
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(&style.item)?;
        }
        line(out, depth + 1)?;
        each(item, out)?;
    }
    if !items.is_empty() {
        line(out, depth)?;
    }
    out.push(close)
}

fn float(number: f64) -> String {
    match number {
        number if number.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        number => number::float(number),
    }
}

fn key_text(key: &Value) -> Result<String> {
    Ok(match key {
        Value::None => "null".to_owned(),
        Value::Bool(flag) => if *flag { "true" } else { "false" }.to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => float(*number),
        other => {
            return Err(Fail::error(format!(
                "keys must be str, int, float, bool or None, not {}",
                other.type_name()
            )));
        }
    })
}

fn string(text: &str, ascii: bool, out: &mut Builder) -> Result<()> {
    budget::scan(text.len())?;
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            c if (c as u32) < 0x20 || (ascii && !(' '..='~').contains(&c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(quoted, "\\u{unit:04x}");
                }
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    out.push(&quoted)
}
