//! Methods of values that are not strings.

use super::budget;
use super::calls::Args;
use super::compare::{self, Number, index};
use super::dict::Dict;
use super::machine::Machine;
use super::number::ratio;
use super::value::{Object, Value, View};
use super::{Fail, Result, strings};

pub(super) fn call(
    _: &mut Machine<'_>,
    of: &Value,
    method: &'static str,
    args: &Args,
) -> Result<Value> {
    match of {
        Value::Str(text) => strings::call(text, method, args),
        Value::List(items) | Value::Tuple(items) => on_items(items, of, method, args),
        Value::Range(_) => {
            let items = of.items()?;
            on_items(&items, of, method, args)
        }
        Value::Dict(dict) => match method {
            "keys" | "values" | "items" => {
                args.none(method)?;
                let view = match method {
                    "keys" => View::Keys,
                    "values" => View::Values,
                    _ => View::Items,
                };
                Ok(Value::View(view, std::rc::Rc::clone(dict)))
            }
            "copy" => args.none(method).map(|()| of.clone()),
            "get" => {
                let [key, default] = args.bind(method, ["key", "default"], 1)?;
                if !args.named.is_empty() {
                    return Err(Fail::error("get has no named arguments"));
                }
                let found = dict.get(&key.unwrap_or(Value::None))?;
                Ok(found.cloned().or(default).unwrap_or(Value::None))
            }
            _ => from_keys(args),
        },
        Value::Int(_) | Value::Bool(_) => {
            args.none(method)?;
            let number = index(of)?;
            Ok(match method {
                "bit_length" => Value::Int((128 - number.unsigned_abs().leading_zeros()).into()),
                "bit_count" => Value::Int(number.unsigned_abs().count_ones().into()),
                "is_integer" => Value::Bool(true),
                "as_integer_ratio" => {
                    return Value::tuple(vec![Value::Int(number), Value::Int(1)]);
                }
                _ => Value::Int(number),
            })
        }
        Value::Float(number) => {
            args.none(method)?;
            Ok(match method {
                "is_integer" => Value::Bool(number.is_finite() && number.fract() == 0.0),
                "as_integer_ratio" => {
                    let (above, below) = ratio(*number)?;
                    return Value::tuple(vec![Value::Int(above), Value::Int(below)]);
                }
                _ => of.clone(),
            })
        }
        Value::Object(object) => match &**object {
            Object::Loop(state) if method == "cycle" => {
                if !args.named.is_empty() {
                    return Err(Fail::error("cycle has no named arguments"));
                }
                let count = args.positional.len();
                match state.index.get().checked_rem(count) {
                    Some(at) => Ok(args.positional[at].clone()),
                    None => Err(Fail::error("no items for cycling given")),
                }
            }
            Object::Loop(state) => {
                let now = Value::tuple(args.positional.clone())?;
                let before = state.changed.replace(Some(now.clone()));
                let same = match before {
                    Some(before) => compare::equal(&before, &now)?,
                    None => false,
                };
                Ok(Value::Bool(!same))
            }
            Object::Cycler(items, next) => {
                args.none(method)?;
                let at = next.get();
                next.set(if method == "reset" {
                    0
                } else {
                    (at + 1) % items.len()
                });
                Ok(if method == "reset" {
                    Value::None
                } else {
                    items[at].clone()
                })
            }
            _ => from_keys(args),
        },
        other => Err(Fail::error(format!(
            "{} has no method {method}",
            other.type_name()
        ))),
    }
}

fn on_items(items: &[Value], of: &Value, method: &str, args: &Args) -> Result<Value> {
    if method == "copy" {
        return args.none(method).map(|()| of.clone());
    }
    let [sought, start, stop] = args.bind(method, ["value", "start", "stop"], 1)?;
    let sought = sought.unwrap_or(Value::None);
    let place = |bound: Option<Value>, default: usize| -> Result<usize> {
        let Some(bound) = bound else {
            return Ok(default);
        };
        let bound = index(&bound)?;
        let bound = if bound < 0 {
            bound + items.len() as i128
        } else {
            bound
        };
        Ok(usize::try_from(bound.max(0))
            .unwrap_or(usize::MAX)
            .min(items.len()))
    };
    let (from, to) = (place(start, 0)?, place(stop, items.len())?);
    let mut count = 0;
    for (at, item) in items.iter().enumerate().take(to).skip(from) {
        if compare::equal(item, &sought)? {
            if method == "index" {
                return Ok(Value::Int(at as i128));
            }
            count += 1;
        }
    }
    if method == "index" {
        return Err(Fail::error("the value is not in the list"));
    }
    Ok(Value::Int(count))
}

/// `dict.fromkeys(keys, value)`.
fn from_keys(args: &Args) -> Result<Value> {
    let [keys, value] = args.bind("fromkeys", ["iterable", "value"], 1)?;
    let value = value.unwrap_or(Value::None);
    let keys = keys.unwrap_or(Value::None).items()?;
    budget::items(keys.len())?;
    Dict::new(keys.into_iter().map(|key| (key, value.clone()))).map(Value::Dict)
}

/// A number, or an error that names the filter.
pub(super) fn number(filter: &str, value: &Value) -> Result<Number> {
    match value {
        Value::Undefined(what) => Err(Fail::error(&**what)),
        other => Number::of(other).ok_or_else(|| {
            Fail::error(format!(
                "{filter}: expected a number, found {}",
                other.type_name()
            ))
        }),
    }
}
