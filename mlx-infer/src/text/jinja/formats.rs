//! Formats: `str.format` with its format specifications, and `format % values`.

use super::attributes::{attribute, item};
use super::calls::Args;
use super::limits::{self, Builder, MAX_WIDTH};
use super::operators::{Number, index};
use super::values::{Str, Value};
use super::{Fail, Result, repr};

pub(super) fn format(text: &str, args: &Args) -> Result<String> {
    let named = |name: &str| {
        args.named
            .iter()
            .find(|(found, _)| &**found == name)
            .map(|(_, value)| value.clone())
    };
    let mut fields = Fields {
        positional: &args.positional,
        named: &named,
        next: Some(0),
    };
    let mut out = Builder::default();
    fields.write(text, &mut out, 0)?;
    Ok(out.finish())
}

pub(super) fn format_map(text: &str, map: &Value) -> Result<String> {
    let Value::Dict(dict) = map else {
        return Err(Fail::error("format_map: expected a dict"));
    };
    let named = |name: &str| dict.get_text(name).cloned();
    let mut fields = Fields {
        positional: &[],
        named: &named,
        next: Some(0),
    };
    let mut out = Builder::default();
    fields.write(text, &mut out, 0)?;
    Ok(out.finish())
}

struct Fields<'a> {
    positional: &'a [Value],
    named: &'a dyn Fn(&str) -> Option<Value>,
    /// The number of the next field without a number; none after a field with a number.
    next: Option<usize>,
}

impl Fields<'_> {
    fn write(&mut self, text: &str, out: &mut Builder, depth: u32) -> Result<()> {
        if depth > 2 {
            return Err(Fail::error("format: replacement fields nest too deep"));
        }
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            limits::copy(at)?;
            out.push(&rest[..at])?;
            let mark = &rest[at..];
            if mark.starts_with("{{") || mark.starts_with("}}") {
                out.push(&mark[..1])?;
                rest = &mark[2..];
            } else if mark.starts_with('}') {
                return Err(Fail::error("format: single '}' in the format string"));
            } else {
                let end = field_end(mark)?;
                self.field(&mark[1..end], out, depth)?;
                rest = &mark[end + 1..];
            }
        }
        out.push(rest)
    }

    fn field(&mut self, field: &str, out: &mut Builder, depth: u32) -> Result<()> {
        limits::scan(field.len())?;
        let at = field_part(field);
        let (name, rest) = field.split_at(at);
        let (conversion, spec) = match rest.strip_prefix('!') {
            Some(rest) => match rest.char_indices().nth(1) {
                Some((at, ':')) => (rest.chars().next(), &rest[at + 1..]),
                Some(_) => return Err(Fail::error("format: expected ':' after the conversion")),
                None => (rest.chars().next(), ""),
            },
            None => (None, rest.strip_prefix(':').unwrap_or(rest)),
        };
        let mut value = self.value(name)?;
        value = match conversion {
            None => value,
            Some('s') => Value::Str(repr::str_of(&value)?),
            Some('r' | 'a') => {
                let mut shown = Builder::default();
                repr::repr(&value, &mut shown, 0)?;
                Value::text(&shown.finish())?
            }
            Some(other) => {
                return Err(Fail::error(format!("format: unknown conversion {other:?}")));
            }
        };
        let mut inner = Builder::default();
        self.write(spec, &mut inner, depth + 1)?;
        formatted(&value, &inner.finish(), out)
    }

    fn value(&mut self, name: &str) -> Result<Value> {
        let at = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(at);
        let place = if first.is_empty() {
            let place = self
                .next
                .ok_or_else(|| Fail::error("format: numbered and unnumbered fields"))?;
            self.next = Some(place + 1);
            Some(place)
        } else {
            let place = first.parse().ok();
            if place.is_some() {
                if self.next.is_some_and(|next| next > 0) {
                    return Err(Fail::error("format: numbered and unnumbered fields"));
                }
                self.next = None;
            }
            place
        };
        let found = match place {
            Some(place) => self.positional.get(place).cloned(),
            None => (self.named)(first),
        };
        let mut value =
            found.ok_or_else(|| Fail::error(format!("format: no argument for {{{name}}}")))?;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                value = attribute(&value, &after[..end])?;
                rest = &after[end..];
            } else if let Some((key, after)) =
                rest.strip_prefix('[').and_then(|rest| rest.split_once(']'))
            {
                let key = match key.parse() {
                    Ok(number) => Value::Int(number),
                    Err(_) => Value::text(key)?,
                };
                value = item(&value, &key)?;
                rest = after;
            } else {
                return Err(Fail::error(format!("format: malformed field {name:?}")));
            }
        }
        Ok(value)
    }
}

/// The start of the conversion or the specification of a field.
fn field_part(field: &str) -> usize {
    let mut in_key = false;
    let at = field.find(|c| {
        match c {
            '[' => in_key = true,
            ']' => in_key = false,
            _ => {}
        }
        !in_key && (c == '!' || c == ':')
    });
    at.unwrap_or(field.len())
}

fn field_end(text: &str) -> Result<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return Ok(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    Err(Fail::error("format: a field is not closed"))
}

#[derive(Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    /// Whether a zero that was rounded loses its sign.
    unsigned_zero: bool,
    zero: bool,
    width: usize,
    group: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    fn parse(text: &str) -> Result<Self> {
        let mut spec = Self::default();
        let mut rest = text;
        let is_align = |c: Option<char>| matches!(c, Some('<' | '>' | '=' | '^'));
        let (first, second) = (text.chars().next(), text.chars().nth(1));
        if is_align(second) {
            (spec.fill, spec.align) = (first, second);
            rest = &rest[first.map_or(0, char::len_utf8) + 1..];
        } else if is_align(first) {
            spec.align = first;
            rest = &rest[1..];
        }
        spec.sign = take(&mut rest, |c| matches!(c, '+' | '-' | ' '));
        spec.unsigned_zero = take(&mut rest, |c| c == 'z').is_some();
        spec.alternate = take(&mut rest, |c| c == '#').is_some();
        spec.zero = take(&mut rest, |c| c == '0').is_some();
        spec.width = digits(&mut rest)?.unwrap_or(0);
        spec.group = take(&mut rest, |c| matches!(c, ',' | '_'));
        if take(&mut rest, |c| c == '.').is_some() {
            let precision = digits(&mut rest)?;
            spec.precision =
                Some(precision.ok_or_else(|| Fail::error("format: a precision is missing"))?);
        }
        spec.kind = take(&mut rest, |_| true);
        if rest.is_empty() {
            return Ok(spec);
        }
        Err(Fail::error(format!(
            "format: malformed specification {text:?}"
        )))
    }
}

/// Takes the first character off a text, if it is of a kind.
pub(super) fn take(text: &mut &str, is: impl FnOnce(char) -> bool) -> Option<char> {
    let first = text.chars().next().filter(|c| is(*c))?;
    *text = &text[first.len_utf8()..];
    Some(first)
}

/// A number that is at most `MAX_WIDTH`.
pub(super) fn digits(text: &mut &str) -> Result<Option<usize>> {
    let mut found: Option<usize> = None;
    while let Some(digit) = take(text, |c| c.is_ascii_digit()).and_then(|c| c.to_digit(10)) {
        let number = found.unwrap_or(0) * 10 + digit as usize;
        if number as i128 > MAX_WIDTH {
            return Err(Fail::error(format!(
                "format: a width or precision of more than {MAX_WIDTH}"
            )));
        }
        found = Some(number);
    }
    Ok(found)
}

/// Appends `format(value, spec)`.
pub(super) fn formatted(value: &Value, spec: &str, out: &mut Builder) -> Result<()> {
    if spec.is_empty() {
        return out.push(&repr::str_of(value)?);
    }
    let spec = Spec::parse(spec)?;
    match value {
        Value::Str(text) => {
            let of_number = spec.align == Some('=')
                || spec.sign.is_some()
                || spec.group.is_some()
                || spec.alternate
                || spec.unsigned_zero;
            if !matches!(spec.kind, None | Some('s')) || of_number {
                return Err(Fail::error("format: a number's specification for a string"));
            }
            let cut: String = match spec.precision {
                Some(precision) => text.chars().take(precision).collect(),
                None => text.to_string(),
            };
            let fill = spec.fill.unwrap_or(if spec.zero { '0' } else { ' ' });
            pad(&cut, "", fill, spec.align.unwrap_or('<'), spec.width, out)
        }
        other => match Number::of(other) {
            Some(number) => numeric(number, &spec, out),
            None => Err(Fail::error(format!(
                "format: a value of type {} takes no specification",
                other.type_name()
            ))),
        },
    }
}

/// Refuses combinations that Python refuses.
fn check_numeric(value: Number, spec: &Spec) -> Result<()> {
    let kind = spec.kind;
    let is_whole = matches!(value, Number::Int(_))
        && matches!(kind, None | Some('d' | 'b' | 'o' | 'x' | 'X' | 'n' | 'c'));
    let groups = match spec.group {
        Some(',') => !matches!(kind, Some('b' | 'o' | 'x' | 'X' | 'n' | 'c')),
        Some(_) => !matches!(kind, Some('n' | 'c')),
        None => true,
    };
    let what = if is_whole && spec.precision.is_some() {
        "a precision of an integer"
    } else if is_whole && spec.unsigned_zero {
        "'z' of an integer"
    } else if kind == Some('c') && (spec.sign.is_some() || spec.alternate) {
        "a sign or '#' of a character"
    } else if !groups {
        "groups of digits with this format code"
    } else {
        return Ok(());
    };
    Err(Fail::error(format!("format: {what} is not allowed")))
}

fn numeric(value: Number, spec: &Spec, out: &mut Builder) -> Result<()> {
    check_numeric(value, spec)?;
    let mut prefix = "";
    let (negative, mut body) = match (value, spec.kind) {
        (Number::Int(number), None | Some('d' | 'b' | 'o' | 'x' | 'X' | 'n' | 'c')) => {
            let magnitude = number.unsigned_abs();
            let (own_prefix, digits) = match spec.kind {
                Some('b') => ("0b", format!("{magnitude:b}")),
                Some('o') => ("0o", format!("{magnitude:o}")),
                Some('x') => ("0x", format!("{magnitude:x}")),
                Some('X') => ("0X", format!("{magnitude:X}")),
                Some('c') => {
                    let c = u32::try_from(magnitude).ok().and_then(char::from_u32);
                    (
                        "",
                        c.ok_or_else(|| Fail::error("format: not a character's number"))?
                            .to_string(),
                    )
                }
                _ => ("", magnitude.to_string()),
            };
            if spec.alternate {
                prefix = own_prefix;
            }
            (number < 0, digits)
        }
        (value, kind) => {
            let number = value.as_f64();
            let precision = spec.precision;
            let text = match kind {
                None if precision.is_none() => repr::float(number.abs()),
                None => {
                    let text = repr::fixed(number, 'r', precision.unwrap_or(6), spec.alternate);
                    if text.contains(['.', 'e', 'n', 'i']) {
                        text
                    } else {
                        text + ".0"
                    }
                }
                Some('%') => {
                    repr::fixed(number * 100.0, 'f', precision.unwrap_or(6), spec.alternate) + "%"
                }
                Some('n') => repr::fixed(number, 'g', precision.unwrap_or(6), spec.alternate),
                Some(kind @ ('e' | 'f' | 'g')) => {
                    repr::fixed(number, kind, precision.unwrap_or(6), spec.alternate)
                }
                Some(kind @ ('E' | 'F' | 'G')) => repr::fixed(
                    number,
                    kind.to_ascii_lowercase(),
                    precision.unwrap_or(6),
                    spec.alternate,
                )
                .to_uppercase(),
                Some(other) => {
                    return Err(Fail::error(format!(
                        "format: unknown format code {other:?}"
                    )));
                }
            };
            let is_zero = || !text.contains(|c: char| ('1'..='9').contains(&c));
            let drops_sign = spec.unsigned_zero && number.is_finite() && is_zero();
            let negative = number.is_sign_negative() && !number.is_nan() && !drops_sign;
            (negative, text)
        }
    };
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    let sign = &format!("{sign}{prefix}");
    let fill = spec.fill.unwrap_or(if spec.zero { '0' } else { ' ' });
    let align = spec.align.unwrap_or(if spec.zero { '=' } else { '>' });
    let zero_pads = fill == '0' && align == '=';
    if let Some(mark) = spec.group {
        let every = if matches!(spec.kind, Some('b' | 'o' | 'x' | 'X')) {
            4
        } else {
            3
        };
        let whole = body
            .find(|c: char| !c.is_digit(if every == 4 { 16 } else { 10 }))
            .unwrap_or(body.len());
        let width = if zero_pads {
            spec.width.saturating_sub(sign.len() + body.len() - whole)
        } else {
            0
        };
        body = format!(
            "{}{}",
            grouped(&body[..whole], mark, every, width),
            &body[whole..]
        );
    }
    pad(&body, sign, fill, align, spec.width, out)
}

/// Digits in groups, with zeros before them up to a width.
fn grouped(digits: &str, mark: char, every: usize, width: usize) -> String {
    let mut reversed = String::new();
    let mut count = 0;
    let mut digits = digits.chars().rev();
    loop {
        let next = digits.next();
        if next.is_none() && reversed.len() >= width {
            break;
        }
        if count > 0 && count % every == 0 {
            reversed.push(mark);
        }
        reversed.push(next.unwrap_or('0'));
        count += 1;
    }
    reversed.chars().rev().collect()
}

pub(super) fn pad(
    body: &str,
    sign: &str,
    fill: char,
    align: char,
    width: usize,
    out: &mut Builder,
) -> Result<()> {
    let missing = width.saturating_sub(body.chars().count() + sign.len());
    let fill = fill.to_string();
    let left = match align {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    if align == '=' {
        out.push(sign)?;
        out.repeat(&fill, missing)?;
        return out.push(body);
    }
    out.repeat(&fill, left)?;
    out.push(sign)?;
    out.push(body)?;
    out.repeat(&fill, missing - left)
}

pub(super) fn percent(format: &Str, values: &Value) -> Result<Value> {
    let mut given = match values {
        Value::Tuple(items) => Given::Items(items.iter()),
        other => Given::One(other, false),
    };
    let mut out = Builder::default();
    let mut used_key = false;
    let mut rest: &str = format;
    while let Some(at) = rest.find('%') {
        out.push(&rest[..at])?;
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            out.push("%")?;
            rest = after;
            continue;
        }
        let mut key = None;
        if rest.starts_with('(') {
            let (found, after) = key_of(rest)?;
            let Value::Dict(dict) = values else {
                return Err(Fail::error("%: the format needs a mapping"));
            };
            let value = dict.get_text(found).cloned();
            key = Some(value.ok_or_else(|| Fail::error(format!("%: no value for {found:?}")))?);
            used_key = true;
            rest = after;
        }
        let mut flags = String::new();
        while let Some(flag) = take(&mut rest, |c| "-+ #0".contains(c)) {
            flags.push(flag);
        }
        let mut measure = |rest: &mut &str| -> Result<Option<i128>> {
            if take(rest, |c| c == '*').is_some() {
                let width = index(&given.next()?)?;
                if width.unsigned_abs() > MAX_WIDTH.unsigned_abs() {
                    return Err(Fail::error(format!("%: a width of more than {MAX_WIDTH}")));
                }
                return Ok(Some(width));
            }
            Ok(digits(rest)?.map(|width| width as i128))
        };
        let mut width = measure(&mut rest)?.unwrap_or(0);
        if width < 0 {
            flags.push('-');
            width = -width;
        }
        let precision = match take(&mut rest, |c| c == '.') {
            Some(_) => Some(usize::try_from(measure(&mut rest)?.unwrap_or(0)).unwrap_or(0)),
            None => None,
        };
        while take(&mut rest, |c| "hlL".contains(c)).is_some() {}
        let Some(kind) = take(&mut rest, |_| true) else {
            return Err(Fail::error("%: the format ends within a field"));
        };
        limits::work(1)?;
        if kind == '%' {
            out.push("%")?;
            continue;
        }
        let value = match key {
            Some(value) => value,
            None => given.next()?,
        };
        let field = Field {
            flags: &flags,
            width: usize::try_from(width).unwrap_or(0),
            precision,
            kind,
        };
        field.write(&value, &mut out)?;
    }
    out.push(rest)?;
    let left_over = match &given {
        Given::Items(items) => items.len() > 0,
        // As in Python, a value with subscripts that is neither a tuple nor a text may provide the
        // values of named fields.
        Given::One(Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Undefined(_), _) => {
            false
        }
        Given::One(_, used) => !used,
    };
    if left_over && !used_key {
        return Err(Fail::error("%: not all values are used by the format"));
    }
    Str::with(out.finish().into(), format.is_safe()).map(Value::Str)
}

enum Given<'a> {
    Items(std::slice::Iter<'a, Value>),
    /// A single value, and whether it has been used.
    One(&'a Value, bool),
}

impl Given<'_> {
    fn next(&mut self) -> Result<Value> {
        let found = match self {
            Self::Items(items) => items.next().cloned(),
            Self::One(value, used) => (!std::mem::replace(used, true)).then(|| value.clone()),
        };
        found.ok_or_else(|| Fail::error("%: not enough values for the format"))
    }
}

fn key_of(text: &str) -> Result<(&str, &str)> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return Ok((&text[1..at], &text[at + 1..])),
            ')' => depth -= 1,
            _ => {}
        }
    }
    Err(Fail::error("%: a key is not closed"))
}

struct Field<'a> {
    flags: &'a str,
    width: usize,
    precision: Option<usize>,
    kind: char,
}

impl Field<'_> {
    fn has(&self, flag: char) -> bool {
        self.flags.contains(flag)
    }

    fn write(&self, value: &Value, out: &mut Builder) -> Result<()> {
        let align = if self.has('-') { '<' } else { '>' };
        let text = match self.kind {
            's' => repr::str_of(value)?.to_string(),
            'r' | 'a' => {
                let mut shown = Builder::default();
                repr::repr(value, &mut shown, 0)?;
                let shown = shown.finish();
                if self.kind == 'a' {
                    ascii(&shown)
                } else {
                    shown
                }
            }
            'c' => match value {
                Value::Str(text) if text.chars().count() == 1 => text.to_string(),
                Value::Int(number) => {
                    let c = u32::try_from(*number).ok().and_then(char::from_u32);
                    c.ok_or_else(|| Fail::error("%c: not a character's number"))?
                        .to_string()
                }
                _ => return Err(Fail::error("%c needs an int or a character")),
            },
            _ => return self.number(value, out),
        };
        let cut: String = match self.precision {
            Some(precision) if self.kind != 'c' => text.chars().take(precision).collect(),
            _ => text,
        };
        pad(&cut, "", ' ', align, self.width, out)
    }

    fn number(&self, value: &Value, out: &mut Builder) -> Result<()> {
        let kind = self.kind;
        let Some(number) = Number::of(value) else {
            return Err(match value {
                Value::Undefined(what) => Fail::error(&**what),
                other => Fail::error(format!("%{kind} needs a number, not {}", other.type_name())),
            });
        };
        let mut prefix = "";
        let (negative, body) = match kind {
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
                let whole = match number {
                    Number::Int(number) => number,
                    Number::Float(number) if "diu".contains(kind) => repr::whole(number)?,
                    Number::Float(_) => return Err(Fail::error(format!("%{kind} needs an int"))),
                };
                let magnitude = whole.unsigned_abs();
                let (own_prefix, digits) = match kind {
                    'x' => ("0x", format!("{magnitude:x}")),
                    'X' => ("0X", format!("{magnitude:X}")),
                    'o' => ("0o", format!("{magnitude:o}")),
                    _ => ("", magnitude.to_string()),
                };
                let zeros = "0".repeat(self.precision.unwrap_or(0).saturating_sub(digits.len()));
                if self.has('#') {
                    prefix = own_prefix;
                }
                (whole < 0, format!("{zeros}{digits}"))
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let number = number.as_f64();
                let lower = kind.to_ascii_lowercase();
                let text = repr::fixed(number, lower, self.precision.unwrap_or(6), self.has('#'));
                let text = if kind.is_ascii_uppercase() {
                    text.to_uppercase()
                } else {
                    text
                };
                (number.is_sign_negative() && !number.is_nan(), text)
            }
            other => {
                return Err(Fail::error(format!(
                    "%: unknown format character {other:?}"
                )));
            }
        };
        let sign = if negative {
            "-"
        } else if self.has('+') {
            "+"
        } else if self.has(' ') {
            " "
        } else {
            ""
        };
        let sign = &format!("{sign}{prefix}");
        match (self.has('-'), self.has('0')) {
            (true, _) => pad(&body, sign, ' ', '<', self.width, out),
            (false, true) => pad(&body, sign, '0', '=', self.width, out),
            (false, false) => pad(&body, sign, ' ', '>', self.width, out),
        }
    }
}

/// With everything that is not ASCII as an escape.
fn ascii(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            out.push_str(&repr::escape_code(c));
        }
    }
    out
}
