//! Methods of values.

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

use super::calls::Args;
use super::interpreter::Machine;
use super::limits::{self, Builder, MAX_WIDTH};
use super::operators::{self, Number, index};
use super::repr::{is_printable, is_space, ratio};
use super::values::{Dict, Object, Str, Value, View};
use super::{Fail, Result, formats};

pub(super) fn call(
    _: &mut Machine<'_>,
    of: &Value,
    method: &'static str,
    args: &Args,
) -> Result<Value> {
    match of {
        Value::Str(text) => on_str(text, method, args),
        Value::List(items) | Value::Tuple(items) => on_items(items, of, method, args),
        Value::Range(_) => {
            let items = of.items()?;
            on_items(&items, of, method, args)
        }
        Value::Dict(dict) => match method {
            "keys" | "values" | "items" => {
                args.none(method)?;
                let view = match method {
                    "keys" => View::Keys,
                    "values" => View::Values,
                    _ => View::Items,
                };
                Ok(Value::View(view, std::rc::Rc::clone(dict)))
            }
            "copy" => args.none(method).map(|()| of.clone()),
            "get" => {
                let [key, default] = args.bind(method, ["key", "default"], 1)?;
                if !args.named.is_empty() {
                    return Err(Fail::error("get has no named arguments"));
                }
                let found = dict.get(&key.unwrap_or(Value::None))?;
                Ok(found.cloned().or(default).unwrap_or(Value::None))
            }
            _ => from_keys(args),
        },
        Value::Int(_) | Value::Bool(_) => {
            args.none(method)?;
            let number = index(of)?;
            Ok(match method {
                "bit_length" => Value::Int((128 - number.unsigned_abs().leading_zeros()).into()),
                "bit_count" => Value::Int(number.unsigned_abs().count_ones().into()),
                "is_integer" => Value::Bool(true),
                "as_integer_ratio" => {
                    return Value::tuple(vec![Value::Int(number), Value::Int(1)]);
                }
                _ => Value::Int(number),
            })
        }
        Value::Float(number) => {
            args.none(method)?;
            Ok(match method {
                "is_integer" => Value::Bool(number.is_finite() && number.fract() == 0.0),
                "as_integer_ratio" => {
                    let (above, below) = ratio(*number)?;
                    return Value::tuple(vec![Value::Int(above), Value::Int(below)]);
                }
                _ => of.clone(),
            })
        }
        Value::Object(object) => match &**object {
            Object::Loop(state) if method == "cycle" => {
                if !args.named.is_empty() {
                    return Err(Fail::error("cycle has no named arguments"));
                }
                let count = args.positional.len();
                match state.index.get().checked_rem(count) {
                    Some(at) => Ok(args.positional[at].clone()),
                    None => Err(Fail::error("no items for cycling given")),
                }
            }
            Object::Loop(state) => {
                let now = Value::tuple(args.positional.clone())?;
                let before = state.changed.replace(Some(now.clone()));
                let same = match before {
                    Some(before) => operators::equal(&before, &now)?,
                    None => false,
                };
                Ok(Value::Bool(!same))
            }
            Object::Cycler(items, next) => {
                args.none(method)?;
                let at = next.get();
                next.set(if method == "reset" {
                    0
                } else {
                    (at + 1) % items.len()
                });
                Ok(if method == "reset" {
                    Value::None
                } else {
                    items[at].clone()
                })
            }
            _ => from_keys(args),
        },
        other => Err(Fail::error(format!(
            "{} has no method {method}",
            other.type_name()
        ))),
    }
}

fn on_items(items: &[Value], of: &Value, method: &str, args: &Args) -> Result<Value> {
    if method == "copy" {
        return args.none(method).map(|()| of.clone());
    }
    let [sought, start, stop] = args.bind(method, ["value", "start", "stop"], 1)?;
    let sought = sought.unwrap_or(Value::None);
    let place = |bound: Option<Value>, default: usize| -> Result<usize> {
        let Some(bound) = bound else {
            return Ok(default);
        };
        let bound = index(&bound)?;
        let bound = if bound < 0 {
            bound + items.len() as i128
        } else {
            bound
        };
        Ok(usize::try_from(bound.max(0))
            .unwrap_or(usize::MAX)
            .min(items.len()))
    };
    let (from, to) = (place(start, 0)?, place(stop, items.len())?);
    let mut count = 0;
    for (at, item) in items.iter().enumerate().take(to).skip(from) {
        if operators::equal(item, &sought)? {
            if method == "index" {
                return Ok(Value::Int(at as i128));
            }
            count += 1;
        }
    }
    if method == "index" {
        return Err(Fail::error("the value is not in the list"));
    }
    Ok(Value::Int(count))
}

/// `dict.fromkeys(keys, value)`.
fn from_keys(args: &Args) -> Result<Value> {
    let [keys, value] = args.bind("fromkeys", ["iterable", "value"], 1)?;
    let value = value.unwrap_or(Value::None);
    let keys = keys.unwrap_or(Value::None).items()?;
    limits::items(keys.len())?;
    Dict::new(keys.into_iter().map(|key| (key, value.clone()))).map(Value::Dict)
}

/// A number, or an error that names the filter.
pub(super) fn number(filter: &str, value: &Value) -> Result<Number> {
    match value {
        Value::Undefined(what) => Err(Fail::error(&**what)),
        other => Number::of(other).ok_or_else(|| {
            Fail::error(format!(
                "{filter}: expected a number, found {}",
                other.type_name()
            ))
        }),
    }
}

/// Where `sought` is in a text.
pub(super) fn find(text: &str, sought: &str) -> Result<Option<usize>> {
    limits::copy(text.len() + sought.len())?;
    Ok(text.find(sought))
}

/// An argument that must be a string.
pub(super) fn string<'a>(function: &str, value: Option<&'a Value>) -> Result<&'a Str> {
    match value {
        Some(Value::Str(text)) => Ok(text),
        Some(Value::Undefined(what)) => Err(Fail::error(&**what)),
        Some(other) => Err(Fail::error(format!(
            "{function}: expected a string, found {}",
            other.type_name()
        ))),
        None => Err(Fail::error(format!("{function} needs a string"))),
    }
}

/// A width that is at most `MAX_WIDTH`.
pub(super) fn width(value: &Value) -> Result<usize> {
    let width = index(value)?;
    if width > MAX_WIDTH {
        return Err(Fail::error(format!(
            "width is {width}; expected at most {MAX_WIDTH}"
        )));
    }
    Ok(usize::try_from(width).unwrap_or(0))
}

fn on_str(text: &Str, method: &str, args: &Args) -> Result<Value> {
    limits::scan(text.len())?;
    let done = |made: String| Str::with(made.into(), text.is_safe()).map(Value::Str);
    match method {
        "capitalize" | "casefold" | "lower" | "swapcase" | "title" | "upper" => {
            args.none(method)?;
            done(cased(text, method)?)
        }
        "isalnum" | "isalpha" | "isascii" | "isdecimal" | "isdigit" | "isidentifier"
        | "islower" | "isnumeric" | "isprintable" | "isspace" | "istitle" | "isupper" => {
            args.none(method)?;
            Ok(Value::Bool(is(text, method)))
        }
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(method, ["chars"], 0)?;
            let chars = chars.filter(|chars| !matches!(chars, Value::None));
            let chars = chars
                .as_ref()
                .map(|chars| string(method, Some(chars)))
                .transpose()?;
            done(strip(text, chars.map(|chars| &**chars), method)?)
        }
        "split" | "rsplit" => {
            let [separator, limit] = args.bind(method, ["sep", "maxsplit"], 0)?;
            let separator = separator.filter(|separator| !matches!(separator, Value::None));
            let separator = separator
                .as_ref()
                .map(|it| string(method, Some(it)))
                .transpose()?;
            let limit = limit.as_ref().map_or(Ok(-1), index)?;
            limits::copy(separator.map_or(0, |separator| separator.len()))?;
            let parts = split(text, separator.map(|it| &**it), limit, method == "rsplit")?;
            texts(text, parts)
        }
        "splitlines" => {
            let [keep] = args.bind(method, ["keepends"], 0)?;
            texts(text, lines(text, keep.is_some_and(|keep| keep.is_true())))
        }
        "partition" | "rpartition" => {
            let [separator] = args.bind(method, ["sep"], 1)?;
            let separator = string(method, separator.as_ref())?;
            limits::copy(separator.len())?;
            if separator.is_empty() {
                return Err(Fail::error("empty separator"));
            }
            let last = method == "rpartition";
            let at = if last {
                text.rfind(&**separator)
            } else {
                text.find(&**separator)
            };
            let parts = match at {
                Some(at) => [&text[..at], &**separator, &text[at + separator.len()..]],
                None if last => ["", "", text],
                None => [text, "", ""],
            };
            Value::tuple(parts.into_iter().map(Value::text).collect::<Result<_>>()?)
        }
        "count" | "find" | "rfind" | "index" | "rindex" => search(text, method, args),
        "startswith" | "endswith" => affix(text, method, args),
        "removeprefix" | "removesuffix" => {
            let [affix] = args.bind(method, ["affix"], 1)?;
            let affix = string(method, affix.as_ref())?;
            limits::copy(affix.len().min(text.len()))?;
            let rest = if method == "removeprefix" {
                text.strip_prefix(&**affix)
            } else {
                text.strip_suffix(&**affix)
            };
            done(rest.unwrap_or(text).to_owned())
        }
        "replace" => {
            let [old, new, count] = args.bind(method, ["old", "new", "count"], 2)?;
            let count = count.as_ref().map_or(Ok(-1), index)?;
            let (old, new) = (string(method, old.as_ref())?, string(method, new.as_ref())?);
            done(replace(text, old, new, count)?)
        }
        "center" | "ljust" | "rjust" => {
            let [to, fill] = args.bind(method, ["width", "fillchar"], 1)?;
            let fill = match &fill {
                Some(fill) => string(method, Some(fill))?.to_string(),
                None => " ".to_owned(),
            };
            if fill.chars().count() != 1 {
                return Err(Fail::error(
                    "the fill character must be exactly one character long",
                ));
            }
            done(justify(
                text,
                width(&to.unwrap_or(Value::None))?,
                &fill,
                method,
            )?)
        }
        "zfill" => {
            let [to] = args.bind(method, ["width"], 1)?;
            let (sign, digits) = match text.chars().next() {
                Some('+' | '-') => text.split_at(1),
                _ => ("", &**text),
            };
            let to = width(&to.unwrap_or(Value::None))?.saturating_sub(sign.len());
            done(format!("{sign}{}", justify(digits, to, "0", "rjust")?))
        }
        "expandtabs" => {
            let [size] = args.bind(method, ["tabsize"], 0)?;
            done(expand_tabs(text, size.as_ref().map_or(Ok(8), width)?)?)
        }
        "join" => {
            let [items] = args.bind(method, ["iterable"], 1)?;
            let mut out = Builder::default();
            for (at, item) in items.unwrap_or(Value::None).items()?.iter().enumerate() {
                out.push(if at > 0 { text } else { "" })?;
                out.push(string("join", Some(item))?)?;
            }
            done(out.finish())
        }
        "format" => done(formats::format(text, args)?),
        "format_map" => {
            let [map] = args.bind(method, ["mapping"], 1)?;
            done(formats::format_map(text, &map.unwrap_or(Value::None))?)
        }
        other => Err(Fail::error(format!(
            "the method {other} of a string is not supported"
        ))),
    }
}

fn texts(of: &Str, parts: Vec<&str>) -> Result<Value> {
    limits::items(parts.len())?;
    let part = |part: &str| Str::with(part.into(), of.is_safe()).map(Value::Str);
    Value::list(parts.into_iter().map(part).collect::<Result<_>>()?)
}

/// The text in another case. A character becomes at most three.
pub(super) fn cased(text: &str, how: &str) -> Result<String> {
    limits::scan(text.len())?;
    limits::text(text.len())?;
    Ok(match how {
        "upper" => text.to_uppercase(),
        "lower" => text.to_lowercase(),
        "casefold" => {
            let mut folded = String::with_capacity(text.len());
            text.chars().for_each(|c| fold_case(c, &mut folded));
            folded
        }
        "capitalize" => recased(text, |first, c, lower, out| match first {
            true => title_case(c, out),
            false => out.push_str(lower),
        }),
        "swapcase" => recased(text, |_, c, lower, out| {
            if c.is_uppercase() {
                out.push_str(lower);
            } else if c.is_lowercase() {
                out.extend(c.to_uppercase());
            } else {
                out.push(c);
            }
        }),
        _ => title(text),
    })
}

/// Unicode's full case folding: the lower case of the upper case, but for a few characters.
fn fold_case(c: char, out: &mut String) {
    match c {
        'ı' => out.push(c),
        'ẞ' => out.push_str("ss"),
        // Cherokee folds to upper case, which is in Unicode since an earlier version.
        '\u{13a0}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => out.extend(c.to_uppercase()),
        c => out.extend(c.to_uppercase().flat_map(char::to_lowercase)),
    }
}

/// A text made of each character: whether it is the first, the character, and its lower case, which for `Σ` depends on
/// the letters around it.
fn recased(text: &str, mut make: impl FnMut(bool, char, &str, &mut String)) -> String {
    let lower = text.to_lowercase();
    let mut rest = lower.as_str();
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        // The two lower-case forms σ and ς have the same length.
        let length = c.to_lowercase().map(char::len_utf8).sum();
        let (own, after) = rest.split_at(length);
        make(at == 0, c, own, &mut out);
        rest = after;
    }
    out
}

/// A letter that follows no letter is upper case, all others are lower case.
fn title(text: &str) -> String {
    let mut inside = false;
    recased(text, |_, c, lower, out| {
        if inside {
            out.push_str(lower);
        } else {
            title_case(c, out);
        }
        inside = has_case(c);
    })
}

fn has_case(c: char) -> bool {
    c.is_uppercase() || c.is_lowercase() || is_title_case(c)
}

/// Whether a character is a digraph or ligature whose first letter is upper case.
fn is_title_case(c: char) -> bool {
    c.general_category() == GeneralCategory::TitlecaseLetter
}

/// Title case: of a ligature the upper case with only the first letter large, of a digraph its own
/// title-case character.
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

/// Whether a text is of a kind: `isalpha` and the like.
pub(super) fn is(text: &str, kind: &str) -> bool {
    let all = |of: fn(char) -> bool| !text.is_empty() && text.chars().all(of);
    let any = |of: fn(char) -> bool| text.chars().any(of);
    match kind {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdecimal" => all(|c| c.general_category() == GeneralCategory::DecimalNumber),
        "isdigit" => all(|c| {
            c.general_category() == GeneralCategory::DecimalNumber
                || matches!(c, '²' | '³' | '¹' | '\u{2070}'..='\u{2089}')
        }),
        "isnumeric" => all(char::is_numeric),
        "isidentifier" => {
            let rest = |c: char| c == '_' || c.is_alphanumeric();
            text.chars()
                .next()
                .is_some_and(|c| c == '_' || c.is_alphabetic())
                && text.chars().all(rest)
        }
        "isprintable" => text.chars().all(is_printable),
        "isspace" => all(is_space),
        "islower" => any(has_case) && !any(char::is_uppercase) && !any(is_title_case),
        "isupper" => any(has_case) && !any(char::is_lowercase) && !any(is_title_case),
        _ => any(has_case) && title(text) == text,
    }
}

fn search(text: &str, method: &str, args: &Args) -> Result<Value> {
    let [sought, start, end] = args.bind(method, ["sub", "start", "end"], 1)?;
    let sought = string(method, sought.as_ref())?;
    limits::copy(sought.len())?;
    let window = window(text, start, end)?;
    if method == "count" {
        let count = window.map_or(0, |(within, _)| within.matches(&**sought).count());
        return Ok(Value::Int(count as i128));
    }
    let found = window.and_then(|(within, from)| {
        let at = if method.starts_with('r') {
            within.rfind(&**sought)
        } else {
            within.find(&**sought)
        };
        at.map(|at| from + within[..at].chars().count())
    });
    match found {
        Some(at) => Ok(Value::Int(at as i128)),
        None if method.ends_with("find") => Ok(Value::Int(-1)),
        None => Err(Fail::error("substring not found")),
    }
}

fn affix(text: &str, method: &str, args: &Args) -> Result<Value> {
    let [affixes, start, end] = args.bind(method, ["prefix", "start", "end"], 1)?;
    let window = window(text, start, end)?;
    let affixes = match affixes {
        Some(Value::Tuple(items)) => items.to_vec(),
        other => vec![other.unwrap_or(Value::None)],
    };
    for affix in &affixes {
        let affix = string(method, Some(affix))?;
        let Some((within, _)) = window else {
            limits::work(1)?;
            continue;
        };
        // The comparison reads as many bytes as the shorter text has.
        limits::copy(affix.len().min(within.len()))?;
        let found = if method == "startswith" {
            within.starts_with(&**affix)
        } else {
            within.ends_with(&**affix)
        };
        if found {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

pub(super) fn replace(text: &str, old: &str, new: &str, count: i128) -> Result<String> {
    limits::copy(text.len() + old.len())?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let found = text.matches(old).take(count).count();
    limits::work(found as u64)?;
    let made = text.len().saturating_add(found.saturating_mul(new.len()));
    limits::text(made.saturating_sub(found.saturating_mul(old.len())))?;
    limits::copy(made)?;
    Ok(text.replacen(old, new, count))
}

pub(super) fn justify(text: &str, width: usize, fill: &str, method: &str) -> Result<String> {
    let missing = width.saturating_sub(text.chars().count());
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // CPython's rule for an odd number of fill characters.
        _ => missing / 2 + (missing & width & 1),
    };
    let mut out = Builder::default();
    out.repeat(fill, left)?;
    out.push(text)?;
    out.repeat(fill, missing - left)?;
    Ok(out.finish())
}

fn expand_tabs(text: &str, size: usize) -> Result<String> {
    let mut out = Builder::default();
    let mut column = 0;
    for piece in text.split_inclusive(['\t', '\n', '\r']) {
        let body = piece.strip_suffix('\t').unwrap_or(piece);
        out.push(body)?;
        column += body.chars().count();
        if body.len() < piece.len() {
            let count = if size == 0 { 0 } else { size - column % size };
            out.repeat(" ", count)?;
            column += count;
        } else if piece.ends_with(['\n', '\r']) {
            column = 0;
        }
    }
    Ok(out.finish())
}

pub(super) fn strip(text: &str, chars: Option<&str>, method: &str) -> Result<String> {
    if let Some(chars) = chars {
        limits::work((text.len() as u64).saturating_mul(chars.len() as u64) / 8)?;
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
    // Python counts splits, Rust counts pieces. A negative count means no limit.
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
