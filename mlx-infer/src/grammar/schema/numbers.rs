//! Numbers in a schema. The compiler reads numbers as floating-point numbers, and bounds of
//! integers as 64-bit integers. Numbers that this would change are refused, and multiples between
//! close bounds are listed.

use serde_json::{Map, Number, Value};

use super::Rewriter;

/// The largest integer up to which all integers are exact as floating-point numbers, 2^53 - 1.
const EXACT: f64 = 9_007_199_254_740_991.0;

/// The smallest absolute value of a bound other than zero. Each decimal place of a bound nests its
/// expression deeper.
const LEAST: f64 = 1e-60;

/// The smallest positive number that is generated where zero is excluded.
const NEAR_ZERO: f64 = 1e-20;

const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

/// Keywords whose value is a count.
const COUNTS: [&str; 6] = [
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
];

pub(in super::super) const MULTIPLE: &str = "multipleOf";

/// The number of states of an automaton for multiples of a number. 100,000 states take a second.
pub(in super::super) const MULTIPLES: u64 = 100_000;

/// The most multiples between two bounds that are listed. Bounds with more multiples between them
/// are rounded, and some multiples remain.
const LISTED: i128 = 64;

impl Rewriter<'_> {
    /// Rewrites the numbers of a schema.
    pub(super) fn number(&mut self, entries: &mut Map<String, Value>) -> Result<(), String> {
        for key in COUNTS {
            // JSON Schema counts 4.0 as an integer.
            if let Some(Value::Number(number)) = entries.get_mut(key)
                && let Some(count) = number.as_f64()
                && !number.is_u64()
                && count.fract() == 0.0
                && (0.0..=EXACT).contains(&count)
            {
                *number = (count as u64).into();
            }
        }
        for key in ["const", "enum"] {
            if let Some(number) = entries.get(key).and_then(inexact) {
                return Err(format!("{key}: {number} {}", outside()));
            }
        }
        for key in BOUNDS {
            let what = match entries.get(key) {
                Some(Value::Number(number)) => match is_exact(number) {
                    false => format!("{number} {}", outside()),
                    true if is_tiny(number) => {
                        format!("{number} is nearer to zero than {LEAST:e}")
                    }
                    true => continue,
                },
                _ => continue,
            };
            if self.strict {
                return Err(format!(
                    "{key}: {what} (without strict it is without effect)"
                ));
            }
            entries.shift_remove(key);
            self.ignore(key);
        }
        self.multiple(entries)?;
        inclusive(entries);
        Ok(())
    }

    /// Rewrites `multipleOf`. If it has few multiples between two bounds, they become an `enum`.
    /// Otherwise it becomes a number that the compiler reads exactly.
    fn multiple(&mut self, entries: &mut Map<String, Value>) -> Result<(), String> {
        let Some(Value::Number(number)) = entries.get(MULTIPLE) else {
            return Ok(());
        };
        let step = Decimal::of(number).map(Decimal::positive);
        let Some((step, read)) = step.and_then(|step| Some((step, read_as(step)?))) else {
            if self.strict {
                return Err(format!(
                    "{MULTIPLE}: {number} cannot be read exactly (without strict it is without effect)"
                ));
            }
            entries.shift_remove(MULTIPLE);
            self.ignore(MULTIPLE);
            return Ok(());
        };
        if let Some(values) = listed(entries, step) {
            for key in BOUNDS {
                entries.shift_remove(key);
            }
            entries.shift_remove(MULTIPLE);
            let values = Value::Object([("enum".to_owned(), values)].into_iter().collect());
            match entries.get_mut("allOf").and_then(Value::as_array_mut) {
                Some(list) => list.push(values),
                None => {
                    entries.insert("allOf".to_owned(), vec![values].into());
                }
            }
        } else if let Some(read) = Number::from_f64(read) {
            entries.insert(MULTIPLE.to_owned(), read.into());
        }
        Ok(())
    }
}

/// Replaces exclusive bounds that the compiler treats as inclusive when the other bound is near:
/// whole numbers, on the side of zero. The bound becomes the next floating-point number. Next to
/// zero that number would have 324 digits, so numbers below [`NEAR_ZERO`] are not generated there.
fn inclusive(entries: &mut Map<String, Value>) {
    if entries.get("type").is_some_and(|kind| kind == "integer") {
        return;
    }
    for (bound, exclusive, sign) in [
        ("minimum", "exclusiveMinimum", 1.0),
        ("maximum", "exclusiveMaximum", -1.0),
    ] {
        let given = entries.get(bound).and_then(Value::as_f64);
        // In draft 4 the exclusive keywords are booleans.
        let excluded = match entries.get(exclusive) {
            Some(Value::Bool(true)) => given,
            Some(Value::Number(number)) => number.as_f64(),
            _ => None,
        };
        // A maximum is handled as the minimum of the negated numbers.
        let Some(excluded) = excluded.map(|excluded| excluded * sign) else {
            continue;
        };
        if excluded < 0.0 || excluded.fract() != 0.0 {
            continue;
        }
        let next = if excluded == 0.0 {
            NEAR_ZERO
        } else {
            excluded.next_up()
        };
        let least = given.map_or(next, |given| next.max(given * sign));
        entries.shift_remove(exclusive);
        entries.insert(bound.to_owned(), (least * sign).into());
    }
}

fn outside() -> String {
    format!("is outside -{EXACT} to {EXACT}, where all integers are exact")
}

/// Whether a number has more decimal places than an expression may have.
fn is_tiny(number: &Number) -> bool {
    let size = number.as_f64().map_or(0.0, f64::abs);
    size > 0.0 && size < LEAST
}

/// Whether a number is in the range of exact integers.
fn is_exact(number: &Number) -> bool {
    number.as_f64().is_some_and(|float| float.abs() <= EXACT)
}

/// The first number in a value that may have been rounded.
fn inexact(value: &Value) -> Option<&Number> {
    match value {
        Value::Number(number) => (!is_exact(number)).then_some(number),
        Value::Array(list) => list.iter().find_map(inexact),
        Value::Object(map) => map.values().find_map(inexact),
        _ => None,
    }
}

/// All multiples of `step` between the bounds of a schema of numbers, if there are two bounds and few multiples.
fn listed(entries: &Map<String, Value>, step: Decimal) -> Option<Value> {
    let kind = match entries.get("type")? {
        Value::Array(kinds) if kinds.len() == 1 => &kinds[0],
        kind => kind,
    };
    let is_integer = match kind.as_str()? {
        "integer" => true,
        "number" => false,
        _ => return None,
    };
    let number = |key: &str| match entries.get(key) {
        Some(Value::Number(number)) => Some(Decimal::of(number)),
        _ => None,
    };
    // Each bound, and whether it is exclusive.
    let mut least: Vec<(Decimal, bool)> = Vec::new();
    let mut most: Vec<(Decimal, bool)> = Vec::new();
    for (bounds, key, exclusive) in [
        (&mut least, "minimum", "exclusiveMinimum"),
        (&mut most, "maximum", "exclusiveMaximum"),
    ] {
        // In draft 4 the exclusive keywords are booleans.
        let is_exclusive = entries.get(exclusive) == Some(&Value::Bool(true));
        if let Some(bound) = number(key) {
            bounds.push((bound?, is_exclusive));
        }
        if let Some(bound) = number(exclusive) {
            bounds.push((bound?, true));
        }
    }
    let all = || least.iter().chain(&most).map(|(bound, _)| bound);
    let scale = all().map(|bound| bound.scale).max()?.max(step.scale);
    let mut unit = step.at(scale)?;
    if is_integer {
        let one = 10_i128.checked_pow(scale)?;
        unit = unit / common(unit.unsigned_abs(), one.unsigned_abs()) as i128 * one;
    }
    // The numbers of the first and the last multiple.
    let (mut first, mut last) = (None::<i128>, None::<i128>);
    for (bound, is_exclusive) in least {
        let bound = bound.at(scale)? + i128::from(is_exclusive);
        let at = bound.div_euclid(unit) + i128::from(bound.rem_euclid(unit) != 0);
        first = Some(first.map_or(at, |first| first.max(at)));
    }
    for (bound, is_exclusive) in most {
        let at = (bound.at(scale)? - i128::from(is_exclusive)).div_euclid(unit);
        last = Some(last.map_or(at, |last| last.min(at)));
    }
    let (first, last) = (first?, last?);
    if last - first >= LISTED {
        return None;
    }
    let value = |at: i128| {
        let text = format!("{}e-{scale}", at * unit);
        let float: f64 = text.parse().ok()?;
        Some(match float.fract() == 0.0 {
            true => Value::from(float as i64),
            false => Value::from(float),
        })
    };
    (first..=last).map(value).collect()
}

/// A number as `digits` * 10^-`scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decimal {
    digits: i128,
    scale: u32,
}

impl Decimal {
    /// The shortest decimal number that is read as this one, which is the text of the schema for up to 17 digits; `None`
    /// if it has too many digits.
    fn of(number: &Number) -> Option<Self> {
        let text = number.to_string();
        let (text, exponent) = match text.split_once(['e', 'E']) {
            Some((text, exponent)) => (text, exponent.parse::<i32>().ok()?),
            None => (text.as_str(), 0),
        };
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let part = part.trim_end_matches('0');
        let digits: i128 = format!("{whole}{part}").parse().ok()?;
        let scale = part.len() as i32 - exponent;
        match u32::try_from(scale) {
            Ok(scale) if scale <= 18 => Some(Self { digits, scale }),
            Ok(_) => None,
            Err(_) => Some(Self {
                digits: 10_i128
                    .checked_pow(scale.unsigned_abs())?
                    .checked_mul(digits)?,
                scale: 0,
            }),
        }
    }

    fn positive(self) -> Self {
        Self {
            digits: self.digits.abs(),
            ..self
        }
    }

    /// The number in units of 10^-`scale`, which is at least its own.
    fn at(self, scale: u32) -> Option<i128> {
        let unit = 10_i128.checked_pow(scale - self.scale)?;
        let digits = self.digits.checked_mul(unit)?;
        (digits.abs() < i128::MAX / 4).then_some(digits)
    }
}

/// A floating-point number that the compiler reads as `step`: the nearest one, or one of its
/// neighbours. The compiler multiplies it by 10 until it has no fraction.
fn read_as(step: Decimal) -> Option<f64> {
    let near: f64 = format!("{}e-{}", step.digits, step.scale).parse().ok()?;
    let is_read = |&float: &f64| {
        let (mut value, mut scale) = (float, 0);
        while value.fract() != 0.0 && scale < step.scale {
            value *= 10.0;
            scale += 1;
        }
        value.fract() == 0.0
            && scale <= step.scale
            && value as i128 * 10_i128.pow(step.scale - scale) == step.digits
    };
    let beside = |up: i64| f64::from_bits(near.to_bits().wrapping_add_signed(up));
    [0, 1, -1, 2, -2, 3, -3, 4, -4]
        .map(beside)
        .into_iter()
        .find(is_read)
}

/// Whether the automaton for multiples of all numbers in the schema is small. Intersected schemas
/// share one automaton.
pub(in super::super) fn divides(schema: &Value) -> bool {
    let mut numbers = Vec::new();
    each_number(schema, &mut numbers);
    let units = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6].into_iter();
    let mut multiples = units.map(|unit| {
        numbers.iter().try_fold(1, |multiple, number| {
            let whole = (number * unit).round();
            let is_whole = (number * unit - whole).abs() < 1e-6 * whole.abs();
            if !is_whole || !(1.0..=MULTIPLES as f64).contains(&whole) {
                return None;
            }
            let whole = whole as u64;
            let both = multiple / common(multiple.into(), whole.into()) as u64 * whole;
            // The compiler multiplies two of them in 32 bits.
            let fits = numbers.len() == 1 || both * whole <= u32::MAX.into();
            (both <= MULTIPLES && fits).then_some(both)
        })
    });
    multiples.any(|multiple| multiple.is_some())
}

/// The greatest common divisor.
fn common(a: u128, b: u128) -> u128 {
    match b {
        0 => a,
        _ => common(b, a % b),
    }
}

/// The values of `multipleOf` in all objects that may be a subschema.
fn each_number(value: &Value, numbers: &mut Vec<f64>) {
    match value {
        Value::Object(entries) => {
            numbers.extend(entries.get(MULTIPLE).and_then(Value::as_f64));
            for (key, value) in entries {
                if !["const", "enum", "default", "examples"].contains(&key.as_str()) {
                    each_number(value, numbers);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| each_number(item, numbers)),
        _ => {}
    }
}
