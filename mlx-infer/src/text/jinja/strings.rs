//! Methods of `str`.

use super::budget::{self, Builder, MAX_WIDTH};
use super::calls::Args;
use super::compare::index;
use super::cuts::{lines, split, strip, window};
use super::show::{is_printable, is_space};
use super::value::{Str, Value};
use super::{Fail, Result, format};
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// Where `sought` is in a text.
pub(super) fn find(text: &str, sought: &str) -> Result<Option<usize>> {
    budget::copy(text.len() + sought.len())?;
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

/// A width that is not absurd.
pub(super) fn width(value: &Value) -> Result<usize> {
    let width = index(value)?;
    if width > MAX_WIDTH {
        return Err(Fail::error(format!(
            "width is {width}; expected at most {MAX_WIDTH}"
        )));
    }
    Ok(usize::try_from(width).unwrap_or(0))
}

pub(super) fn call(text: &Str, method: &str, args: &Args) -> Result<Value> {
    budget::scan(text.len())?;
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
            budget::copy(separator.map_or(0, |separator| separator.len()))?;
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
            budget::copy(separator.len())?;
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
            budget::copy(affix.len().min(text.len()))?;
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
        "format" => done(format::format(text, args)?),
        "format_map" => {
            let [map] = args.bind(method, ["mapping"], 1)?;
            done(format::format_map(text, &map.unwrap_or(Value::None))?)
        }
        other => Err(Fail::error(format!(
            "the method {other} of a string is not supported"
        ))),
    }
}

fn texts(of: &Str, parts: Vec<&str>) -> Result<Value> {
    budget::items(parts.len())?;
    let part = |part: &str| Str::with(part.into(), of.is_safe()).map(Value::Str);
    Value::list(parts.into_iter().map(part).collect::<Result<_>>()?)
}

/// The text in another case. No character becomes more than three.
pub(super) fn cased(text: &str, how: &str) -> Result<String> {
    budget::scan(text.len())?;
    budget::text(text.len())?;
    Ok(match how {
        "upper" => text.to_uppercase(),
        "lower" => text.to_lowercase(),
        "casefold" => {
            let mut folded = String::with_capacity(text.len());
            text.chars().for_each(|c| fold_case(c, &mut folded));
            folded
        }
        "capitalize" => {
            let mut chars = text.chars();
            let mut out = String::new();
            if let Some(first) = chars.next() {
                title_case(first, &mut out);
            }
            out + &chars.as_str().to_lowercase()
        }
        "swapcase" => {
            let swap = |c: char| -> String {
                if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                }
            };
            text.chars().map(swap).collect()
        }
        _ => title(text),
    })
}

/// Unicode's full case folding: the lower case of the upper case, but for a few characters.
fn fold_case(c: char, out: &mut String) {
    match c {
        'ı' => out.push(c),
        'ẞ' => out.push_str("ss"),
        // Cherokee folds to its upper case, which is older.
        '\u{13a0}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => out.extend(c.to_uppercase()),
        c => out.extend(c.to_uppercase().flat_map(char::to_lowercase)),
    }
}

/// A letter after anything but a letter is upper case, the others lower case.
fn title(text: &str) -> String {
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

/// Whether a text is of a kind: `isalpha` and the like.
pub(super) fn is(text: &str, kind: &str) -> bool {
    let all = |of: fn(char) -> bool| !text.is_empty() && text.chars().all(of);
    let has_case = |c: char| c.is_uppercase() || c.is_lowercase();
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
        "islower" => text.chars().any(has_case) && !text.chars().any(char::is_uppercase),
        "isupper" => text.chars().any(has_case) && !text.chars().any(char::is_lowercase),
        _ => text.chars().any(has_case) && title(text) == text,
    }
}

fn search(text: &str, method: &str, args: &Args) -> Result<Value> {
    let [sought, start, end] = args.bind(method, ["sub", "start", "end"], 1)?;
    let sought = string(method, sought.as_ref())?;
    budget::copy(sought.len())?;
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
            budget::work(1)?;
            continue;
        };
        // The comparison reads as much as the shorter one has.
        budget::copy(affix.len().min(within.len()))?;
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
    budget::copy(text.len() + old.len())?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let found = text.matches(old).take(count).count();
    budget::work(found as u64)?;
    let made = text.len().saturating_add(found.saturating_mul(new.len()));
    budget::text(made.saturating_sub(found.saturating_mul(old.len())))?;
    budget::copy(made)?;
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
