//! Converts arguments that are not written as JSON to JSON.

use serde_json::Value;

/// The deepest nesting of `anyOf`, `oneOf` and `allOf` that is searched for types.
const MAX_DEPTH: usize = 8;

/// The types that a schema allows. `None`: it names none.
pub(super) fn types(schema: &Value) -> Option<Vec<&str>> {
    let mut types = Vec::new();
    collect(schema, MAX_DEPTH, &mut types);
    (!types.is_empty()).then_some(types)
}

/// Whether a schema says nothing of the values that it allows, but perhaps describes them in words.
pub(super) fn is_untyped(schema: &Value) -> bool {
    const WORDS: [&str; 6] = [
        "$comment",
        "default",
        "deprecated",
        "description",
        "examples",
        "title",
    ];
    match schema {
        Value::Object(schema) => schema.keys().all(|key| WORDS.contains(&key.as_str())),
        _ => true,
    }
}

fn collect<'s>(schema: &'s Value, depth: usize, types: &mut Vec<&'s str>) {
    if depth == 0 {
        return;
    }
    match &schema["type"] {
        Value::String(one) => types.push(one),
        Value::Array(many) => types.extend(many.iter().filter_map(Value::as_str)),
        _ => {
            let values = schema["enum"].as_array().into_iter().flatten();
            for value in values {
                types.push(type_of(value));
            }
        }
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for inner in schema[key].as_array().into_iter().flatten() {
            collect(inner, depth - 1, types);
        }
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether values of these types are texts, which are given while they are read.
pub(super) fn are_texts(types: &[&str]) -> bool {
    types.iter().all(|kind| matches!(*kind, "string" | "null"))
}

/// A parameter's text as JSON, by the types that the schema allows (`None`: any). `null` in any case is no value, whatever the type, as in
/// Qwen3-Coder's published parser. A text that is of none of the types stays a text.
pub(super) fn by_type(types: Option<&[&str]>, text: &str) -> String {
    let word = text.trim();
    if word.eq_ignore_ascii_case("null") {
        return "null".to_owned();
    }
    let parsed = || serde_json::from_str::<Value>(word).ok();
    let found = match types {
        None => parsed(),
        Some(types) => {
            // From the narrowest type to the widest.
            let order = ["integer", "number", "boolean", "object", "array"];
            let wanted = order.iter().filter(|kind| types.contains(kind));
            wanted.filter_map(|kind| of_type(kind, word)).next()
        }
    };
    found.unwrap_or_else(|| text.into()).to_string()
}

fn of_type(kind: &str, word: &str) -> Option<Value> {
    let parsed = || serde_json::from_str::<Value>(word).ok();
    match kind {
        "integer" => match parsed()? {
            Value::Number(number) if !number.is_f64() => Some(number.into()),
            Value::Number(number) => whole(number.as_f64()?),
            _ => None,
        },
        "number" => match parsed()? {
            Value::Number(number) if number.is_f64() => {
                Some(whole(number.as_f64()?).unwrap_or_else(|| number.into()))
            }
            number => number.is_number().then_some(number),
        },
        "boolean" if word.eq_ignore_ascii_case("true") => Some(true.into()),
        "boolean" if word.eq_ignore_ascii_case("false") => Some(false.into()),
        "object" => parsed().filter(Value::is_object),
        "array" => parsed().filter(Value::is_array),
        _ => None,
    }
}

/// A number without fraction as an integer.
fn whole(number: f64) -> Option<Value> {
    // Integers up to 2^53 are exact.
    (number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0)
        .then(|| Value::from(number as i64))
}

/// A bare word of Gemma's notation: JSON if it parses, else a text.
pub(super) fn bare(word: &str) -> String {
    match serde_json::from_str::<Value>(word) {
        Ok(_) => word.to_owned(),
        Err(_) => Value::from(word).to_string(),
    }
}

/// A text, escaped for the inside of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_of_words_alone_are_untyped() {
        for schema in [
            json!({}),
            json!({"description": "x", "title": "y"}),
            json!(true),
        ] {
            assert!(is_untyped(&schema), "{schema}");
        }
        for schema in [
            json!({"type": "string"}),
            json!({"$ref": "#/$defs/A"}),
            json!({"const": 1}),
        ] {
            assert!(!is_untyped(&schema), "{schema}");
        }
    }

    #[test]
    fn texts_become_values_of_their_type() {
        for (schema, text, value) in [
            (json!({"type": "string"}), "3", "\"3\""),
            (json!({"type": "string"}), "NULL", "null"),
            (json!({"type": "integer"}), "3", "3"),
            (json!({"type": "integer"}), "3.0", "3"),
            (json!({"type": "integer"}), "3.5", "\"3.5\""),
            (json!({"type": "integer"}), "three", "\"three\""),
            (json!({"type": "number"}), "3.5", "3.5"),
            (json!({"type": "number"}), "-4.0", "-4"),
            (json!({"type": "boolean"}), "True", "true"),
            (json!({"type": "boolean"}), "maybe", "\"maybe\""),
            (json!({"type": ["null", "integer"]}), "null", "null"),
            (json!({"type": "object"}), "{\"a\": [1]}", "{\"a\":[1]}"),
            (json!({"type": "array"}), "[1, \"b\"]", "[1,\"b\"]"),
            (
                json!({"type": "object"}),
                "{\"a\": [1",
                "\"{\\\"a\\\": [1\"",
            ),
            (
                json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
                "7",
                "7",
            ),
            (json!({"enum": [1, 2]}), "2", "2"),
            (json!({}), "7", "7"),
            (json!({}), "seven", "\"seven\""),
        ] {
            assert_eq!(
                by_type(types(&schema).as_deref(), text),
                value,
                "{schema} {text}"
            );
        }
    }
}
