//! Tools of `type: custom`, whose input is a text. The model sees a function with one argument, the
//! text.

use serde_json::{Value, json};

use super::Turn;
use crate::text::chat::reply::INPUT;

/// A custom tool in the form of chat completions' functions. Its key `custom` has the tool itself,
/// in the form of responses: `name`, `description` and `format`.
///
/// # Errors
/// It has no name, or its format is not known.
pub(in super::super) fn as_function(tool: &Value) -> Result<Value, &'static str> {
    // In chat completions these keys, and those of a grammar, are objects of their own.
    let given = match &tool["custom"] {
        Value::Null => tool,
        inner => inner,
    };
    let Some(name) = given["name"].as_str().filter(|name| !name.is_empty()) else {
        return Err("has no name");
    };
    let format = &given["format"];
    let inner = match &format["grammar"] {
        Value::Null => format,
        inner => inner,
    };
    let (format, what) = match format["type"].as_str() {
        None if format.is_null() => (json!({"type": "text"}), String::new()),
        Some("text") => (json!({"type": "text"}), String::new()),
        Some("grammar") => {
            let [Some(syntax), Some(definition)] =
                ["syntax", "definition"].map(|key| inner[key].as_str())
            else {
                return Err("has a format without syntax and definition");
            };
            let word = match syntax {
                "lark" => "Lark grammar",
                "regex" => "regular expression",
                _ => return Err("has a format whose syntax is neither lark nor regex"),
            };
            let format = json!({"type": "grammar", "syntax": syntax, "definition": definition});
            (
                format,
                format!("The {INPUT} must match this {word}:\n{definition}"),
            )
        }
        _ => return Err("has a format whose type is neither text nor grammar"),
    };
    let told = match &given["description"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        _ => return Err("has a description that is no text"),
    };
    let description = [&told, "\n\n", &what].concat();
    let parameters = json!({
        "type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT], "additionalProperties": false,
    });
    Ok(json!({
        "type": "function",
        "function": {"name": name, "description": description.trim(), "parameters": parameters},
        "custom": {"name": name, "description": given["description"], "format": format},
    }))
}

/// Tools as templates show them: without the keys of this server.
pub(super) fn shown(tools: &[Value]) -> Vec<Value> {
    let mut tools = tools.to_vec();
    for tool in tools.iter_mut().filter_map(Value::as_object_mut) {
        tool.shift_remove("custom");
        tool.shift_remove("namespace");
    }
    tools
}

impl Turn {
    /// The names of its custom tools.
    pub(in super::super) fn custom_tools(&self) -> Vec<String> {
        let custom = self.tools.iter().filter(|tool| tool["custom"].is_object());
        let names = custom.filter_map(|tool| tool["function"]["name"].as_str());
        names.map(str::to_owned).collect()
    }
}

/// Reads the input of a custom tool from the pieces of a call's arguments, which are JSON.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct InputReader {
    place: Place,
    /// The text before the input.
    head: String,
    /// An escape that is not complete.
    escape: String,
    /// The first half of a character that JSON spells as two.
    high: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before the input.
    #[default]
    Head,
    Input,
    Behind,
    /// The arguments are others. They are the input.
    Other,
}

impl InputReader {
    /// The input of whole arguments.
    pub(in super::super) fn whole(arguments: &str) -> String {
        Self::default().push(arguments)
    }

    /// The part of the input that a piece of the arguments adds.
    pub(in super::super) fn push(&mut self, json: &str) -> String {
        let mut text = String::new();
        for c in json.chars() {
            match self.place {
                Place::Head => self.begin(c, &mut text),
                Place::Input => self.read(c, &mut text),
                Place::Behind => {}
                Place::Other => text.push(c),
            }
        }
        text
    }

    fn begin(&mut self, c: char, text: &mut String) {
        self.head.push(c);
        let begun: String = self.head.split_whitespace().collect();
        let sought = format!("{{\"{INPUT}\":\"");
        if begun == sought {
            self.place = Place::Input;
        } else if !sought.starts_with(&begun) {
            self.place = Place::Other;
            text.push_str(&self.head);
        }
    }

    fn read(&mut self, c: char, text: &mut String) {
        match (self.escape.is_empty(), c) {
            (true, '"') => self.place = Place::Behind,
            (true, '\\') => self.escape.push(c),
            (true, c) => text.push(c),
            (false, c) => {
                self.escape.push(c);
                if !self.escape.starts_with("\\u") || self.escape.len() == 6 {
                    let escape = std::mem::take(&mut self.escape);
                    self.escaped(&escape, text);
                }
            }
        }
    }

    /// Adds a character that JSON spells with a backslash.
    fn escaped(&mut self, escape: &str, text: &mut String) {
        let Some(code) = escape.strip_prefix("\\u") else {
            let spelled: Result<String, _> = serde_json::from_str(&format!("\"{escape}\""));
            return text.push_str(&spelled.unwrap_or_default());
        };
        let code = u32::from_str_radix(code, 16).unwrap_or(0xfffd);
        match (self.high.take(), code) {
            (None, 0xd800..0xdc00) => self.high = Some(code),
            (Some(high), 0xdc00..0xe000) => {
                let code = 0x1_0000 + ((high - 0xd800) << 10) + (code - 0xdc00);
                text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            (_, code) => text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_is_read_however_its_json_is_cut() {
        let text = "*** Begin\n\"x\\\" \t ü 🦊 \u{1}";
        let spelled = json!({"input": text}).to_string();
        let others = [
            (spelled.clone(), text),
            (
                spelled
                    .replace("🦊", "\\ud83e\\udd8a")
                    .replace('ü', "\\u00fc"),
                text,
            ),
            ("{ \"input\" : \"a\" }".to_owned(), "a"),
            ("{\"input\": \"cut \\".to_owned(), "cut "),
            ("{\"patch\": 1}".to_owned(), "{\"patch\": 1}"),
            ("{}".to_owned(), "{}"),
        ];
        for (json, text) in others {
            assert_eq!(InputReader::whole(&json), text);
            let mut reader = InputReader::default();
            let pieces = json.chars().map(|c| reader.push(&c.to_string()));
            assert_eq!(pieces.collect::<String>(), text);
        }
    }

    #[test]
    fn tools_become_functions() {
        let grammar = json!({"type": "grammar", "syntax": "regex", "definition": "[0-9]+"});
        let flat =
            json!({"type": "custom", "name": "f", "description": "Adds.", "format": grammar});
        let nested = json!({"type": "custom", "custom": {"name": "f", "description": "Adds.",
            "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]+"}}}});
        let function = as_function(&flat).unwrap();
        assert_eq!(function, as_function(&nested).unwrap());
        assert_eq!(function["custom"]["format"], grammar);
        let description = "Adds.\n\nThe input must match this regular expression:\n[0-9]+";
        assert_eq!(function["function"]["description"], description);
        for (tool, what) in [
            (json!({"type": "custom"}), "has no name"),
            (
                json!({"name": "f", "format": {"type": "json"}}),
                "neither text nor grammar",
            ),
            (
                json!({"name": "f", "format": {"type": "grammar"}}),
                "without syntax",
            ),
            (
                json!({"name": "f", "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}}),
                "neither lark nor regex",
            ),
        ] {
            assert!(as_function(&tool).unwrap_err().contains(what), "{tool}");
        }
    }
}
