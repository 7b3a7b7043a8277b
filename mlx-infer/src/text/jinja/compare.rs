//! Equality, order and membership, as in Python.

use std::cmp::Ordering;
use std::rc::Rc;

use super::value::{Range, Value, View};
use super::{Fail, Result, budget, strings};

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
    budget::work(1)?;
    if let (Some(left), Some(right)) = (Number::of(left), Number::of(right)) {
        return Ok(left.order(right) == Some(Ordering::Equal));
    }
    Ok(match (left, right) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(left), Value::Str(right)) => {
            budget::copy(left.len().min(right.len()))?;
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

fn left_items(view: &View, dict: &Rc<super::dict::Dict>) -> Result<Vec<Value>> {
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
    budget::work(1)?;
    if let (Some(left), Some(right)) = (Number::of(left), Number::of(right)) {
        return Ok(left.order(right));
    }
    match (left, right) {
        (Value::Undefined(what), _) | (_, Value::Undefined(what)) => Err(Fail::error(&**what)),
        (Value::Str(left), Value::Str(right)) => {
            budget::copy(left.len().min(right.len()))?;
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
            Value::Str(sought) => strings::find(text, sought).map(|at| at.is_some()),
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
