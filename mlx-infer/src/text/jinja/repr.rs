//! Values as text: `str`, `repr` and `tojson`; numbers as they are read and written; Python's white space.

use std::fmt::Write as _;

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

use super::calls::Args;
use super::limits::{self, Builder, MAX_DEPTH, MAX_WIDTH};
use super::values::{Object, Str, Value, View};
use super::{Fail, Result, operators};

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
    limits::work(1)?;
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
        Value::Float(number) => out.push(&float(*number)),
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
    limits::scan(text.len())?;
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
    limits::scan(text.len())?;
    let special = text.bytes().filter(|c| b"&<>\"'".contains(c)).count();
    limits::text(text.len().saturating_add(special.saturating_mul(4)))?;
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

/// The most digits that `int` reads of a text whose base is not a power of 2 (`sys.int_info.default_max_str_digits`).
const MAX_DIGITS: usize = 4300;
/// No `f64` has more digits than this, before or behind its decimal point.
const EXACT_DIGITS: usize = 1100;

pub(super) fn too_large() -> Fail {
    Fail::error("a number is too large: more than 127 bits are not supported")
}

/// `int(number)`.
///
/// # Errors
/// The number is infinite, NaN, or too large.
pub(super) fn whole(number: f64) -> Result<i128> {
    if number.is_nan() {
        return Err(Fail::error("cannot convert float NaN to integer"));
    }
    if number.is_infinite() {
        return Err(Fail::error("cannot convert float infinity to integer"));
    }
    // 2^127, the first float that is too large.
    if number.abs() >= 170_141_183_460_469_231_731_687_303_715_884_105_728.0 {
        return Err(too_large());
    }
    Ok(number.trunc() as i128)
}

/// The fraction of integers that a float is.
///
/// # Errors
/// The number is infinite or NaN, or one of the integers is too large.
pub(super) fn ratio(number: f64) -> Result<(i128, i128)> {
    let mut below: i128 = 1;
    let mut above = number;
    while above.is_finite() && above.fract() != 0.0 {
        above *= 2.0;
        below = below.checked_mul(2).ok_or_else(too_large)?;
    }
    Ok((whole(above)?, below))
}

/// `int(text, base)`; none if the text is no number.
///
/// # Errors
/// The number is too large.
pub(super) fn parse_int(text: &str, base: u32) -> Result<Option<i128>> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixed = |prefix: &str, radix: u32| {
        let marked = digits
            .get(..2)
            .is_some_and(|found| found.eq_ignore_ascii_case(prefix));
        (marked && (base == radix || base == 0))
            .then(|| (digits[2..].strip_prefix('_').unwrap_or(&digits[2..]), radix))
    };
    let found = prefixed("0x", 16)
        .or_else(|| prefixed("0o", 8))
        .or_else(|| prefixed("0b", 2));
    let (digits, base) = found.unwrap_or((digits, if base == 0 { 10 } else { base }));
    let grouped = !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
    if !grouped || digits.starts_with(['+', '-']) || digits.is_empty() {
        return Ok(None);
    }
    let mut values = Vec::new();
    for c in digits.chars().filter(|c| *c != '_') {
        let digit = c
            .to_digit(base)
            .or_else(|| decimal(c).filter(|digit| *digit < base));
        let Some(digit) = digit else {
            return Ok(None);
        };
        values.push(digit);
    }
    if values.len() > MAX_DIGITS && !base.is_power_of_two() {
        return Ok(None);
    }
    let next = |number: i128, digit: &u32| {
        number
            .checked_mul(base.into())?
            .checked_add((*digit).into())
    };
    let number = values.iter().try_fold(0, next).ok_or_else(too_large)?;
    Ok(Some(if negative { -number } else { number }))
}

/// The value of a decimal digit of a script that is common in texts.
fn decimal(c: char) -> Option<u32> {
    [0x660, 0x6f0, 0x966, 0x9e6, 0xff10]
        .into_iter()
        .find_map(|zero| (c as u32).checked_sub(zero).filter(|digit| *digit < 10))
}

/// `float(text)`.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let grouped = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    let between_digits = text
        .as_bytes()
        .windows(3)
        .all(|three| three[1] != b'_' || (three[0].is_ascii_digit() && three[2].is_ascii_digit()));
    if !grouped || !between_digits {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// `repr` of a float: the shortest digits that read back to the same number, with an exponent from 1e16 up and below
/// 1e-4.
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
    if number == 0.0 || (-4..16).contains(&power) {
        let plain = format!("{number}");
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    format!("{digits}e{}", exponent_of(power))
}

/// An exponent with its sign and at least two digits.
fn exponent_of(power: i32) -> String {
    let sign = if power < 0 { '-' } else { '+' };
    format!("{sign}{:02}", power.abs())
}

/// A number without its sign as `%f`, `%e`, `%g` or `%%` of format specifications write it. `r` is a specification without a
/// kind: as `%g`, with an exponent where no decimal would be left.
pub(super) fn fixed(number: f64, kind: char, precision: usize, alternate: bool) -> String {
    let number = number.abs();
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return "inf".to_owned();
    }
    // The alternate form always has a point.
    let point = |digits: String| match alternate && !digits.contains('.') {
        true => digits + ".",
        false => digits,
    };
    match kind {
        'e' => {
            let (digits, power) = exponential(number, precision);
            format!("{}e{}", point(digits), exponent_of(power))
        }
        'g' | 'r' => {
            let precision = precision.max(1);
            let widest = precision as i32 - i32::from(kind == 'r');
            let (digits, power) = exponential(number, precision - 1);
            let trim = |digits: &str| {
                if alternate || !digits.contains('.') {
                    point(digits.to_owned())
                } else {
                    digits
                        .trim_end_matches('0')
                        .trim_end_matches('.')
                        .to_owned()
                }
            };
            if power < -4 || power >= widest {
                format!("{}e{}", trim(&digits), exponent_of(power))
            } else {
                let decimals = usize::try_from(precision as i32 - 1 - power).unwrap_or(0);
                trim(&plain(number, decimals))
            }
        }
        _ => point(plain(number, precision)),
    }
}

/// A number with this many decimals. Rust formats only a limited number of digits; all digits after
/// them are zeros.
fn plain(number: f64, decimals: usize) -> String {
    let exact = decimals.min(EXACT_DIGITS);
    format!("{number:.exact$}") + &"0".repeat(decimals - exact)
}

/// The digits of a number, with this many decimals, and the power of ten.
fn exponential(number: f64, decimals: usize) -> (String, i32) {
    let exact = decimals.min(EXACT_DIGITS);
    let text = format!("{number:.exact$e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let zeros = "0".repeat(decimals - exact);
    (format!("{digits}{zeros}"), power.parse().unwrap_or(0))
}

/// `round(number, digits)`: ties go to the even neighbour.
pub(super) fn round(number: f64, digits: i128) -> f64 {
    if !number.is_finite() || digits > 320 {
        return number;
    }
    if digits >= 0 {
        let digits = digits as usize;
        return format!("{number:.digits$}").parse().unwrap_or(number);
    }
    if digits < -320 {
        return 0.0_f64.copysign(number);
    }
    let scale = 10_f64.powi((-digits) as i32);
    (number / scale).round_ties_even() * scale
}

/// `round(number, digits)` of a whole number.
pub(super) fn round_int(number: i128, digits: i128) -> i128 {
    let scale = u32::try_from(digits.unsigned_abs())
        .ok()
        .and_then(|digits| 10_i128.checked_pow(digits));
    let Some(scale) = scale.filter(|_| digits < 0) else {
        return if digits < 0 { 0 } else { number };
    };
    let rest = number.rem_euclid(scale);
    let floor = number.saturating_sub(rest);
    let up = rest > scale - rest || (rest == scale - rest && (floor / scale) % 2 != 0);
    if up {
        floor.saturating_add(scale)
    } else {
        floor
    }
}

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
            let width = operators::index(&width)?;
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
    limits::work(1)?;
    match value {
        Value::None => out.push("null"),
        Value::Bool(flag) => out.push(if *flag { "true" } else { "false" }),
        Value::Int(number) => out.push(&number.to_string()),
        Value::Float(number) => out.push(&json_float(*number)),
        Value::Str(text) => string(text, style.ascii, out),
        Value::List(items) | Value::Tuple(items) => {
            block(("[", "]"), items, style, out, depth, |item, out| {
                write(item, style, out, depth + 1)
            })
        }
        Value::Dict(dict) => {
            let mut entries: Vec<&(Value, Value)> = dict.entries().iter().collect();
            if style.sort {
                entries = operators::sort(
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

fn json_float(number: f64) -> String {
    match number {
        number if number.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        number => float(number),
    }
}

fn key_text(key: &Value) -> Result<String> {
    Ok(match key {
        Value::None => "null".to_owned(),
        Value::Bool(flag) => if *flag { "true" } else { "false" }.to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => json_float(*number),
        other => {
            return Err(Fail::error(format!(
                "keys must be str, int, float, bool or None, not {}",
                other.type_name()
            )));
        }
    })
}

fn string(text: &str, ascii: bool, out: &mut Builder) -> Result<()> {
    limits::scan(text.len())?;
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
