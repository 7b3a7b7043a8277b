//! Filters: the names after `|`.

use super::ast::Binary;
use super::calls::Args;
use super::compare::{Number, index};
use super::machine::Machine;
use super::methods::number;
use super::value::{Str, Value};
use super::{
    Fail, Result, arithmetic, attributes, budget, json, lists, number as numbers, show, strings,
    text_filters,
};

/// Filters of jinja2 that are refused by name: no chat template uses them.
const REFUSED: [&str; 12] = [
    "batch",
    "center",
    "filesizeformat",
    "forceescape",
    "pprint",
    "random",
    "slice",
    "striptags",
    "urlencode",
    "urlize",
    "wordwrap",
    "xmlattr",
];

const ON_LISTS: [&str; 20] = [
    "dictsort",
    "first",
    "groupby",
    "items",
    "join",
    "last",
    "list",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "sort",
    "sum",
    "unique",
    "count",
    "length",
];

const ON_TEXTS: [&str; 11] = [
    "capitalize",
    "format",
    "indent",
    "lower",
    "replace",
    "title",
    "trim",
    "truncate",
    "upper",
    "wordcount",
    "string",
];

const ON_VALUES: [&str; 11] = [
    "abs", "attr", "d", "default", "e", "escape", "float", "int", "round", "safe", "tojson",
];

pub(super) fn is_known(name: &str) -> bool {
    [&ON_LISTS[..], &ON_TEXTS, &ON_VALUES, &REFUSED]
        .concat()
        .contains(&name)
}

pub(super) fn call(
    machine: &mut Machine<'_>,
    name: &str,
    value: &Value,
    args: &Args,
) -> Result<Value> {
    budget::work(1)?;
    if ON_LISTS.contains(&name) {
        return lists::call(machine, name, value, args);
    }
    if ON_TEXTS.contains(&name) {
        return text_filters::call(name, value, args);
    }
    match name {
        "abs" => {
            args.none(name)?;
            match number(name, value)? {
                Number::Int(number) => Ok(Value::Int(number.saturating_abs())),
                Number::Float(number) => Ok(Value::Float(number.abs())),
            }
        }
        "attr" => {
            let [attribute] = args.bind(name, ["name"], 1)?;
            attributes::only_attribute(value, strings::string(name, attribute.as_ref())?)
        }
        "d" | "default" => {
            let [default, boolean] = args.bind(name, ["default_value", "boolean"], 0)?;
            let falsy = boolean.is_some_and(|flag| flag.is_true()) && !value.is_true();
            if value.is_undefined() || falsy {
                return default.map_or_else(|| Value::text(""), Ok);
            }
            Ok(value.clone())
        }
        "e" | "escape" => {
            args.none(name)?;
            let text = show::str_of(value)?;
            if text.is_safe() {
                return Ok(Value::Str(text));
            }
            Str::with(show::escape(&text)?.into(), true).map(Value::Str)
        }
        "safe" => {
            args.none(name)?;
            Str::with((*show::str_of(value)?).into(), true).map(Value::Str)
        }
        "float" => float(value, args),
        "int" => int(value, args),
        "round" => round(value, args),
        "tojson" => json::tojson(value, args),
        _ if REFUSED.contains(&name) => {
            Err(Fail::error(format!("the filter {name} is not supported")))
        }
        _ => Err(Fail::error(format!("no filter named {name:?}"))),
    }
}

/// `int(default=0, base=10)`: the default for values that are not integers.
fn int(value: &Value, args: &Args) -> Result<Value> {
    let [default, base] = args.bind("int", ["default", "base"], 0)?;
    let default = default.unwrap_or(Value::Int(0));
    let base = base.as_ref().map_or(Ok(10), index)?;
    let Some(base) = u32::try_from(base)
        .ok()
        .filter(|base| *base == 0 || (2..=36).contains(base))
    else {
        return Err(Fail::error(format!(
            "int: base is {base}; expected 0 or 2 to 36"
        )));
    };
    Ok(match value {
        Value::Undefined(what) => return Err(Fail::error(&**what)),
        Value::Bool(_) | Value::Int(_) => Value::Int(index(value)?),
        Value::Float(number) if number.is_nan() => default,
        Value::Float(number) => Value::Int(numbers::whole(*number)?),
        Value::Str(text) => {
            budget::scan(text.len())?;
            if let Some(whole) = numbers::parse_int(text, base)? {
                return Ok(Value::Int(whole));
            }
            match numbers::parse_float(text).filter(|number| number.is_finite()) {
                Some(number) => Value::Int(numbers::whole(number)?),
                None => default,
            }
        }
        _ => default,
    })
}

/// `float(default=0.0)`.
fn float(value: &Value, args: &Args) -> Result<Value> {
    let [default] = args.bind("float", ["default"], 0)?;
    let default = default.unwrap_or(Value::Float(0.0));
    Ok(match value {
        Value::Undefined(what) => return Err(Fail::error(&**what)),
        Value::Str(text) => {
            budget::scan(text.len())?;
            numbers::parse_float(text).map_or(default, Value::Float)
        }
        other => Number::of(other).map_or(default, |number| Value::Float(number.as_f64())),
    })
}

/// `round(precision=0, method='common')`.
fn round(value: &Value, args: &Args) -> Result<Value> {
    let [precision, method] = args.bind("round", ["precision", "method"], 0)?;
    let precision = precision.unwrap_or(Value::Int(0));
    let method = method.map_or_else(|| Str::new("common"), |method| show::str_of(&method))?;
    let number = number("round", value)?;
    match (&*method, number) {
        ("common", Number::Int(number)) => {
            let digits = index(&precision)?;
            Ok(Value::Int(numbers::round_int(number, digits)))
        }
        ("common", Number::Float(number)) => {
            Ok(Value::Float(numbers::round(number, index(&precision)?)))
        }
        ("ceil" | "floor", _) => {
            let scale = arithmetic::binary(Binary::Power, &Value::Int(10), &precision)?;
            let scaled = arithmetic::binary(Binary::Multiply, value, &scale)?;
            let scaled = Number::of(&scaled).map_or(f64::NAN, Number::as_f64);
            let whole = if &*method == "ceil" {
                scaled.ceil()
            } else {
                scaled.floor()
            };
            let whole = Value::Int(numbers::whole(whole)?);
            arithmetic::binary(Binary::Divide, &whole, &scale)
        }
        _ => Err(Fail::error("round: method must be common, ceil or floor")),
    }
}
