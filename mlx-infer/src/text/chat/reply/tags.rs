//! Calls in tags: a tag with the name, and a tag for each parameter with its value as text, which becomes JSON.

use serde_json::Value;

use super::calls::{ReplyParts, Tools};
use super::parser::{ReplyStep, Seek};

/// The longest name, in bytes. A text with a longer one is not a call.
const MAX_NAME: usize = 256;

/// The tags of a family.
#[derive(Debug)]
pub(super) struct Form {
    /// Before a tool's name.
    pub(super) call: &'static str,
    /// The end of the name. A `<` also begins the next tag.
    pub(super) name_ends: &'static [char],
    /// A tag between the name and the first parameter; empty if there is none.
    pub(super) separator: &'static str,
    /// Before a parameter's name, after it, before its value, and after the value.
    pub(super) parameter: &'static str,
    pub(super) name_end: &'static str,
    pub(super) value: &'static str,
    pub(super) value_end: &'static str,
    /// After a parameter's name: an attribute that tells whether the value is a text or JSON, and the word in it for a
    /// text.
    pub(super) is_text: &'static str,
    pub(super) text_word: &'static str,
    /// Whether a value is a text if its schema gives no type, as in the published parsers of
    /// Qwen3-Coder and MiniMax. Otherwise it is JSON if it can be parsed, as in GLM's.
    pub(super) untyped_is_text: bool,
    /// Whether one line break before a value and one after it are not part of the value.
    pub(super) has_lines: bool,
    /// Whether a value may be a section of characters, `<![CDATA[..]]>`.
    pub(super) has_sections: bool,
    /// What templates write between two parameters.
    pub(super) line: &'static str,
    /// After the last parameter.
    pub(super) call_end: &'static str,
    /// After the last call of a block; empty if a block has one call.
    pub(super) block_end: &'static str,
}

pub(super) const QWEN3_CODER: Form = Form {
    call: "<function=",
    name_ends: &['>'],
    separator: "",
    parameter: "<parameter=",
    name_end: ">",
    value: "",
    is_text: "",
    text_word: "true",
    untyped_is_text: true,
    value_end: "</parameter>",
    has_lines: true,
    has_sections: false,
    line: "\n",
    call_end: "</function>",
    block_end: "</tool_call>",
};

pub(super) const MINIMAX: Form = Form {
    call: "<invoke name=",
    parameter: "<parameter name=",
    call_end: "</invoke>",
    block_end: "</minimax:tool_call>",
    ..QWEN3_CODER
};

pub(super) const DSML: Form = Form {
    call: "<｜DSML｜invoke name=",
    parameter: "<｜DSML｜parameter name=",
    is_text: " string=",
    value_end: "</｜DSML｜parameter>",
    has_lines: false,
    call_end: "</｜DSML｜invoke>",
    block_end: "</｜DSML｜function_calls>",
    ..QWEN3_CODER
};

pub(super) const SEED: Form = Form {
    has_lines: false,
    block_end: "</seed:tool_call>",
    ..QWEN3_CODER
};

pub(super) const GLM: Form = Form {
    call: "",
    name_ends: &['\n', '<'],
    parameter: "<arg_key>",
    name_end: "</arg_key>",
    value: "<arg_value>",
    untyped_is_text: false,
    value_end: "</arg_value>",
    has_lines: false,
    call_end: "</tool_call>",
    block_end: "",
    ..QWEN3_CODER
};

pub(super) const LONGCAT: Form = Form {
    parameter: "<longcat_arg_key>",
    name_end: "</longcat_arg_key>",
    value: "<longcat_arg_value>",
    value_end: "</longcat_arg_value>",
    call_end: "</longcat_tool_call>",
    ..GLM
};

pub(super) const IQUEST: Form = Form {
    call_end: "</iquest_tool_call>",
    ..GLM
};

pub(super) const HUNYUAN_TAGS: Form = Form {
    call: "<tool_call>",
    name_ends: &['<'],
    separator: "<tool_sep>",
    block_end: "</tool_calls>",
    ..GLM
};

pub(super) const HUNYUAN_OPEN: Form = Form {
    call: "<tool_call:opensource>",
    separator: "<tool_sep:opensource>",
    parameter: "<arg_key:opensource>",
    name_end: "</arg_key:opensource>",
    value: "<arg_value:opensource>",
    value_end: "</arg_value:opensource>",
    call_end: "</tool_call:opensource>",
    block_end: "</tool_calls:opensource>",
    ..HUNYUAN_TAGS
};

pub(super) const DSML_CALLS: Form = Form {
    block_end: "</｜DSML｜tool_calls>",
    ..DSML
};

pub(super) const DSML_SPACED: Form = Form {
    call: "<｜DSML｜ invoke name=",
    parameter: "<｜DSML｜ parameter name=",
    value_end: "</｜DSML｜ parameter>",
    call_end: "</｜DSML｜ invoke>",
    block_end: "</｜DSML｜ calls>",
    ..DSML
};

pub(super) const GCML: Form = Form {
    call: "<｜GCML｜invoke name=",
    parameter: "<｜GCML｜parameter name=",
    value_end: "</｜GCML｜parameter>",
    call_end: "</｜GCML｜invoke>",
    block_end: "</｜GCML｜tool_calls>",
    ..DSML
};

pub(super) const STEP3: Form = Form {
    call: "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=",
    parameter: "<steptml:parameter name=",
    value_end: "</steptml:parameter>",
    untyped_is_text: false,
    has_lines: false,
    call_end: "</steptml:invoke><｜tool_call_end｜>",
    block_end: "<｜tool_calls_end｜>",
    ..QWEN3_CODER
};

pub(super) const ATEM: Form = Form {
    call: "<atem:invoke name=",
    parameter: "<atem:parameter name=",
    value_end: "</atem:parameter>",
    untyped_is_text: false,
    has_lines: false,
    call_end: "</atem:invoke>",
    block_end: "</atem:function_calls>",
    ..QWEN3_CODER
};

pub(super) const DOTS: Form = Form {
    untyped_is_text: false,
    has_lines: false,
    block_end: "</dots_function_call>",
    ..MINIMAX
};

pub(super) const MINICPM5: Form = Form {
    call: "<function name=",
    parameter: "<param name=",
    value_end: "</param>",
    untyped_is_text: false,
    has_lines: false,
    has_sections: true,
    line: "",
    block_end: "",
    ..QWEN3_CODER
};

pub(super) const KIMI_K3: Form = Form {
    call: "<|open|>call tool=",
    name_ends: &['<'],
    separator: "<|sep|>",
    parameter: "<|open|>argument key=",
    name_end: "<|sep|>",
    is_text: " type=",
    text_word: "string",
    value_end: "<|close|>argument<|sep|>",
    has_lines: false,
    line: "",
    call_end: "<|close|>call<|sep|>",
    block_end: "<|close|>tools<|sep|>",
    ..QWEN3_CODER
};

/// Reads the calls of a block.
#[derive(Debug)]
pub(super) struct Tags {
    form: &'static Form,
    at: At,
    tool: String,
    /// The name of the parameter.
    key: String,
    /// The number of parameters of the call.
    given: usize,
}

#[derive(Debug)]
enum At {
    /// Before a tag, with the part of it that was read.
    Tag(Place, String),
    Name(String),
    Key(String),
    Value {
        seek: Seek,
        writer: Writer,
        section: Section,
    },
}

const SECTION: [&str; 2] = ["<![CDATA[", "]]>"];

/// Whether a value is a section of characters.
#[derive(Debug)]
enum Section {
    No,
    /// This part of the section's mark was read.
    Maybe(String),
    Yes,
}

/// The tags that are allowed next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Call,
    Separator,
    Parameter,
    Value,
    Tail,
}

impl Tags {
    /// Before the first call of a block.
    pub(super) fn new(form: &'static Form) -> Self {
        let at = match form.call {
            "" => At::Name(String::new()),
            _ => At::Tag(Place::Call, String::new()),
        };
        Self {
            form,
            at,
            tool: String::new(),
            key: String::new(),
            given: 0,
        }
    }

    /// After the tag that begins a call.
    pub(super) fn named(form: &'static Form) -> Self {
        Self {
            at: At::Name(String::new()),
            ..Self::new(form)
        }
    }

    pub(super) fn is_tail(&self) -> bool {
        matches!(self.at, At::Tag(Place::Tail, _))
    }

    pub(super) fn take(&mut self, c: char, tools: &Tools, parts: &mut ReplyParts) -> ReplyStep {
        let form = self.form;
        match &mut self.at {
            At::Tag(_, held) if held.is_empty() && c.is_whitespace() => ReplyStep::More,
            At::Tag(place, held) => {
                held.push(c);
                let tags = match place {
                    Place::Call => [form.call, form.call],
                    Place::Separator => [form.separator, form.separator],
                    Place::Parameter => [form.parameter, form.call_end],
                    Place::Value => [form.value, form.value],
                    Place::Tail => [form.block_end, form.call],
                };
                if !tags.contains(&held.as_str()) {
                    let may_be = tags.iter().any(|tag| tag.starts_with(held.as_str()));
                    return if may_be {
                        ReplyStep::More
                    } else {
                        ReplyStep::Broken
                    };
                }
                let is_first = held == tags[0];
                match (*place, is_first) {
                    (Place::Call, _) | (Place::Tail, false) => self.at = At::Name(String::new()),
                    (Place::Separator, _) => self.at = At::Tag(Place::Parameter, String::new()),
                    (Place::Parameter, true) => self.at = At::Key(String::new()),
                    (Place::Parameter, false) => return self.end(parts),
                    (Place::Value, _) => self.value(tools, None),
                    (Place::Tail, true) => return ReplyStep::Done,
                }
                ReplyStep::More
            }
            At::Name(name) if form.name_ends.contains(&c) => {
                let name = attribute(name);
                if name.is_empty() && c == '\n' {
                    return ReplyStep::More;
                }
                if !tools.has(name) {
                    return ReplyStep::Broken;
                }
                parts.start(name);
                self.tool = name.to_owned();
                self.given = 0;
                let begun = if c == '<' { "<" } else { "" };
                let place = match form.separator {
                    "" => Place::Parameter,
                    _ => Place::Separator,
                };
                self.at = At::Tag(place, begun.to_owned());
                ReplyStep::More
            }
            At::Name(name) | At::Key(name) if name.len() > MAX_NAME => ReplyStep::Broken,
            At::Name(name) => {
                name.push(c);
                ReplyStep::More
            }
            At::Key(key) => {
                key.push(c);
                if let Some(key) = key.strip_suffix(form.name_end) {
                    let (key, is_text) = match form.is_text {
                        "" => (key, None),
                        told_by => match key.split_once(told_by) {
                            Some((key, told)) => (key, Some(attribute(told) == form.text_word)),
                            None => (key, None),
                        },
                    };
                    let key = attribute(key).to_owned();
                    let begin = if self.given == 0 { "{" } else { ", " };
                    parts.arguments(&format!("{begin}{}: ", Value::from(key.as_str())));
                    self.given += 1;
                    self.key = key;
                    match form.value {
                        "" => self.value(tools, is_text),
                        _ => self.at = At::Tag(Place::Value, String::new()),
                    }
                }
                ReplyStep::More
            }
            At::Value {
                seek,
                writer,
                section,
            } => {
                let mut read = c.to_string();
                if let Section::Maybe(begun) = section {
                    begun.push(c);
                    if SECTION[0].starts_with(begun.as_str()) {
                        if begun == SECTION[0] {
                            *section = Section::Yes;
                        }
                        return ReplyStep::More;
                    }
                    read = std::mem::take(begun);
                    *section = Section::No;
                }
                let mut text = String::new();
                let is_section = matches!(section, Section::Yes);
                let end = match is_section {
                    true => SECTION[1],
                    false => form.value_end,
                };
                let mut is_end = false;
                for c in read.chars() {
                    is_end = seek.take(c, &[end], &mut text).is_some();
                }
                if is_section && is_end {
                    // The rest of the value is empty.
                    (*section, is_end) = (Section::No, false);
                }
                for c in text.chars() {
                    writer.push(c, parts);
                }
                if is_end {
                    writer.end(parts);
                    self.at = At::Tag(Place::Parameter, String::new());
                }
                ReplyStep::More
            }
        }
    }
    /// Begins the value of a parameter. If the model does not mark it as a text or as JSON, the
    /// schema decides.
    fn value(&mut self, tools: &Tools, is_text: Option<bool>) {
        let types = match (is_text, tools.parameter(&self.tool, &self.key)) {
            (Some(true), _) | (None, None) => Some(vec!["string"]),
            (Some(false), _) => None,
            (None, Some(schema)) if self.form.untyped_is_text && is_untyped(schema) => {
                Some(vec!["string"])
            }
            (None, Some(schema)) => types(schema),
        };
        let types = types.map(|types| types.into_iter().map(str::to_owned).collect());
        self.at = At::Value {
            seek: Seek::default(),
            writer: Writer {
                is_told: is_text == Some(true),
                ..Writer::new(types, self.form.has_lines)
            },
            section: match self.form.has_sections {
                true => Section::Maybe(String::new()),
                false => Section::No,
            },
        };
    }

    fn end(&mut self, parts: &mut ReplyParts) -> ReplyStep {
        parts.arguments(if self.given == 0 { "{}" } else { "}" });
        parts.end();
        self.at = At::Tag(Place::Tail, String::new());
        match self.form.block_end {
            "" => ReplyStep::Done,
            _ => ReplyStep::More,
        }
    }
}

/// A name or the value of an attribute, which may be in quotation marks and before other attributes.
fn attribute(text: &str) -> &str {
    let text = text.trim();
    for quote in ['"', '\''] {
        if let Some(quoted) = text.strip_prefix(quote) {
            return quoted.split(quote).next().unwrap_or_default();
        }
    }
    text
}

/// Writes the text of a value as JSON. Texts are given while they are read.
#[derive(Debug)]
struct Writer {
    /// The types that the schema allows, if it names types.
    types: Option<Vec<String>>,
    is_text: bool,
    /// Whether the model marks the value as a text, so that `null` is the text "null".
    is_told: bool,
    has_lines: bool,
    is_front: bool,
    /// Whether a line break was read that may be the one after the value.
    has_break: bool,
    /// Text that is held back.
    held: String,
    has_quote: bool,
}

const NULL: &str = "null";

impl Writer {
    fn new(types: Option<Vec<String>>, has_lines: bool) -> Self {
        let is_text = types.as_ref().is_some_and(|types| {
            let types: Vec<&str> = types.iter().map(String::as_str).collect();
            are_texts(&types)
        });
        Self {
            types,
            is_text,
            is_told: false,
            has_lines,
            is_front: true,
            has_break: false,
            held: String::new(),
            has_quote: false,
        }
    }

    fn push(&mut self, c: char, parts: &mut ReplyParts) {
        let is_break = self.has_lines && c == '\n';
        if std::mem::take(&mut self.is_front) && is_break {
            return;
        }
        if std::mem::replace(&mut self.has_break, is_break) {
            self.write('\n', parts);
        }
        if !is_break {
            self.write(c, parts);
        }
    }

    fn write(&mut self, c: char, parts: &mut ReplyParts) {
        self.held.push(c);
        // `null` is not a text, whatever the type, unless the model marks it as one.
        let may_be_null = || {
            if self.is_told {
                return false;
            }
            let begun = NULL.get(..self.held.len());
            begun.is_some_and(|begun| begun.eq_ignore_ascii_case(&self.held))
        };
        if !self.is_text || !self.has_quote && may_be_null() {
            return;
        }
        if !std::mem::replace(&mut self.has_quote, true) {
            parts.arguments("\"");
        }
        parts.arguments(&escaped(&std::mem::take(&mut self.held)));
    }

    fn end(&mut self, parts: &mut ReplyParts) {
        if self.has_quote {
            parts.arguments("\"");
            return;
        }
        let types: Option<Vec<&str>> = self
            .types
            .as_ref()
            .map(|types| types.iter().map(String::as_str).collect());
        parts.arguments(&by_type(types.as_deref(), &self.held));
    }
}

/// The deepest nesting of `anyOf`, `oneOf` and `allOf` that is searched for types.
const MAX_DEPTH: usize = 8;

/// The types that a schema allows; `None` if it names none.
pub(super) fn types(schema: &Value) -> Option<Vec<&str>> {
    let mut types = Vec::new();
    collect(schema, MAX_DEPTH, &mut types);
    (!types.is_empty()).then_some(types)
}

/// Whether a schema neither gives types nor restricts the values, except perhaps by a description
/// in words.
fn is_untyped(schema: &Value) -> bool {
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

/// Whether values of these types are texts, which are returned while they are read.
pub(super) fn are_texts(types: &[&str]) -> bool {
    types.iter().all(|kind| matches!(*kind, "string" | "null"))
}

/// A parameter's text as JSON, by the types that the schema allows (`None`: any). `null` in upper
/// or lower case is no value, whatever the type, as in Qwen3-Coder's published parser. A text that
/// fits none of the types stays a text.
pub(super) fn by_type(types: Option<&[&str]>, text: &str) -> String {
    let word = text.trim();
    if word.eq_ignore_ascii_case("null") {
        return "null".to_owned();
    }
    let parsed = || serde_json::from_str::<Value>(word).ok();
    let found = match types {
        None => parsed(),
        Some(types) => {
            // The types are tried from the narrowest to the widest.
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
