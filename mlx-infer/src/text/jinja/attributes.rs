//! `value.name`, `value[key]` and `value[start:stop:step]`, by the rules of jinja2's sandbox.

use std::rc::Rc;

use super::operators::index;
use super::values::{BoundMacro, Object, Range, Str, Value};
use super::{Fail, Result, limits};

/// Methods that templates may call, and those that would change a value.
const STR: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const LIST: [&str; 3] = ["copy", "count", "index"];
const LIST_CHANGES: [&str; 8] = [
    "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
];
const TUPLE: [&str; 2] = ["count", "index"];
const DICT: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
const DICT_CHANGES: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const INT: [&str; 5] = [
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "is_integer",
];
const FLOAT: [&str; 3] = ["as_integer_ratio", "conjugate", "is_integer"];
const LOOP: [&str; 2] = ["changed", "cycle"];
const CYCLER: [&str; 2] = ["next", "reset"];

/// `value.name`: an attribute, else the value under the key.
pub(super) fn attribute(of: &Value, name: &str) -> Result<Value> {
    if let Value::Undefined(what) = of {
        return Err(Fail::error(&**what));
    }
    if let Some(found) = own(of, name)? {
        return Ok(found);
    }
    if let Value::Dict(dict) = of
        && let Some(found) = dict.get_text(name)
    {
        return Ok(found.clone());
    }
    Ok(missing(of, name))
}

/// `value[key]`: the value under the key, else an attribute of that name.
pub(super) fn item(of: &Value, key: &Value) -> Result<Value> {
    if let Value::Undefined(what) = of {
        return Err(Fail::error(&**what));
    }
    let found = match (of, key) {
        (Value::Dict(dict), Value::Str(name)) => dict.get_text(name).cloned(),
        // A value that cannot be a key is not in the dictionary.
        (Value::Dict(dict), key) => match dict.get(key) {
            Ok(found) => found.cloned(),
            Err(Fail::Error(..)) => None,
            Err(limit) => return Err(limit),
        },
        (_, Value::Int(_) | Value::Bool(_)) => at(of, index(key)?)?,
        _ => None,
    };
    if let Some(found) = found {
        return Ok(found);
    }
    if let Value::Str(name) = key {
        if let Some(found) = own(of, name)? {
            return Ok(found);
        }
        return Ok(missing(of, name));
    }
    Ok(Value::undefined(format!(
        "{} object has no such element",
        of.type_name()
    )))
}

/// The item at an index. A negative index counts from the end.
fn at(of: &Value, index: i128) -> Result<Option<Value>> {
    let place = |count: usize| {
        let index = if index < 0 {
            index + count as i128
        } else {
            index
        };
        usize::try_from(index).ok().filter(|at| *at < count)
    };
    Ok(match of {
        Value::List(items) | Value::Tuple(items) => place(items.len()).map(|at| items[at].clone()),
        Value::Range(range) => place(range.len()).map(|at| Value::Int(range.at(at))),
        Value::Str(text) => {
            let found = if text.is_ascii() {
                place(text.len()).map(|at| char::from(text.as_bytes()[at]))
            } else {
                limits::scan(text.len())?;
                place(text.chars().count()).and_then(|at| text.chars().nth(at))
            };
            match found {
                Some(c) => Some(Value::Str(Str::with(c.to_string().into(), text.is_safe())?)),
                None => None,
            }
        }
        _ => None,
    })
}

fn missing(of: &Value, name: &str) -> Value {
    // A long name is a key from the conversation, so it is shortened.
    let shown: String = name.chars().take(80).collect();
    let kind = match of {
        Value::None => "None",
        other => other.type_name(),
    };
    Value::undefined(format!("'{kind}' object has no attribute '{shown}'"))
}

/// An attribute of the value itself.
fn own(of: &Value, name: &str) -> Result<Option<Value>> {
    if let Value::Object(object) = of {
        match &**object {
            Object::Namespace(attributes) => {
                limits::work(1)?;
                let attributes = attributes.borrow();
                let found = attributes.iter().find(|(found, _)| **found == *name);
                return Ok(found.map(|(_, value)| value.clone()));
            }
            Object::Loop(state) => {
                if let Some(found) = of_loop(state, name) {
                    return Ok(Some(found));
                }
            }
            Object::Cycler(items, next) if name == "current" => {
                return Ok(Some(items[next.get()].clone()));
            }
            _ => {}
        }
    }
    let (methods, changes): (&[&'static str], &[&str]) = match of {
        Value::Str(_) => (&STR, &[]),
        Value::List(_) => (&LIST, &LIST_CHANGES),
        Value::Tuple(_) => (&TUPLE, &[]),
        Value::Dict(_) => (&DICT, &DICT_CHANGES),
        Value::Int(_) | Value::Bool(_) => (&INT, &[]),
        Value::Float(_) => (&FLOAT, &[]),
        Value::Range(_) => (&TUPLE, &[]),
        Value::Object(object) => match &**object {
            Object::Loop(_) => (&LOOP, &[]),
            Object::Cycler(..) => (&CYCLER, &[]),
            Object::Function(super::values::Function::Dict) => (&["fromkeys"], &[]),
            _ => (&[], &[]),
        },
        _ => (&[], &[]),
    };
    if let Some(method) = methods.iter().find(|method| **method == name) {
        return Ok(Some(Value::object(Object::Method(of.clone(), method))));
    }
    if changes.contains(&name) {
        return Ok(Some(Value::undefined(format!(
            "{name} would change a {}, which a template may not",
            of.type_name()
        ))));
    }
    Ok(match (of, name) {
        (Value::Tuple(group), "grouper") if group.is_group => Some(group[0].clone()),
        (Value::Tuple(group), "list") if group.is_group => Some(group[1].clone()),
        (Value::Range(range), "start") => Some(Value::Int(range.start)),
        (Value::Range(range), "stop") => Some(Value::Int(range.stop)),
        (Value::Range(range), "step") => Some(Value::Int(range.step)),
        (Value::Int(_) | Value::Bool(_), "real" | "numerator") => Some(Value::Int(index(of)?)),
        (Value::Int(_) | Value::Bool(_), "imag") => Some(Value::Int(0)),
        (Value::Int(_) | Value::Bool(_), "denominator") => Some(Value::Int(1)),
        (Value::Float(_), "real") => Some(of.clone()),
        (Value::Float(_), "imag") => Some(Value::Float(0.0)),
        (Value::Object(object), name) => match &**object {
            Object::Macro(bound) => of_macro(bound, name),
            _ => None,
        },
        _ => None,
    })
}

fn of_macro(bound: &BoundMacro, name: &str) -> Option<Value> {
    let [varargs, kwargs, caller] = bound.uses;
    let is_caller = |name: &Value| name.as_str() == Some("caller");
    Some(match name {
        "name" => bound.name.clone().map_or(Value::None, Value::Str),
        "arguments" => Value::Tuple(Rc::clone(&bound.parameters)),
        "catch_varargs" => Value::Bool(varargs),
        "catch_kwargs" => Value::Bool(kwargs),
        "caller" => Value::Bool(caller),
        "explicit_caller" => Value::Bool(bound.parameters.iter().any(is_caller)),
        _ => return None,
    })
}

fn of_loop(state: &super::values::Loop, name: &str) -> Option<Value> {
    let (index, length) = (state.index.get(), state.items.len());
    let count = |number: usize| Some(Value::Int(number as i128));
    match name {
        "index" => count(index + 1),
        "index0" => count(index),
        "revindex" => count(length - index),
        "revindex0" => count(length - index - 1),
        "first" => Some(Value::Bool(index == 0)),
        "last" => Some(Value::Bool(index + 1 == length)),
        "length" => count(length),
        "depth" => count(state.depth as usize + 1),
        "depth0" => count(state.depth as usize),
        "previtem" => Some(match index.checked_sub(1) {
            Some(before) => state.items[before].clone(),
            None => Value::undefined("there is no previous item"),
        }),
        "nextitem" => Some(match state.items.get(index + 1) {
            Some(item) => item.clone(),
            None => Value::undefined("there is no next item"),
        }),
        _ => None,
    }
}

/// The parts of an attribute path: `a.b.0`.
pub(super) fn path(attribute: &Value) -> Result<Vec<Value>> {
    match attribute {
        Value::None => Ok(Vec::new()),
        Value::Str(text) => {
            limits::scan(text.len())?;
            let part = |part: &str| {
                let digits = !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
                match part.parse() {
                    Ok(number) if digits => Ok(Value::Int(number)),
                    _ => Value::text(part),
                }
            };
            text.split('.').map(part).collect()
        }
        other => Ok(vec![other.clone()]),
    }
}

/// The value at the end of a path, with `default` for missing values.
pub(super) fn follow(value: &Value, path: &[Value], default: Option<&Value>) -> Result<Value> {
    let mut value = value.clone();
    for part in path {
        value = item(&value, part)?;
        if let (true, Some(default)) = (value.is_undefined(), default) {
            value = default.clone();
        }
    }
    Ok(value)
}

/// `value|attr(name)`: an attribute, never the value under a key.
pub(super) fn only_attribute(of: &Value, name: &str) -> Result<Value> {
    if let Value::Undefined(what) = of {
        return Err(Fail::error(&**what));
    }
    Ok(own(of, name)?.unwrap_or_else(|| missing(of, name)))
}

/// Whether two values are the same object, or the same small value.
pub(super) fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::None, Value::None) => true,
        (Value::Bool(left), Value::Bool(right)) => left == right,
        (Value::Int(left), Value::Int(right)) => left == right,
        (Value::Float(left), Value::Float(right)) => left == right,
        (Value::Str(left), Value::Str(right)) => left.same(right),
        (Value::List(left), Value::List(right)) | (Value::Tuple(left), Value::Tuple(right)) => {
            Rc::ptr_eq(left, right)
        }
        (Value::Dict(left), Value::Dict(right)) => Rc::ptr_eq(left, right),
        (Value::Object(left), Value::Object(right)) => Rc::ptr_eq(left, right),
        _ => false,
    }
}

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
            limits::scan(places.len())?;
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
            limits::scan(text.len())?;
            let chars: Vec<char> = text.chars().collect();
            let places = places(chars.len(), start, stop, step);
            limits::scan(places.len())?;
            let slice: String = (0..places.len())
                .map(|at| chars[places.at(at) as usize])
                .collect();
            Str::with(slice.into(), text.is_safe()).map(Value::Str)
        }
        Value::List(items) | Value::Tuple(items) => {
            let places = places(items.len(), start, stop, step);
            limits::items(places.len())?;
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
