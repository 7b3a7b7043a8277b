//! Tests: the names after `is`.

use super::attributes::same;
use super::calls::Args;
use super::values::{Object, Value};
use super::{Fail, Result, filters, limits, methods, nodes, operators, repr};

const NAMES: [&str; 38] = [
    "odd",
    "even",
    "divisibleby",
    "defined",
    "undefined",
    "filter",
    "test",
    "none",
    "boolean",
    "false",
    "true",
    "integer",
    "float",
    "lower",
    "upper",
    "string",
    "mapping",
    "number",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    ">=",
    "ge",
    "<",
    "lt",
    "lessthan",
    "<=",
];

pub(super) fn call(name: &str, value: &Value, args: &Args) -> Result<bool> {
    let one = |parameter: &'static str| -> Result<Value> {
        let [other] = args.bind(name, [parameter], 1)?;
        Ok(other.unwrap_or(Value::None))
    };
    let alone = |answer: bool| args.none(name).map(|()| answer);
    let rest = |divisor: &Value| operators::binary(nodes::Binary::Modulo, value, divisor);
    match name {
        "odd" => operators::equal(&rest(&Value::Int(2))?, &Value::Int(1)),
        "even" => operators::equal(&rest(&Value::Int(2))?, &Value::Int(0)),
        "divisibleby" => operators::equal(&rest(&one("num")?)?, &Value::Int(0)),
        "defined" => alone(!value.is_undefined()),
        "undefined" => alone(value.is_undefined()),
        "filter" => alone(value.as_str().is_some_and(filters::is_known)),
        "test" => alone(
            value
                .as_str()
                .is_some_and(|name| name == "le" || NAMES.contains(&name)),
        ),
        "none" => alone(matches!(value, Value::None)),
        "boolean" => alone(matches!(value, Value::Bool(_))),
        "false" => alone(matches!(value, Value::Bool(false))),
        "true" => alone(matches!(value, Value::Bool(true))),
        "integer" => alone(matches!(value, Value::Int(_))),
        "float" => alone(matches!(value, Value::Float(_))),
        "lower" | "upper" => {
            let text = repr::str_of(value)?;
            limits::scan(text.len())?;
            alone(methods::is(
                &text,
                if name == "lower" {
                    "islower"
                } else {
                    "isupper"
                },
            ))
        }
        "string" => alone(matches!(value, Value::Str(_))),
        "mapping" => alone(matches!(value, Value::Dict(_))),
        "number" => alone(matches!(
            value,
            Value::Bool(_) | Value::Int(_) | Value::Float(_)
        )),
        "sequence" => alone(matches!(
            value,
            Value::Undefined(_)
                | Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(_)
        )),
        "iterable" => {
            alone(value.is_iterable() || matches!(value, Value::Object(it) if is_loop(it)))
        }
        "callable" => alone(match value {
            Value::Undefined(_) => true,
            Value::Object(object) => !matches!(**object, Object::Namespace(_) | Object::Cycler(..)),
            _ => false,
        }),
        "sameas" => Ok(same(value, &one("other")?)),
        "escaped" => alone(matches!(value, Value::Str(text) if text.is_safe())),
        "in" => operators::contains(&one("seq")?, value),
        "==" | "eq" | "equalto" => operators::equal(value, &one("other")?),
        "!=" | "ne" => operators::equal(value, &one("other")?).map(|equal| !equal),
        ">" | "gt" | "greaterthan" => operators::ordered(value, &one("other")?, ">"),
        ">=" | "ge" => operators::ordered(value, &one("other")?, ">="),
        "<" | "lt" | "lessthan" => operators::ordered(value, &one("other")?, "<"),
        "<=" | "le" => operators::ordered(value, &one("other")?, "<="),
        _ => Err(Fail::error(format!("no test named {name:?}"))),
    }
}

fn is_loop(object: &Object) -> bool {
    matches!(object, Object::Loop(_))
}
