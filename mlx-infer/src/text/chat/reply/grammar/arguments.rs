//! Grammars of arguments, from a tool's schema.

use serde_json::{Map, Value, json};

use super::super::{ToolFormat, tags};
use super::Rules;
use super::custom::{self, INPUT};
use crate::error::{Error, Result};

/// Keywords that a grammar enforces, or that do not restrict a value.
const KEYWORDS: [&str; 19] = [
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "properties",
    "required",
    "items",
    "additionalProperties",
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$id",
    "$comment",
    "strict",
    "deprecated",
    "nullable",
];

/// The deepest nesting of a schema.
const MAX_DEPTH: usize = 32;

const INTEGER: &str = "/-?(0|[1-9][0-9]{0,17})/";
const NUMBER: &str = "/-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?/";

impl Rules<'_> {
    /// The arguments of a call in a form.
    ///
    /// # Errors
    /// A strict tool's schema has a keyword that the form cannot enforce.
    pub(super) fn arguments(
        &mut self,
        form: ToolFormat,
        schema: &Value,
        is_strict: bool,
    ) -> Result<String> {
        match form {
            ToolFormat::Gemma4 => self.noted(schema, "<|\"|>", is_strict, 0),
            ToolFormat::FunctionGemma => self.noted(schema, "<escape>", is_strict, 0),
            ToolFormat::Qwen3Coder => self.tagged(schema, &tags::QWEN3_CODER, is_strict),
            ToolFormat::MiniMax => self.tagged(schema, &tags::MINIMAX, is_strict),
            ToolFormat::Glm => self.tagged(schema, &tags::GLM, is_strict),
            ToolFormat::Seed => self.tagged(schema, &tags::SEED, is_strict),
            ToolFormat::Dsml => self.tagged(schema, &tags::DSML, is_strict),
            _ => Ok(self.json(schema, is_strict)),
        }
    }

    /// The arguments of a call whose only argument is a text with a grammar of its own.
    ///
    /// # Errors
    /// The grammar has a part that cannot stand in a call.
    pub(super) fn text_of(&mut self, form: ToolFormat, format: &Value) -> Result<String> {
        let (open, close, is_quoted) = match form {
            ToolFormat::Gemma4 => around_noted("<|\"|>"),
            ToolFormat::FunctionGemma => around_noted("<escape>"),
            ToolFormat::Qwen3Coder => around_tagged(&tags::QWEN3_CODER),
            ToolFormat::MiniMax => around_tagged(&tags::MINIMAX),
            ToolFormat::Glm => around_tagged(&tags::GLM),
            ToolFormat::Seed => around_tagged(&tags::SEED),
            ToolFormat::Dsml => around_tagged(&tags::DSML),
            _ => (format!("{{\"{INPUT}\": \""), "\"}".to_owned(), true),
        };
        let [syntax, definition] =
            ["syntax", "definition"].map(|key| format[key].as_str().unwrap_or_default());
        let grammar = custom::of_text(syntax, definition, is_quoted)
            .map_err(|what| Error::argument(format!("the grammar of a tool: {what}")))?;
        let text = self.rule(&format!("%lark {{\n{grammar}\n}}"));
        let [open, close] = [open, close].map(|around| self.literal(&around));
        Ok(self.rule(&format!("{open} {text} {close}")))
    }

    fn json(&mut self, schema: &Value, is_strict: bool) -> String {
        let mut schema = schema.clone();
        // Only the separators that templates write are allowed. If blanks were free, a model could
        // write blanks for ever.
        schema["x-guidance"] = json!({
            "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ", "lenient": !is_strict,
        });
        self.rule(&format!("%json {schema}"))
    }

    /// Parameters in tags: those that the schema requires, others if the model gives them, in the schema's order.
    fn tagged(&mut self, schema: &Value, form: &tags::Form, is_strict: bool) -> Result<String> {
        let mut all = Vec::new();
        for (key, schema_of, is_required) in properties(schema) {
            let types = tags::types(schema_of);
            let has_text = types.as_ref().is_none_or(|types| types.contains(&"string"));
            let (open, end) = around_value(form, key, has_text);
            let open = self.literal(&open);
            let value = if let Some(choices) = choices(schema_of) {
                let texts = choices.iter().map(|choice| match choice {
                    Value::String(text) => self.literal(text),
                    other => self.literal(&other.to_string()),
                });
                let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
                format!("({}) {}", texts.join(" | "), self.literal(&end))
            } else if has_text {
                self.check_keywords(schema_of, is_strict)?;
                self.text_until(&end)
            } else {
                let mut schema_of = schema_of.clone();
                // References are to the definitions of the whole schema.
                for definitions in ["$defs", "definitions"] {
                    if let (Some(object), Some(found)) =
                        (schema_of.as_object_mut(), schema.get(definitions))
                    {
                        object.insert(definitions.to_owned(), found.clone());
                    }
                }
                format!(
                    "{} {}",
                    self.json(&schema_of, is_strict),
                    self.literal(&end)
                )
            };
            let rule = self.rule(&format!("{open} {value}"));
            all.push(if is_required {
                rule
            } else {
                format!("{rule}?")
            });
        }
        Ok(all.join(" "))
    }

    /// A value in Gemma's notation.
    fn noted(
        &mut self,
        schema: &Value,
        mark: &'static str,
        is_strict: bool,
        depth: usize,
    ) -> Result<String> {
        if depth > MAX_DEPTH {
            return Err(Error::unsupported(format!(
                "a tool's schema is nested deeper than {MAX_DEPTH} levels"
            )));
        }
        self.check_keywords(schema, is_strict)?;
        if let Some(choices) = choices(schema) {
            let texts: Vec<String> = choices
                .iter()
                .map(|choice| self.literal(&written(choice, mark)))
                .collect();
            return Ok(format!("({})", texts.join(" | ")));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(inner)) = schema.get(key) {
                let inner = inner
                    .iter()
                    .map(|schema| self.noted(schema, mark, is_strict, depth + 1));
                return Ok(format!(
                    "({})",
                    inner.collect::<Result<Vec<_>>>()?.join(" | ")
                ));
            }
        }
        let types = match tags::types(schema) {
            Some(types) => types,
            None if schema.get("properties").is_some() => vec!["object"],
            None => return Ok(self.any(mark)),
        };
        let mut all = Vec::new();
        for kind in types {
            all.push(match kind {
                "string" => self.quoted(mark),
                "integer" => INTEGER.to_owned(),
                "number" => NUMBER.to_owned(),
                "boolean" => "\"true\" | \"false\"".to_owned(),
                "null" => "\"null\"".to_owned(),
                "array" => {
                    let item = match schema.get("items") {
                        Some(items) => self.noted(items, mark, is_strict, depth + 1)?,
                        None => self.any(mark),
                    };
                    format!("\"[\" ({item} (\",\" {item})*)? \"]\"")
                }
                "object" if schema.get("properties").is_some() => {
                    let members = self.members(schema, mark, is_strict, depth)?;
                    format!("\"{{\" {members} \"}}\"")
                }
                "object" => {
                    self.any(mark);
                    "any_object".to_owned()
                }
                other => {
                    return Err(Error::unsupported(format!(
                        "a tool's schema has type {other:?}; known: string, integer, number, boolean, null, array, object"
                    )));
                }
            });
        }
        Ok(self.rule(&all.join(" | ")))
    }

    /// Members of an object with commas between them.
    fn members(
        &mut self,
        schema: &Value,
        mark: &'static str,
        is_strict: bool,
        depth: usize,
    ) -> Result<String> {
        let mut pairs = Vec::new();
        for (key, schema, is_required) in properties(schema) {
            let value = self.noted(schema, mark, is_strict, depth + 1)?;
            let key = self.literal(&format!("{key}:"));
            pairs.push((self.rule(&format!("{key} {value}")), is_required));
        }
        // Goes from the last member to the first. `behind` is the grammar of the members after
        // another member, `first` that of the members with none before them.
        let (mut behind, mut first) = (String::new(), String::new());
        let mut may_be_empty = true;
        for (pair, is_required) in pairs.into_iter().rev() {
            let optional = if is_required { "" } else { "?" };
            let with_it = format!("{pair} {behind}");
            first = match is_required || first.is_empty() {
                true => self.rule(&with_it),
                false => self.rule(&format!("{with_it} | {first}")),
            };
            may_be_empty &= !is_required;
            behind = self.rule(&format!("(\",\" {pair}){optional} {behind}"));
        }
        Ok(match may_be_empty && !first.is_empty() {
            true => format!("{first}?"),
            false => first,
        })
    }

    fn quoted(&mut self, mark: &'static str) -> String {
        let text = self.text_until(mark);
        format!("{} {text}", self.literal(mark))
    }

    fn any(&mut self, mark: &'static str) -> String {
        if !self.has("any") {
            let text = self.quoted(mark);
            let words = "\"true\" | \"false\" | \"null\"";
            let any = format!(
                "{text} | {NUMBER} | {words} | \"[\" (any (\",\" any)*)? \"]\" | any_object"
            );
            self.once("any", &any);
            let pair = "/[a-zA-Z_][a-zA-Z0-9_]{0,63}/ \":\" any";
            self.once(
                "any_object",
                &format!("\"{{\" ({pair} (\",\" {pair})*)? \"}}\""),
            );
        }
        "any".to_owned()
    }

    /// Checks the keywords of a schema.
    ///
    /// # Errors
    /// A strict schema has a keyword that a grammar cannot enforce.
    fn check_keywords(&self, schema: &Value, is_strict: bool) -> Result<()> {
        let keys = schema.as_object().into_iter().flat_map(Map::keys);
        let unknown = keys.filter(|key| !KEYWORDS.contains(&key.as_str()));
        match unknown.into_iter().next().filter(|_| is_strict) {
            None => Ok(()),
            Some(key) => Err(Error::unsupported(format!(
                "a strict tool's schema has {key}, to which calls in the form of this model cannot be held; held: type, \
                 enum, const, anyOf, oneOf, properties, required, items"
            ))),
        }
    }
}

/// The texts around the value of a parameter in tags.
fn around_value(form: &tags::Form, key: &str, has_text: bool) -> (String, String) {
    let line = if form.has_lines { "\n" } else { "" };
    let name = match form.parameter.ends_with("name=") {
        true => json!(key).to_string(),
        false => key.to_owned(),
    };
    let between = if form.value.is_empty() { "" } else { "\n" };
    let told = match form.is_text {
        "" => String::new(),
        attribute => format!("{attribute}\"{has_text}\""),
    };
    let open = format!(
        "{}{name}{told}{}{between}{}{line}",
        form.parameter, form.name_end, form.value
    );
    (open, format!("{line}{}\n", form.value_end))
}

/// The texts around an only argument, a text, in tags; its characters stand for themselves.
fn around_tagged(form: &tags::Form) -> (String, String, bool) {
    let (open, close) = around_value(form, INPUT, true);
    (open, close, false)
}

/// The same in Gemma's notation.
fn around_noted(mark: &str) -> (String, String, bool) {
    (format!("{{{INPUT}:{mark}"), format!("{mark}}}"), false)
}

/// The name and the schema of each property, and whether it is required.
fn properties(schema: &Value) -> Vec<(&str, &Value, bool)> {
    let required = schema["required"].as_array();
    let is_required = |key: &str| required.is_some_and(|list| list.iter().any(|name| name == key));
    let all = schema["properties"].as_object().into_iter().flatten();
    all.map(|(key, value)| (key.as_str(), value, is_required(key)))
        .collect()
}

/// The values of `enum` or `const`.
fn choices(schema: &Value) -> Option<Vec<Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value.clone()]),
        (None, Some(Value::Array(values))) if !values.is_empty() => Some(values.clone()),
        _ => None,
    }
}

/// A value in Gemma's notation.
fn written(value: &Value, mark: &str) -> String {
    match value {
        Value::String(text) => format!("{mark}{text}{mark}"),
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(|item| written(item, mark)).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(map) => {
            let pair = |(key, item): (&String, &Value)| format!("{key}:{}", written(item, mark));
            format!("{{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}
