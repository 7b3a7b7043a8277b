//! `value[start:stop:step]`.

use super::budget;
use super::compare::index;
use super::value::{Range, Str, Value};
use super::{Fail, Result};

/// A bound: none where it is `none`.
pub(super) fn bound(value: &Value) -> Result<Option<i128>> {
    match value {
        Value::None => Ok(None),
        other => index(other).map(Some),
    }
}

pub(super) fn slice(of: &Value, [start, stop, step]: [Option<i128>; 3]) -> Result<Value> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Fail::error("the step of a slice must not be 0"));
    }
    match of {
        Value::Str(text) if text.is_ascii() => {
            let places = places(text.len(), start, stop, step);
            budget::scan(places.len())?;
            let slice = if step == 1 {
                let from = usize::try_from(places.start).unwrap_or(0);
                text[from..from + places.len()].to_owned()
            } else {
                let byte = |at: usize| char::from(text.as_bytes()[at]);
                (0..places.len())
                    .map(|at| byte(places.at(at) as usize))
                    .collect()
            };
            Str::with(slice.into(), text.is_safe()).map(Value::Str)
        }
        Value::Str(text) => {
            budget::scan(text.len())?;
            let chars: Vec<char> = text.chars().collect();
            let places = places(chars.len(), start, stop, step);
            budget::scan(places.len())?;
            let slice: String = (0..places.len())
                .map(|at| chars[places.at(at) as usize])
                .collect();
            Str::with(slice.into(), text.is_safe()).map(Value::Str)
        }
        Value::List(items) | Value::Tuple(items) => {
            let places = places(items.len(), start, stop, step);
            budget::items(places.len())?;
            let slice = (0..places.len())
                .map(|at| items[places.at(at) as usize].clone())
                .collect();
            match of {
                Value::List(_) => Value::list(slice),
                _ => Value::tuple(slice),
            }
        }
        Value::Range(range) => {
            let places = places(range.len(), start, stop, step);
            let place = |at: i128| range.start.saturating_add(range.step.saturating_mul(at));
            Ok(Value::Range(Range {
                start: place(places.start),
                stop: place(places.stop),
                step: range.step.saturating_mul(places.step),
            }))
        }
        Value::Undefined(what) => Err(Fail::error(&**what)),
        other => Err(Fail::error(format!(
            "a value of type {} has no slices",
            other.type_name()
        ))),
    }
}

/// The places that a slice of so many items has.
fn places(count: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> Range {
    let count = count as i128;
    let (lowest, highest) = if step > 0 {
        (0, count)
    } else {
        (-1, count - 1)
    };
    let clamp = |bound: i128| {
        let bound = if bound < 0 {
            bound.saturating_add(count)
        } else {
            bound
        };
        bound.clamp(lowest, highest)
    };
    let (first, last) = if step > 0 {
        (lowest, highest)
    } else {
        (highest, lowest)
    };
    Range {
        start: start.map_or(first, clamp),
        stop: stop.map_or(last, clamp),
        step,
    }
}
