//! Filters and tests where minijinja's differ from jinja2's.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use super::methods::{bounded_format, bounded_width, failed};
use super::{json, python, source};

/// The longest text and list that a template may put together.
const MAX_TEXT_BYTES: usize = 16 << 20;
const MAX_ITEMS: usize = 1 << 20;

/// Replaces what differs, and takes out what is different and never needed, so that it is refused by name.
pub(super) fn install(env: &mut Environment<'static>) {
    env.add_filter(source::BOUNDED, bounded);
    env.add_filter("tojson", json::tojson);
    env.add_filter("string", |value: &Value| python::str_of(value));
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("list", list);
    env.add_filter("items", items);
    env.add_filter("trim", trim);
    env.add_filter("replace", replace);
    env.add_filter("indent", indent);
    env.add_filter("center", center);
    env.add_filter("wordcount", |text: String| {
        text.split(|c| !is_word(c))
            .filter(|word| !word.is_empty())
            .count()
    });
    env.add_filter("truncate", truncate);
    env.add_filter("format", format);
    for name in ["e", "escape", "forceescape"] {
        env.add_filter(name, escape);
    }
    env.add_test("sequence", is_sequence);
    env.add_test("callable", is_callable);
    for name in [
        "attr", "pprint", "random", "lines", "bool", "chain", "zip", "split",
    ] {
        env.remove_filter(name);
    }
    for name in ["startingwith", "endingwith"] {
        env.remove_test(name);
    }
}

fn bounded(value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        if text.len() > MAX_TEXT_BYTES {
            return Err(failed(format!(
                "a text of {} bytes; at most {MAX_TEXT_BYTES} are allowed",
                text.len()
            )));
        }
    } else if matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
    ) {
        bounded_items(&value)?;
        if !python::is_shallow(&value) {
            return Err(python::too_deep());
        }
    }
    Ok(value)
}

fn bounded_items(value: &Value) -> Result<(), Error> {
    match value.len() {
        Some(count) if count > MAX_ITEMS => Err(failed(format!(
            "a list of {count} items; at most {MAX_ITEMS} are allowed"
        ))),
        _ => Ok(()),
    }
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value
        .len()
        .ok_or_else(|| failed(format!("a value of type {} has no length", value.kind())))
}

fn list(state: &mut State, value: &Value) -> Result<Value, Error> {
    bounded_items(value)?;
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if value.is_none() {
        return Err(failed("none is not iterable"));
    }
    minijinja::filters::list(state, value.clone())
}

fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    minijinja::filters::items(value)
}

/// `int(default=0, base=10)`: what cannot be read is the default.
fn int(
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = default
        .or(kwargs.get("default")?)
        .unwrap_or_else(|| Value::from(0));
    let base = base.or(kwargs.get("base")?).unwrap_or(10);
    kwargs.assert_all_used()?;
    if !(2..=36).contains(&base) {
        return Err(failed(format!("base is {base}; expected 2 to 36")));
    }
    Ok(match value.kind() {
        ValueKind::Undefined => return Err(failed("cannot read an undefined value as a number")),
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        ValueKind::Number if value.is_integer() => value.clone(),
        ValueKind::Number => truncated(value.clone().try_into()?).unwrap_or(default),
        ValueKind::String => {
            let text = value
                .as_str()
                .unwrap_or_default()
                .trim_matches(python::is_space);
            let whole = parse_int(text, base).map(Value::from);
            whole
                .or_else(|| truncated(parse_float(text)?))
                .unwrap_or(default)
        }
        _ => default,
    })
}

fn truncated(number: f64) -> Option<Value> {
    (number.is_finite() && number.abs() < 1e38).then(|| Value::from(number.trunc() as i128))
}

fn parse_int(text: &str, base: u32) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        16 => ["0x", "0X"],
        8 => ["0o", "0O"],
        2 => ["0b", "0B"],
        _ => ["", ""],
    };
    let digits = digits
        .strip_prefix(prefix[0])
        .or_else(|| digits.strip_prefix(prefix[1]))
        .unwrap_or(digits);
    let grouped = !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
    if !grouped || digits.starts_with(['+', '-']) {
        return None;
    }
    i128::from_str_radix(&format!("{sign}{}", digits.replace('_', "")), base).ok()
}

fn parse_float(text: &str) -> Option<f64> {
    text.parse().ok()
}

/// `float(default=0.0)`.
fn float(value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = default
        .or(kwargs.get("default")?)
        .unwrap_or_else(|| Value::from(0.0));
    kwargs.assert_all_used()?;
    Ok(match value.kind() {
        ValueKind::Undefined => return Err(failed("cannot read an undefined value as a number")),
        ValueKind::Bool => Value::from(if value.is_true() { 1.0 } else { 0.0 }),
        ValueKind::Number => Value::from(f64::try_from(value.clone())?),
        ValueKind::String => {
            let text = value
                .as_str()
                .unwrap_or_default()
                .trim_matches(python::is_space);
            parse_float(text).map_or(default, Value::from)
        }
        _ => default,
    })
}

/// `trim(chars=none)`.
fn trim(value: &Value, chars: Option<String>, kwargs: Kwargs) -> Result<String, Error> {
    let chars = chars.or(kwargs.get("chars")?);
    kwargs.assert_all_used()?;
    let text = python::str_of(value)?;
    Ok(match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
        None => text.trim_matches(python::is_space).to_owned(),
    })
}

/// `replace(old, new, count=none)`.
fn replace(
    value: &Value,
    old: String,
    new: String,
    count: Option<i64>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let count = count.or(kwargs.get("count")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    let text = python::str_of(value)?;
    let grown = text
        .len()
        .saturating_add(text.matches(&old).count().saturating_mul(new.len()));
    if grown > MAX_TEXT_BYTES.saturating_mul(4) {
        return Err(failed("replace makes a text that is too large"));
    }
    Ok(match usize::try_from(count) {
        Ok(count) => text.replacen(&old, &new, count),
        Err(_) => text.replace(&old, &new),
    })
}

/// `indent(width=4, first=false, blank=false)`; the width may be the text to indent with.
fn indent(text: String, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let names = ["width", "first", "blank"];
    let arg = |at: usize| -> Result<Option<Value>, Error> {
        match args.get(at) {
            Some(value) => Ok(Some(value.clone())),
            None => kwargs.get(names[at]),
        }
    };
    let pad = match arg(0)? {
        None => "    ".to_owned(),
        Some(width) => match width.as_str() {
            Some(pad) => pad.to_owned(),
            None => " ".repeat(bounded_width(width.try_into()?)?),
        },
    };
    let first = arg(1)?.is_some_and(|value| value.is_true());
    let blank = arg(2)?.is_some_and(|value| value.is_true());
    kwargs.assert_all_used()?;
    // jinja2 adds a line end before it splits, so that the last line counts.
    let mut out = String::new();
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            out.push('\n');
        }
        let padded = if at == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if padded {
            out.push_str(&pad);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// `center(width=80)`.
fn center(text: String, width: Option<i64>) -> Result<String, Error> {
    let width = bounded_width(width.unwrap_or(80))?;
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    Ok(format!(
        "{}{text}{}",
        " ".repeat(left),
        " ".repeat(missing - left)
    ))
}

/// `truncate(length=255, killwords=false, end='...', leeway=5)`.
fn truncate(text: String, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let names = ["length", "killwords", "end", "leeway"];
    let arg = |at: usize| -> Result<Option<Value>, Error> {
        match args.get(at) {
            Some(value) => Ok(Some(value.clone())),
            None => kwargs.get(names[at]),
        }
    };
    let length = arg(0)?.map_or(Ok(255), usize::try_from)?;
    let kill = arg(1)?.is_some_and(|value| value.is_true());
    let end = arg(2)?.map_or_else(|| Ok("...".to_owned()), |end| python::str_of(&end))?;
    let leeway = arg(3)?.map_or(Ok(5), usize::try_from)?;
    kwargs.assert_all_used()?;
    let chars: Vec<char> = text.chars().collect();
    let end_length = end.chars().count();
    if length < end_length {
        return Err(failed(format!(
            "expected length >= {end_length}, got {length}"
        )));
    }
    if chars.len() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let kept: String = chars[..length - end_length].iter().collect();
    let kept = if kill {
        kept.as_str()
    } else {
        kept.rsplit_once(' ')
            .map_or(kept.as_str(), |(kept, _)| kept)
    };
    Ok(format!("{kept}{end}"))
}

fn format(state: &mut State, format: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    bounded_format(format.as_str().unwrap_or_default())?;
    minijinja::filters::format(state, format, args)
}

fn escape(value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    Ok(Value::from_safe_string(python::escape(&python::str_of(
        value,
    )?)))
}

/// What has a length and can be indexed: also texts and maps, as in Python.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Map | ValueKind::String
    )
}

/// Functions and macros; and, in jinja2, what is undefined.
fn is_callable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
