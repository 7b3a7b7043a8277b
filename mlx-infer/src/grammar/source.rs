//! Grammars in the form that llguidance compiles.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::Grammar;

/// Blanks of JSON, at most 32 of them: a model that prefers blanks would otherwise never end.
const BLANKS: &str = r"[\x20\x0A\x0D\x09]{1,32}";

/// The key of a schema that sets llguidance's options.
const OPTIONS: &str = "x-guidance";

/// # Errors
/// What is wrong with the grammar.
pub(super) fn source(grammar: &Grammar, strict: bool) -> Result<TopLevelGrammar, String> {
    match grammar {
        Grammar::JsonSchema(schema) => json_schema(schema.clone(), strict),
        Grammar::Regex(regex) => Ok(TopLevelGrammar::from_regex(whole(regex)?)),
        Grammar::Choice(texts) => choice(texts),
        Grammar::Lark(text) if text.trim().is_empty() => Err("it is empty".to_owned()),
        Grammar::Lark(text) => Ok(TopLevelGrammar::from_lark(text.clone())),
    }
}

fn json_schema(schema: Value, strict: bool) -> Result<TopLevelGrammar, String> {
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
    Ok(TopLevelGrammar::from_json_schema(Value::Object(schema)))
}

/// The expression without the anchors of the whole text, which it always matches.
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
    // Strings of Lark are those of JSON.
    let texts: Vec<String> = texts
        .iter()
        .map(|text| Value::from(text.as_str()).to_string())
        .collect();
    let lark = format!("start: CHOICE\nCHOICE: {}", texts.join(" | "));
    Ok(TopLevelGrammar::from_lark(lark))
}
