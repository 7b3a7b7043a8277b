//! Numbers as text: read as by `int` and `float`, and written as in Python.

use super::{Fail, Result};

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
    let text = text.trim_matches(super::show::is_space);
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
    let text = text.trim_matches(super::show::is_space);
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

/// A number without its sign as `%f`, `%e`, `%g` or `%%` of format specifications write it.
pub(super) fn fixed(number: f64, kind: char, precision: usize, alternate: bool) -> String {
    let number = number.abs();
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return "inf".to_owned();
    }
    match kind {
        'e' => {
            let (digits, power) = exponential(number, precision);
            format!("{digits}e{}", exponent_of(power))
        }
        'g' => {
            let precision = precision.max(1);
            let (digits, power) = exponential(number, precision - 1);
            let trim = |digits: &str| {
                if alternate || !digits.contains('.') {
                    digits.to_owned()
                } else {
                    digits
                        .trim_end_matches('0')
                        .trim_end_matches('.')
                        .to_owned()
                }
            };
            if power < -4 || power >= precision as i32 {
                format!("{}e{}", trim(&digits), exponent_of(power))
            } else {
                let decimals = usize::try_from(precision as i32 - 1 - power).unwrap_or(0);
                trim(&plain(number, decimals))
            }
        }
        _ => plain(number, precision),
    }
}

/// A number with this many decimals. Rust formats only so many; all digits behind them are zeros.
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
