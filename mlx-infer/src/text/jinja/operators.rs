//! Operators: arithmetic on numbers, texts and lists; equality, order and membership, as in Python.

use std::cmp::Ordering;
use std::rc::Rc;

use super::limits::{self, Builder};
use super::nodes::Binary;
use super::repr::{self, too_large};
use super::values::{Range, Seq, Str, Value, View};
use super::{Fail, Result, formats, methods};

pub(super) fn negative(value: &Value) -> Result<Value> {
    match Number::of(value) {
        Some(Number::Int(number)) => number.checked_neg().map(Value::Int).ok_or_else(too_large),
        Some(Number::Float(number)) => Ok(Value::Float(-number)),
        None => Err(wrong_type("-", value)),
    }
}

pub(super) fn positive(value: &Value) -> Result<Value> {
    match Number::of(value) {
        Some(Number::Int(number)) => Ok(Value::Int(number)),
        Some(Number::Float(number)) => Ok(Value::Float(number)),
        None => Err(wrong_type("+", value)),
    }
}

pub(super) fn binary(operator: Binary, left: &Value, right: &Value) -> Result<Value> {
    if let Value::Undefined(what) = left {
        return Err(Fail::error(&**what));
    }
    if let (Binary::Modulo, Value::Str(format)) = (operator, left) {
        return formats::percent(format, right);
    }
    if let Value::Undefined(what) = right {
        return Err(Fail::error(&**what));
    }
    if let (Some(left), Some(right)) = (Number::of(left), Number::of(right)) {
        return match (left, right) {
            (Number::Int(left), Number::Int(right)) => on_ints(operator, left, right),
            (left, right) => on_floats(operator, left.as_f64(), right.as_f64()).map(Value::Float),
        };
    }
    match (operator, left, right) {
        (Binary::Add, Value::Str(left), Value::Str(right)) => {
            add_texts(left, right).map(Value::Str)
        }
        (Binary::Add, Value::List(left), Value::List(right)) => {
            joined(left, right).map(Value::List)
        }
        (Binary::Add, Value::Tuple(left), Value::Tuple(right)) => {
            joined(left, right).map(Value::Tuple)
        }
        (
            Binary::Multiply,
            Value::Int(_) | Value::Bool(_),
            Value::Str(_) | Value::List(_) | Value::Tuple(_),
        ) => repeated(right, left),
        (
            Binary::Multiply,
            Value::Str(_) | Value::List(_) | Value::Tuple(_),
            Value::Int(_) | Value::Bool(_),
        ) => repeated(left, right),
        _ => Err(Fail::error(format!(
            "{} {} {} has no answer",
            left.type_name(),
            sign(operator),
            right.type_name()
        ))),
    }
}

fn sign(operator: Binary) -> &'static str {
    match operator {
        Binary::Add => "+",
        Binary::Subtract => "-",
        Binary::Multiply => "*",
        Binary::Divide => "/",
        Binary::FloorDivide => "//",
        Binary::Modulo => "%",
        Binary::Power => "**",
    }
}

/// Text that is added to a safe text is escaped.
fn add_texts(left: &Str, right: &Str) -> Result<Str> {
    let safe = left.is_safe() || right.is_safe();
    let mut out = Builder::default();
    for part in [left, right] {
        if safe && !part.is_safe() {
            out.push(&repr::escape(part)?)?;
        } else {
            out.push(part)?;
        }
    }
    Str::with(out.finish().into(), safe)
}

fn joined(left: &[Value], right: &[Value]) -> Result<Rc<Seq>> {
    limits::items(left.len() + right.len())?;
    Seq::new([left, right].concat())
}

fn repeated(value: &Value, times: &Value) -> Result<Value> {
    let times = match Number::of(times) {
        Some(Number::Int(times)) => usize::try_from(times.max(0)).unwrap_or(usize::MAX),
        _ => 0,
    };
    match value {
        Value::Str(text) => {
            let mut out = Builder::default();
            out.repeat(text, times)?;
            Str::with(out.finish().into(), text.is_safe()).map(Value::Str)
        }
        Value::List(items) | Value::Tuple(items) => {
            limits::items(items.len().saturating_mul(times))?;
            let count = items.len().saturating_mul(times);
            let items: Vec<Value> = items.iter().cycle().take(count).cloned().collect();
            match value {
                Value::List(_) => Value::list(items),
                _ => Value::tuple(items),
            }
        }
        other => Err(wrong_type("*", other)),
    }
}

fn on_ints(operator: Binary, left: i128, right: i128) -> Result<Value> {
    let whole = match operator {
        Binary::Add => left.checked_add(right),
        Binary::Subtract => left.checked_sub(right),
        Binary::Multiply => left.checked_mul(right),
        Binary::Divide => {
            return on_floats(operator, left as f64, right as f64).map(Value::Float);
        }
        Binary::FloorDivide | Binary::Modulo if right == 0 => return Err(by_zero()),
        Binary::FloorDivide => left
            .checked_div(right)
            .map(|quotient| quotient - i128::from(left % right != 0 && (left < 0) != (right < 0))),
        Binary::Modulo => left.checked_rem(right).map(|rest| {
            if rest != 0 && (rest < 0) != (right < 0) {
                rest + right
            } else {
                rest
            }
        }),
        Binary::Power if right < 0 => {
            return on_floats(operator, left as f64, right as f64).map(Value::Float);
        }
        Binary::Power => match (left, u32::try_from(right)) {
            (0 | 1, _) if right > 0 => Some(left),
            (-1, _) => Some(if right % 2 == 0 { 1 } else { -1 }),
            (_, Ok(power)) => left.checked_pow(power),
            _ => None,
        },
    };
    whole.map(Value::Int).ok_or_else(too_large)
}

fn on_floats(operator: Binary, left: f64, right: f64) -> Result<f64> {
    Ok(match operator {
        Binary::Add => left + right,
        Binary::Subtract => left - right,
        Binary::Multiply => left * right,
        Binary::Divide | Binary::FloorDivide | Binary::Modulo if right == 0.0 => {
            return Err(by_zero());
        }
        Binary::Divide => left / right,
        Binary::FloorDivide => ((left - remainder(left, right)) / right).round(),
        Binary::Modulo => remainder(left, right),
        Binary::Power if left == 0.0 && right < 0.0 => return Err(by_zero()),
        Binary::Power if left < 0.0 && right.fract() != 0.0 => {
            return Err(Fail::error("complex numbers are not supported"));
        }
        Binary::Power => left.powf(right),
    })
}

/// The remainder with the sign of the divisor.
fn remainder(left: f64, right: f64) -> f64 {
    let rest = left % right;
    if rest != 0.0 && (rest < 0.0) != (right < 0.0) {
        rest + right
    } else if rest == 0.0 {
        0.0_f64.copysign(right)
    } else {
        rest
    }
}

fn by_zero() -> Fail {
    Fail::error("division by zero")
}

fn wrong_type(operator: &str, value: &Value) -> Fail {
    match value {
        Value::Undefined(what) => Fail::error(&**what),
        other => Fail::error(format!(
            "{operator} of a value of type {}",
            other.type_name()
        )),
    }
}

/// A number, an integer or a float.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(flag) => Some(Self::Int(i128::from(*flag))),
            Value::Int(number) => Some(Self::Int(*number)),
            Value::Float(number) => Some(Self::Float(*number)),
            _ => None,
        }
    }

    pub(super) fn as_f64(self) -> f64 {
        match self {
            Self::Int(number) => number as f64,
            Self::Float(number) => number,
        }
    }

    fn order(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(left), Self::Int(right)) => Some(left.cmp(&right)),
            (left, right) => left.as_f64().partial_cmp(&right.as_f64()),
        }
    }
}

/// A value as an integer.
pub(super) fn index(value: &Value) -> Result<i128> {
    match value {
        Value::Bool(flag) => Ok(i128::from(*flag)),
        Value::Int(number) => Ok(*number),
        Value::Undefined(what) => Err(Fail::error(&**what)),
        other => Err(Fail::error(format!(
            "expected an int, found {}",
            other.type_name()
        ))),
    }
}

pub(super) fn equal(left: &Value, right: &Value) -> Result<bool> {
    limits::work(1)?;
    if let (Some(left), Some(right)) = (Number::of(left), Number::of(right)) {
        return Ok(left.order(right) == Some(Ordering::Equal));
    }
    Ok(match (left, right) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(left), Value::Str(right)) => {
            limits::copy(left.len().min(right.len()))?;
            left.same(right) || **left == **right
        }
        (Value::List(left), Value::List(right)) | (Value::Tuple(left), Value::Tuple(right)) => {
            if Rc::ptr_eq(left, right) {
                return Ok(true);
            }
            if left.len() != right.len() {
                return Ok(false);
            }
            for (left, right) in left.iter().zip(right.iter()) {
                if !equal(left, right)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(left), Value::Dict(right)) => {
            if Rc::ptr_eq(left, right) {
                return Ok(true);
            }
            if left.entries().len() != right.entries().len() {
                return Ok(false);
            }
            for (key, value) in left.entries() {
                match right.get(key)? {
                    Some(other) if equal(value, other)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Range(left), Value::Range(right)) => same_range(left, right),
        (Value::View(view, left), Value::View(other, right)) => match (view, other) {
            (View::Values, View::Values) => Rc::ptr_eq(left, right),
            _ if view == other => {
                let (left, right) = (
                    Value::list(left_items(view, left)?)?,
                    Value::list(left_items(view, right)?)?,
                );
                let (left_items, right_items) = (left.items()?, right.items()?);
                left_items.len() == right_items.len() && {
                    for item in &left_items {
                        if !contains(&right, item)? {
                            return Ok(false);
                        }
                    }
                    true
                }
            }
            _ => false,
        },
        (Value::Iter(left), Value::Iter(right)) => Rc::ptr_eq(left, right),
        (Value::Object(left), Value::Object(right)) => Rc::ptr_eq(left, right),
        _ => false,
    })
}

fn left_items(view: &View, dict: &Rc<super::values::Dict>) -> Result<Vec<Value>> {
    Value::View(*view, Rc::clone(dict)).items()
}

fn same_range(left: &Range, right: &Range) -> bool {
    let (count, other) = (left.len(), right.len());
    count == other
        && (count == 0 || (left.start == right.start && (count == 1 || left.step == right.step)))
}

/// `left < right` and the like.
pub(super) fn ordered(left: &Value, right: &Value, operator: &str) -> Result<bool> {
    let Some(order) = order(left, right, operator)? else {
        return Ok(false);
    };
    Ok(match operator {
        "<" => order.is_lt(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        _ => order.is_ge(),
    })
}

/// The order of two values; none if one is NaN.
fn order(left: &Value, right: &Value, operator: &str) -> Result<Option<Ordering>> {
    limits::work(1)?;
    if let (Some(left), Some(right)) = (Number::of(left), Number::of(right)) {
        return Ok(left.order(right));
    }
    match (left, right) {
        (Value::Undefined(what), _) | (_, Value::Undefined(what)) => Err(Fail::error(&**what)),
        (Value::Str(left), Value::Str(right)) => {
            limits::copy(left.len().min(right.len()))?;
            Ok(Some((**left).cmp(&**right)))
        }
        (Value::List(left), Value::List(right)) | (Value::Tuple(left), Value::Tuple(right)) => {
            for (left, right) in left.iter().zip(right.iter()) {
                if !equal(left, right)? {
                    return order(left, right, operator);
                }
            }
            Ok(Some(left.len().cmp(&right.len())))
        }
        _ => Err(Fail::error(format!(
            "{} {operator} {} has no answer",
            left.type_name(),
            right.type_name()
        ))),
    }
}

/// `sought in of`.
pub(super) fn contains(of: &Value, sought: &Value) -> Result<bool> {
    match of {
        Value::Str(text) => match sought {
            Value::Str(sought) => methods::find(text, sought).map(|at| at.is_some()),
            other => Err(Fail::error(format!(
                "'in <string>' needs a string on its left, not {}",
                other.type_name()
            ))),
        },
        Value::Dict(dict) | Value::View(View::Keys, dict) => {
            dict.get(sought).map(|found| found.is_some())
        }
        Value::List(items) | Value::Tuple(items) => any_equal(items, sought),
        Value::Range(range) => {
            let whole = match Number::of(sought) {
                Some(Number::Int(number)) => number,
                Some(Number::Float(number)) if number.fract() == 0.0 => number as i128,
                _ => return Ok(false),
            };
            let offset = whole.saturating_sub(range.start);
            let at = offset
                .checked_div(range.step)
                .and_then(|at| usize::try_from(at).ok());
            Ok(offset.checked_rem(range.step) == Some(0) && at.is_some_and(|at| at < range.len()))
        }
        other => any_equal(&other.items()?, sought),
    }
}

fn any_equal(items: &[Value], sought: &Value) -> Result<bool> {
    for item in items {
        if equal(item, sought)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sorts by keys, keeping the order of what is equal; an error where two keys have no order.
pub(super) fn sort<T>(items: Vec<(Value, T)>, reverse: bool) -> Result<Vec<T>> {
    let mut slots: Vec<Option<T>> = Vec::with_capacity(items.len());
    let mut keys = Vec::with_capacity(items.len());
    for (key, item) in items {
        keys.push(key);
        slots.push(Some(item));
    }
    let order = merge_sort(&keys, (0..keys.len()).collect(), reverse)?;
    Ok(order
        .into_iter()
        .filter_map(|at| slots[at].take())
        .collect())
}

fn merge_sort(keys: &[Value], order: Vec<usize>, reverse: bool) -> Result<Vec<usize>> {
    if order.len() < 2 {
        return Ok(order);
    }
    let (left, right) = order.split_at(order.len() / 2);
    let left = merge_sort(keys, left.to_vec(), reverse)?;
    let right = merge_sort(keys, right.to_vec(), reverse)?;
    let mut merged = Vec::with_capacity(order.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(first), Some(second)) = (left.peek(), right.peek()) {
        let (before, after) = if reverse {
            (*first, *second)
        } else {
            (*second, *first)
        };
        let swaps = ordered(&keys[before], &keys[after], "<")?;
        merged.extend(if swaps { right.next() } else { left.next() });
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}
