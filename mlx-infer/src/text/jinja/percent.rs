//! `format % values`: printf-style formatting.

use super::budget::{self, Builder, MAX_WIDTH};
use super::compare::{Number, index};
use super::spec::{digits, pad, take};
use super::value::{Str, Value};
use super::{Fail, Result, number, show};

pub(super) fn format(format: &Str, values: &Value) -> Result<Value> {
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
        budget::work(1)?;
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
        // As in Python, what has subscripts and is no tuple or text may have the values of names.
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
            's' => show::str_of(value)?.to_string(),
            'r' | 'a' => {
                let mut shown = Builder::default();
                show::repr(value, &mut shown, 0)?;
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
        let (negative, body) = match kind {
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
                let whole = match number {
                    Number::Int(number) => number,
                    Number::Float(number) if "diu".contains(kind) => number::whole(number)?,
                    Number::Float(_) => return Err(Fail::error(format!("%{kind} needs an int"))),
                };
                let magnitude = whole.unsigned_abs();
                let (prefix, digits) = match kind {
                    'x' => ("0x", format!("{magnitude:x}")),
                    'X' => ("0X", format!("{magnitude:X}")),
                    'o' => ("0o", format!("{magnitude:o}")),
                    _ => ("", magnitude.to_string()),
                };
                let zeros = "0".repeat(self.precision.unwrap_or(0).saturating_sub(digits.len()));
                let prefix = if self.has('#') { prefix } else { "" };
                (whole < 0, format!("{prefix}{zeros}{digits}"))
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let number = number.as_f64();
                let lower = kind.to_ascii_lowercase();
                let text = number::fixed(number, lower, self.precision.unwrap_or(6), self.has('#'));
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
            out.push_str(&show::escape_code(c));
        }
    }
    out
}
