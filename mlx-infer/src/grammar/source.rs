//! Grammars in the form that llguidance compiles.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use super::Grammar;

/// White space of JSON, at most 32 characters, because a model that prefers white space would never end otherwise.
const BLANKS: &str = r"[\x20\x0A\x0D\x09]{1,32}";

/// The key of a schema that sets llguidance's options.
const OPTIONS: &str = "x-guidance";

/// The grammar, and the keywords that were removed from a schema.
///
/// # Errors
/// The error in the grammar.
pub(super) fn source(grammar: &Grammar, strict: bool) -> Result<Source, String> {
    let top = match grammar {
        Grammar::JsonSchema(schema) => return json_schema(schema.clone(), strict),
        Grammar::Regex(regex) => TopLevelGrammar::from_regex(whole(regex)?),
        Grammar::Choice(texts) => choice(texts)?,
        Grammar::Lark(text) if text.trim().is_empty() => return Err("it is empty".to_owned()),
        Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
    };
    Ok((top, Vec::new()))
}

pub(super) type Source = (TopLevelGrammar, Vec<String>);

fn json_schema(mut schema: Value, strict: bool) -> Result<Source, String> {
    let mut ignored = Vec::new();
    if !divides(&schema) {
        if strict {
            return Err(format!(
                "{MULTIPLE}: the least common multiple of all, in units of their last decimal place, must be at most {MULTIPLES} (without strict they are without effect)"
            ));
        }
        each_object(&mut schema, &mut |entries| {
            if entries.get(MULTIPLE).is_some_and(Value::is_number) {
                entries.shift_remove(MULTIPLE);
            }
        });
        ignored.push(MULTIPLE.to_owned());
    }
    let mut schema = match schema {
        Value::Object(schema) => schema,
        Value::Bool(true) => Default::default(),
        Value::Bool(false) => return Err("false allows no value".to_owned()),
        other => {
            let kind = crate::text::tokenizer::json_kind(&other);
            return Err(format!("expected an object or a boolean, found {kind}"));
        }
    };
    let options = json!({"whitespace_pattern": BLANKS, "lenient": !strict});
    schema.insert(OPTIONS.to_owned(), options);
    let top = TopLevelGrammar::from_json_schema(Value::Object(schema));
    Ok((top, ignored))
}

const MULTIPLE: &str = "multipleOf";

/// The number of states of an automaton for multiples of a number. 100,000 states take a second.
const MULTIPLES: u64 = 100_000;

/// Whether the automaton for multiples of all numbers in the schema is small. Intersected schemas have one automaton.
fn divides(schema: &Value) -> bool {
    let mut numbers = Vec::new();
    each_object(&mut schema.clone(), &mut |entries| {
        numbers.extend(entries.get(MULTIPLE).and_then(Value::as_f64));
    });
    let units = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6].into_iter();
    let mut multiples = units.map(|unit| {
        numbers.iter().try_fold(1, |multiple, number| {
            let whole = (number * unit).round();
            let is_whole = (number * unit - whole).abs() < 1e-6 * whole.abs();
            if !is_whole || !(1.0..=MULTIPLES as f64).contains(&whole) {
                return None;
            }
            let both = multiple / common(multiple, whole as u64) * whole as u64;
            (both <= MULTIPLES).then_some(both)
        })
    });
    multiples.any(|multiple| multiple.is_some())
}

/// The greatest common divisor.
fn common(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        _ => common(b, a % b),
    }
}

/// Calls `visit` with each object that may be a subschema.
fn each_object(value: &mut Value, visit: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(entries) => {
            visit(entries);
            for (key, value) in entries.iter_mut() {
                if !["const", "enum", "default", "examples"].contains(&key.as_str()) {
                    each_object(value, visit);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| each_object(item, visit)),
        _ => {}
    }
}

/// The expression without the anchors of the whole text, because it always matches the whole text.
fn whole(regex: &str) -> Result<&str, String> {
    let escapes = |text: &str| text.len() - text.trim_end_matches('\\').len();
    if escapes(regex) % 2 == 1 {
        return Err("it ends with an unfinished escape".to_owned());
    }
    let rest = regex.strip_prefix('^').unwrap_or(regex);
    let rest = match rest.strip_suffix('$') {
        Some(before) if escapes(before).is_multiple_of(2) => before,
        _ => rest,
    };
    match rest.is_empty() {
        true => Err("it matches the empty text only".to_owned()),
        false => Ok(rest),
    }
}

fn choice(texts: &[String]) -> Result<TopLevelGrammar, String> {
    if texts.is_empty() {
        return Err("the list is empty; expected at least one text".to_owned());
    }
    if let Some(at) = texts.iter().position(String::is_empty) {
        return Err(format!(
            "text {at} is empty; expected at least one character"
        ));
    }
    // Strings of Lark have the same syntax as JSON strings.
    let texts: Vec<String> = texts
        .iter()
        .map(|text| Value::from(text.as_str()).to_string())
        .collect();
    let lark = format!("start: CHOICE\nCHOICE: {}", texts.join(" | "));
    Ok(TopLevelGrammar::from_lark(lark))
}
