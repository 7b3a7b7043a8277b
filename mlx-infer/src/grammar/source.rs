//! Grammars in the form that llguidance compiles.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use super::schema::{self, MULTIPLE, MULTIPLES, divides};
use crate::grammar::{gbnf, lark};
use crate::request::grammar::Grammar;

/// White space between the parts of JSON: a blank, or a line break with an indentation. More would let a model that
/// prefers white space spend its tokens on it.
const BLANKS: &str = r"\x20|\x0A\x20{0,20}";

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
        Grammar::Lark(text) if gbnf::is_gbnf(text) => return lark(&gbnf::to_lark(text)?, strict),
        Grammar::Lark(text) => return lark(text, strict),
    };
    Ok((top, Vec::new()))
}

pub(super) type Source = (TopLevelGrammar, Vec<String>);

fn json_schema(schema: Value, strict: bool) -> Result<Source, String> {
    let schema = match schema {
        Value::Object(schema) => schema,
        Value::Bool(true) => Default::default(),
        Value::Bool(false) => return Err("false allows no value".to_owned()),
        other => {
            let kind = crate::text::tokenizer::json_kind(&other);
            return Err(format!("expected an object or a boolean, found {kind}"));
        }
    };
    let options = json!({"whitespace_pattern": BLANKS, "lenient": !strict});
    let (schema, ignored) = prepared(schema, strict, options)?;
    Ok((
        TopLevelGrammar::from_json_schema(Value::Object(schema)),
        ignored,
    ))
}

/// The schema in the form that the compiler reads, and the keywords without effect.
fn prepared(
    schema: Map<String, Value>,
    strict: bool,
    options: Value,
) -> Result<(Map<String, Value>, Vec<String>), String> {
    let mut schema = Value::Object(schema);
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
    let Value::Object(schema) = schema else {
        unreachable!("an object stays an object");
    };
    let mut prepared = schema::prepare(&schema, strict)?;
    ignored.append(&mut prepared.ignored);
    prepared.schema.insert(OPTIONS.to_owned(), options);
    Ok((prepared.schema, ignored))
}

/// A grammar in Lark whose schemas are in the form that the compiler reads.
fn lark(text: &str, strict: bool) -> Result<Source, String> {
    let (mut written, mut ignored, mut end) = (String::new(), Vec::new(), 0);
    for (span, value) in lark::schemas(text) {
        let Value::Object(mut schema) = value else {
            continue;
        };
        let given = schema.shift_remove(OPTIONS);
        let mut options = match given {
            None => Map::new(),
            Some(Value::Object(options)) => options,
            Some(other) => return Err(format!("{OPTIONS} must be an object, given {other}")),
        };
        let is_lenient = match options.get("lenient") {
            None => !strict,
            Some(lenient) => *lenient == Value::Bool(true),
        };
        options
            .entry("lenient")
            .or_insert_with(|| is_lenient.into());
        if options.get("whitespace_flexible") != Some(&Value::Bool(false)) {
            options
                .entry("whitespace_pattern")
                .or_insert_with(|| BLANKS.into());
        }
        let (schema, more) = prepared(schema, !is_lenient, options.into())?;
        ignored.extend(more);
        written.push_str(&text[end..span.start]);
        written.push_str(&Value::Object(schema).to_string());
        end = span.end;
    }
    written.push_str(&text[end..]);
    Ok((TopLevelGrammar::from_lark(written), ignored))
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
