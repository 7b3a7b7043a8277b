//! Operators on numbers, texts and lists.

use super::ast::Binary;
use super::budget::{self, Builder};
use super::compare::Number;
use super::number::too_large;
use super::value::{Seq, Str, Value};
use super::{Fail, Result, percent, show};

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
        return percent::format(format, right);
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
            out.push(&show::escape(part)?)?;
        } else {
            out.push(part)?;
        }
    }
    Str::with(out.finish().into(), safe)
}

fn joined(left: &[Value], right: &[Value]) -> Result<std::rc::Rc<Seq>> {
    budget::items(left.len() + right.len())?;
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
            budget::items(items.len().saturating_mul(times))?;
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
