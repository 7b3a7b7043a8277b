//! Arguments that are not written as JSON: text by the type of a schema, and Gemma's notation.

use serde_json::{Map, Value};

/// A parameter's text as JSON, by the type that the tool's schema gives it: a text, unless the type says otherwise and the text is of it.
pub(super) fn by_schema(schema: Option<&Value>, text: &str) -> Value {
    let types: Vec<&str> = match schema.map(|schema| &schema["type"]) {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        // `anyOf` and the like: what is JSON is taken as JSON.
        Some(_) if schema.is_some_and(|schema| schema.get("type").is_none()) => Vec::new(),
        _ => vec!["string"],
    };
    let parsed: Option<Value> = serde_json::from_str(text.trim()).ok();
    let word = text.trim().to_ascii_lowercase();
    let is_of = |wanted: &str, value: &Value| match wanted {
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "null" => value.is_null(),
        _ => false,
    };
    if types.contains(&"boolean") && (word == "true" || word == "false") {
        return (word == "true").into();
    }
    if types.contains(&"null") && (word == "null" || word == "none") {
        return Value::Null;
    }
    match parsed {
        Some(value) if types.is_empty() => value,
        Some(value) if types.iter().any(|wanted| is_of(wanted, &value)) => value,
        _ => text.into(),
    }
}

/// Gemma's notation of an object, `{k:MARKtextMARK,n:3,l:[true]}`, where a mark stands around texts. `None` if it is something else.
pub(super) fn gemma(text: &str, mark: &str) -> Option<Value> {
    let mut reader = Gemma { rest: text, mark };
    let value = reader.object(0)?;
    reader.rest.trim().is_empty().then_some(value)
}

/// The deepest nesting that is read.
const MAX_DEPTH: usize = 64;

struct Gemma<'t> {
    rest: &'t str,
    mark: &'t str,
}

impl Gemma<'_> {
    fn take(&mut self, wanted: &str) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(wanted)?;
        Some(())
    }

    fn text(&mut self) -> Option<String> {
        self.take(self.mark)?;
        let (text, rest) = self.rest.split_once(self.mark)?;
        self.rest = rest;
        Some(text.to_owned())
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        self.take("{")?;
        let mut object = Map::new();
        if self.take("}").is_some() {
            return Some(object.into());
        }
        loop {
            let key = match self.text() {
                Some(key) => key,
                None => {
                    let (key, rest) = self.rest.split_once(':')?;
                    self.rest = &self.rest[self.rest.len() - rest.len() - 1..];
                    key.trim().trim_matches('"').to_owned()
                }
            };
            self.take(":")?;
            object.insert(key, self.value(depth + 1)?);
            if self.take("}").is_some() {
                return Some(object.into());
            }
            self.take(",")?;
        }
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.rest = self.rest.trim_start();
        if self.rest.starts_with(self.mark) {
            return self.text().map(Value::from);
        }
        if self.rest.starts_with('{') {
            return self.object(depth);
        }
        if self.take("[").is_some() {
            let mut list = Vec::new();
            if self.take("]").is_some() {
                return Some(list.into());
            }
            loop {
                list.push(self.value(depth + 1)?);
                if self.take("]").is_some() {
                    return Some(list.into());
                }
                self.take(",")?;
            }
        }
        let end = self.rest.find([',', '}', ']'])?;
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        let word = word.trim();
        Some(serde_json::from_str(word).unwrap_or_else(|_| word.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_become_values_of_their_type() {
        for (schema, text, value) in [
            (json!({"type": "string"}), "3", json!("3")),
            (json!({"type": "integer"}), "3", json!(3)),
            (json!({"type": "integer"}), "3.5", json!("3.5")),
            (json!({"type": "number"}), "3.5", json!(3.5)),
            (json!({"type": "boolean"}), "True", json!(true)),
            (json!({"type": ["null", "integer"]}), "null", Value::Null),
            (json!({"type": "object"}), "{\"a\": [1]}", json!({"a": [1]})),
            (json!({"type": "object"}), "{\"a\": [1", json!("{\"a\": [1")),
            (json!({"anyOf": []}), "7", json!(7)),
            (json!({"anyOf": []}), "seven", json!("seven")),
        ] {
            assert_eq!(by_schema(Some(&schema), text), value, "{schema} {text}");
        }
        assert_eq!(by_schema(None, "3"), json!("3"));
    }

    #[test]
    fn gemmas_notation_is_read() {
        let text =
            r#"{city:<|"|>Köln, "{}"<|"|>,days:3,deep:{l:[1,<|"|>x<|"|>,true],e:{}},n:null}"#;
        let value = json!({"city": "Köln, \"{}\"", "days": 3, "deep": {"l": [1, "x", true], "e": {}}, "n": null});
        assert_eq!(gemma(text, "<|\"|>"), Some(value));
        assert_eq!(
            gemma("{a:<escape>b<escape>}", "<escape>"),
            Some(json!({"a": "b"}))
        );
        for bad in ["{a:1", "a", "{a}", "{a:1}x", ""] {
            assert_eq!(gemma(bad, "<escape>"), None, "{bad}");
        }
        assert_eq!(gemma(&"{a:".repeat(500), "<escape>"), None);
    }
}
