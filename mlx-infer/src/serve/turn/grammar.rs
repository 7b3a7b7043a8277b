//! The grammar of an answer: OpenAI's `response_format`, vLLM's `structured_outputs` and its older
//! keys.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::request::grammar::{Constraint, Grammar};
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;

/// Keys inside vLLM's `structured_outputs` that give no grammar. They have no effect here, and are
/// named.
const UNUSED: [&str; 4] = [
    "disable_additional_properties",
    "disable_any_whitespace",
    "disable_fallback",
    "whitespace_pattern",
];

/// The keys that give the grammar of an answer.
const KEYS: [&str; 8] = [
    "response_format",
    "structured_outputs",
    "guided_json",
    "json_schema",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
];

/// The first of these keys that a request has, for errors. Called before the keys are taken.
pub(crate) fn key(fields: &Fields) -> &'static str {
    let key = KEYS.into_iter().find(|key| fields.has(key));
    key.unwrap_or(KEYS[0])
}

/// The keys of vLLM's `structured_outputs`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Structured {
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
}

/// Takes the keys that give the grammar of an answer.
///
/// # Errors
/// They are malformed, or there is more than one.
pub(crate) fn take(fields: &mut Fields) -> Result<Option<Constraint>, ApiError> {
    let key = key(fields);
    let schema = |value: Value| schema(value, key);
    let mut found = Vec::new();
    if let Some(format) = fields.take::<Value>("response_format")?
        && let Some(constraint) = of_format(fields, &format, "response_format")?
    {
        found.push(constraint);
    }
    if let Some(given) = fields.take::<Map<String, Value>>("structured_outputs")? {
        let (unused, given): (Map<_, _>, Map<_, _>) = given
            .into_iter()
            .partition(|(name, value)| value.is_null() || UNUSED.contains(&name.as_str()));
        fields.name_others("structured_outputs", &unused, &[])?;
        let given = Structured::deserialize(Value::Object(given)).map_err(|error| {
            ApiError::bad("structured_outputs", format!("structured_outputs: {error}"))
        })?;
        let any = json!({"type": "object"});
        let object = given.json_object.unwrap_or(false).then_some(any);
        let schema = given.json.or(object).map(schema).transpose()?;
        let rest = [
            given.regex.map(Grammar::Regex),
            given.choice.map(Grammar::Choice),
            given.grammar.map(Grammar::Lark),
        ];
        found.extend([schema].into_iter().chain(rest).flatten().map(lenient));
    }
    let schema_key: Option<Value> = fields.any(&["guided_json", "json_schema"])?;
    found.extend(schema_key.map(schema).transpose()?.map(lenient));
    let rest = [
        fields.any(&["guided_regex"])?.map(Grammar::Regex),
        fields.any(&["guided_choice"])?.map(Grammar::Choice),
        fields
            .any(&["guided_grammar", "grammar"])?
            .map(Grammar::Lark),
    ];
    found.extend(rest.into_iter().flatten().map(lenient));
    match found.len() {
        0 | 1 => Ok(found.pop()),
        n => {
            let message = format!("{n} keys say what the answer must match; expected one");
            Err(ApiError::bad("response_format", message))
        }
    }
}

/// The grammar of a `response_format`; `None` for free text. The schema may stand beside `type` or
/// under `json_schema`. Other keys are named as without effect.
///
/// # Errors
/// It is malformed.
pub(crate) fn of_format(
    fields: &mut Fields,
    format: &Value,
    name: &str,
) -> Result<Option<Constraint>, ApiError> {
    let bad = |message: String| Err(ApiError::bad(name, message));
    let of_schema = ["name", "description", "schema", "strict"];
    if let Some(format) = format.as_object() {
        let known = [&of_schema[..], &["type", "json_schema"]].concat();
        fields.name_others(name, format, &known)?;
    }
    if let Some(inner) = format["json_schema"].as_object() {
        fields.name_others(&format!("{name}.json_schema"), inner, &of_schema)?;
    }
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => {
            let given = format
                .get("schema")
                .filter(|given| !given.is_null())
                .cloned();
            let any = json!({"type": "object"});
            Ok(Some(lenient(Grammar::JsonSchema(given.unwrap_or(any)))))
        }
        Some("json_schema") => {
            let inner = match &format["json_schema"] {
                Value::Null => format,
                inner => inner,
            };
            let strict = match &inner["strict"] {
                Value::Null => false,
                Value::Bool(strict) => *strict,
                other => {
                    return bad(format!(
                        "{name}: strict must be true or false, given {other}"
                    ));
                }
            };
            let Some(schema) = inner.get("schema").filter(|schema| !schema.is_null()) else {
                return bad(format!("{name}: there is no schema"));
            };
            Ok(Some(Constraint {
                strict,
                ..lenient(Grammar::JsonSchema(schema.clone()))
            }))
        }
        Some(kind) => bad(format!(
            "{name}: type must be text, json_object or json_schema, given {kind:?}"
        )),
        None => bad(format!("{name}: there is no type")),
    }
}

/// A schema, given as JSON or as a text with JSON in it.
fn schema(schema: Value, key: &str) -> Result<Grammar, ApiError> {
    match schema {
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(schema) => Ok(Grammar::JsonSchema(schema)),
            Err(error) => {
                let message = format!("{key}: the schema is not valid JSON: {error}");
                Err(ApiError::bad(key, message))
            }
        },
        schema => Ok(Grammar::JsonSchema(schema)),
    }
}

/// A constraint for which unsupported keywords of a schema have no effect; a header names them.
fn lenient(grammar: Grammar) -> Constraint {
    Constraint {
        strict: false,
        ..grammar.into()
    }
}
