//! Methods of Python's `str`, `list` and `dict` that templates call.
//!
//! minijinja's own collection (`pycompat`) answers for those that it has right; here are the others.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::python;

/// Wider fields than this are a template gone wild.
const MAX_WIDTH: usize = 100_000;

/// minijinja's callback for a method that a value does not have.
pub(super) fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let found = match value.kind() {
        ValueKind::String => on_string(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq => on_list(value, method, args)?,
        ValueKind::Map => on_dict(value, method, args)?,
        _ => None,
    };
    match found {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn on_string(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<String>,) = from_args(args)?;
            Value::from(strip(text, chars.as_deref(), method))
        }
        "split" | "rsplit" => {
            let (sep, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
            let sep = match sep {
                Some(sep) => Some(sep),
                None => kwargs.get::<Option<Value>>("sep")?,
            };
            let limit = match limit {
                Some(limit) => limit,
                None => kwargs.get::<Option<i64>>("maxsplit")?.unwrap_or(-1),
            };
            kwargs.assert_all_used()?;
            let sep = sep.filter(|sep| !sep.is_none());
            if let Some(sep) = &sep
                && sep.as_str().is_none()
            {
                return Err(failed(format!(
                    "the separator must be str, not {}",
                    sep.kind()
                )));
            }
            let sep = sep.as_ref().and_then(Value::as_str);
            Value::from(split(text, sep, limit, method == "rsplit")?)
        }
        "partition" | "rpartition" => {
            let (sep,): (String,) = from_args(args)?;
            if sep.is_empty() {
                return Err(failed("empty separator"));
            }
            let last = method == "rpartition";
            let at = if last {
                text.rfind(&sep)
            } else {
                text.find(&sep)
            };
            let parts = match at {
                Some(at) => [
                    &text[..at],
                    &text[at..at + sep.len()],
                    &text[at + sep.len()..],
                ],
                None if last => ["", "", text],
                None => [text, "", ""],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "index" | "rindex" => {
            let (sought,): (String,) = from_args(args)?;
            let at = if method == "index" {
                text.find(&sought)
            } else {
                text.rfind(&sought)
            };
            let at = at.ok_or_else(|| failed("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "title" => {
            let () = from_args(args)?;
            Value::from(python::title(text))
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| -> String {
                if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                }
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase().replace('ß', "ss"))
        }
        "isspace" => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.chars().all(python::is_space))
        }
        "istitle" => {
            let () = from_args(args)?;
            let cased = text.chars().any(|c| c.is_uppercase() || c.is_lowercase());
            Value::from(cased && python::title(text) == text)
        }
        "removeprefix" => {
            let (prefix,): (String,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix.as_str()).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (String,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix.as_str()).unwrap_or(text))
        }
        "center" | "ljust" | "rjust" => {
            let (width, fill): (i64, Option<String>) = from_args(args)?;
            Value::from(justify(
                text,
                width,
                fill.as_deref().unwrap_or(" "),
                method,
            )?)
        }
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            let (sign, digits) = match text.chars().next() {
                Some('+' | '-') => text.split_at(1),
                _ => ("", text),
            };
            let digits = justify(digits, width - sign.len() as i64, "0", "rjust")?;
            Value::from(format!("{sign}{digits}"))
        }
        "expandtabs" => {
            let (size,): (Option<i64>,) = from_args(args)?;
            Value::from(expand_tabs(text, bounded_width(size.unwrap_or(8))?))
        }
        "format" => {
            bounded_format(text)?;
            return Ok(None);
        }
        _ => return Ok(None),
    }))
}

fn on_list(list: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "index" => {
            let (sought,): (Value,) = from_args(args)?;
            let at = list.try_iter()?.position(|item| item == sought);
            at.map(|at| Some(Value::from(at)))
                .ok_or_else(|| failed("value is not in list"))
        }
        "count" => {
            let (sought,): (Value,) = from_args(args)?;
            Ok(Some(Value::from(
                list.try_iter()?.filter(|item| *item == sought).count(),
            )))
        }
        "copy" => Ok(Some(list.clone())),
        "append" | "clear" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort" => {
            Err(immutable(method))
        }
        _ => Ok(None),
    }
}

fn on_dict(dict: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" => {
            let () = from_args(args)?;
            Ok(Some(dict.clone()))
        }
        "get" => {
            let (key, rest): (Value, Rest<Value>) = from_args(args)?;
            let found = dict.get_item(&key)?;
            let default = rest.first().cloned().unwrap_or_else(|| Value::from(()));
            Ok(Some(if found.is_undefined() { default } else { found }))
        }
        "clear" | "pop" | "popitem" | "setdefault" | "update" => Err(immutable(method)),
        _ => Ok(None),
    }
}

fn strip(text: &str, chars: Option<&str>, method: &str) -> String {
    let matches = |c: char| chars.map_or_else(|| python::is_space(c), |chars| chars.contains(c));
    let text = if method == "rstrip" {
        text
    } else {
        text.trim_start_matches(matches)
    };
    if method == "lstrip" {
        text
    } else {
        text.trim_end_matches(matches)
    }
    .to_owned()
}

fn split(text: &str, sep: Option<&str>, limit: i64, from_end: bool) -> Result<Vec<String>, Error> {
    // Python counts splits, Rust pieces; a negative count is no limit.
    let pieces = usize::try_from(limit).map_or(usize::MAX, |limit| limit.saturating_add(1));
    let own = |parts: Vec<&str>| parts.into_iter().map(str::to_owned).collect::<Vec<_>>();
    match sep {
        Some("") => Err(failed("empty separator")),
        Some(sep) if from_end => {
            let mut parts: Vec<&str> = text.rsplitn(pieces, sep).collect();
            parts.reverse();
            Ok(own(parts))
        }
        Some(sep) => Ok(own(text.splitn(pieces, sep).collect())),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_matches(python::is_space);
            while !rest.is_empty() {
                let at = if from_end {
                    rest.rfind(python::is_space)
                        .map(|at| at + rest[at..].chars().next().map_or(0, char::len_utf8))
                } else {
                    rest.find(python::is_space)
                };
                let at = at.filter(|_| parts.len() + 1 < pieces);
                let (part, left) = match (at, from_end) {
                    (None, _) => (rest, ""),
                    (Some(at), true) => {
                        (&rest[at..], rest[..at].trim_end_matches(python::is_space))
                    }
                    (Some(at), false) => {
                        (&rest[..at], rest[at..].trim_start_matches(python::is_space))
                    }
                };
                parts.push(part);
                rest = left;
            }
            // With a limit, Python leaves the white space at the far end of the last piece.
            if parts.len() == pieces
                && let Some(last) = parts.last_mut()
            {
                let kept = last.as_ptr() as usize - text.as_ptr() as usize;
                *last = if from_end {
                    &text[..kept + last.len()]
                } else {
                    &text[kept..]
                };
            }
            if from_end {
                parts.reverse();
            }
            Ok(own(parts))
        }
    }
}

fn justify(text: &str, width: i64, fill: &str, method: &str) -> Result<String, Error> {
    let width = bounded_width(width)?;
    let mut chars = fill.chars();
    let (Some(fill), None) = (chars.next(), chars.next()) else {
        return Err(failed(
            "the fill character must be exactly one character long",
        ));
    };
    let missing = width.saturating_sub(text.chars().count());
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // CPython's rule for an odd number of fill characters.
        _ => missing / 2 + (missing & width & 1),
    };
    let pad = |count: usize| fill.to_string().repeat(count);
    Ok(format!("{}{text}{}", pad(left), pad(missing - left)))
}

fn expand_tabs(text: &str, size: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' => {
                let count = if size == 0 { 0 } else { size - column % size };
                out.push_str(&" ".repeat(count));
                column += count;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    out
}

pub(super) fn bounded_width(width: i64) -> Result<usize, Error> {
    let width = usize::try_from(width).unwrap_or(0);
    if width > MAX_WIDTH {
        return Err(failed(format!(
            "width is {width}; expected at most {MAX_WIDTH}"
        )));
    }
    Ok(width)
}

/// Refuses a format string that asks for a field of absurd width.
pub(super) fn bounded_format(format: &str) -> Result<(), Error> {
    let mut digits = 0;
    for c in format.chars() {
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > 5 {
            return Err(failed("format string has a number of more than 5 digits"));
        }
    }
    Ok(())
}

fn immutable(method: &str) -> Error {
    failed(format!("{method} changes a value; templates may not"))
}

pub(super) fn failed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}
