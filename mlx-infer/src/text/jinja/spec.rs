//! Format specifications: `format(value, spec)`.

use super::budget::{Builder, MAX_WIDTH};
use super::compare::Number;
use super::value::Value;
use super::{Fail, Result, number, show};

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

/// A number that is no absurd width.
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
        return out.push(&show::str_of(value)?);
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

/// Refuses what Python refuses.
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
    let (negative, mut body) = match (value, spec.kind) {
        (Number::Int(number), None | Some('d' | 'b' | 'o' | 'x' | 'X' | 'n' | 'c')) => {
            let magnitude = number.unsigned_abs();
            let (prefix, digits) = match spec.kind {
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
            (
                number < 0,
                if spec.alternate {
                    format!("{prefix}{digits}")
                } else {
                    digits
                },
            )
        }
        (value, kind) => {
            let number = value.as_f64();
            let precision = spec.precision;
            let text = match kind {
                None if precision.is_none() => number::float(number.abs()),
                None => {
                    let text = number::fixed(number, 'g', precision.unwrap_or(6), spec.alternate);
                    if text.contains(['.', 'e', 'n', 'i']) {
                        text
                    } else {
                        text + ".0"
                    }
                }
                Some('%') => {
                    number::fixed(number * 100.0, 'f', precision.unwrap_or(6), false) + "%"
                }
                Some('n') => number::fixed(number, 'g', precision.unwrap_or(6), spec.alternate),
                Some(kind @ ('e' | 'f' | 'g')) => {
                    number::fixed(number, kind, precision.unwrap_or(6), spec.alternate)
                }
                Some(kind @ ('E' | 'F' | 'G')) => number::fixed(
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
    let zero_pads = spec.align.is_none() && spec.zero;
    if let Some(mark) = spec.group {
        let every = if matches!(spec.kind, Some('b' | 'o' | 'x' | 'X')) {
            4
        } else {
            3
        };
        let whole = body
            .find(|c: char| !c.is_ascii_hexdigit())
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
    let fill = spec.fill.unwrap_or(if spec.zero { '0' } else { ' ' });
    let align = spec.align.unwrap_or(if spec.zero { '=' } else { '>' });
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
