//! Grammars that hold a reply to calls of tools.

use serde_json::{Value, json};

use super::{ReplyFormat, ToolFormat};
use crate::error::{Error, Result};
use crate::text::tokenizer::Tokenizer;

/// Which tools a reply may or must call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any or none.
    #[default]
    Auto,
    /// None: they are not shown to the model.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// The text around the calls of a form.
struct Frame {
    /// Before the first call, and behind the last.
    outer: (&'static str, &'static str),
    /// In front of a call's name, between name and arguments, behind the arguments.
    call: (&'static str, &'static str, &'static str),
    between: &'static str,
}

impl ReplyFormat {
    /// The grammar (llguidance's variant of Lark) of a reply that calls tools as `choice` demands: one call, or several with `is_parallel`. `None`
    /// if the choice leaves it open.
    ///
    /// # Errors
    /// The family's form has no such grammar here.
    pub fn grammar(
        &self,
        tokenizer: &Tokenizer,
        tools: &[Value],
        choice: &ToolChoice,
        is_parallel: bool,
    ) -> Result<Option<String>> {
        let wanted = |tool: &&Value| match choice {
            ToolChoice::Named(name) => tool["function"]["name"] == **name,
            _ => true,
        };
        if matches!(choice, ToolChoice::Auto | ToolChoice::None) {
            return Ok(None);
        }
        let frame = match self.tools {
            ToolFormat::Hermes => Frame {
                outer: ("", ""),
                call: (
                    "<tool_call>\n{\"name\": ",
                    ", \"arguments\": ",
                    "}\n</tool_call>",
                ),
                between: "\n",
            },
            ToolFormat::Llama3 => Frame {
                outer: ("", ""),
                call: ("{\"name\": ", ", \"parameters\": ", "}"),
                between: "; ",
            },
            ToolFormat::Mistral => Frame {
                outer: ("[TOOL_CALLS]", ""),
                call: ("[{\"name\": ", ", \"arguments\": ", "}]"),
                between: "",
            },
            form => {
                return Err(Error::unsupported(format!(
                    "a reply cannot be held to calls in the form of this model ({form:?}); tool_choice may be auto or none"
                )));
            }
        };
        let mut rules = Vec::new();
        let mut names = Vec::new();
        for (index, tool) in tools.iter().filter(wanted).enumerate() {
            let function = &tool["function"];
            let mut schema = match &function["parameters"] {
                schema @ Value::Object(_) => schema.clone(),
                _ => json!({"type": "object"}),
            };
            // Separators as templates write them, and no other blanks: a model that prefers blanks would never end.
            schema["x-guidance"] = json!({
                "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
                "lenient": function["strict"] != true,
            });
            let (front, middle, back) = frame.call;
            let name = function["name"].to_string();
            rules.push(format!(
                "call{index}: {} args{index} {}\nargs{index}: %json {schema}",
                literal(tokenizer, &format!("{front}{name}{middle}")),
                literal(tokenizer, back),
            ));
            names.push(format!("call{index}"));
        }
        let calls = names.join(" | ");
        let between = literal(tokenizer, frame.between);
        // Mistral's list is one block: one call in it.
        let more = match is_parallel && self.tools != ToolFormat::Mistral {
            true => format!("({between} call)*"),
            false => String::new(),
        };
        let (front, back) = frame.outer;
        let start = format!(
            "start: {} call {more} {}",
            literal(tokenizer, front),
            literal(tokenizer, back)
        );
        Ok(Some(format!(
            "{start}\ncall: {calls}\n{}\n",
            rules.join("\n")
        )))
    }
}

/// A text in a rule: special tokens by their ids, the rest in quotation marks.
fn literal(tokenizer: &Tokenizer, text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    for mark in ["<tool_call>", "</tool_call>", "[TOOL_CALLS]"] {
        if let Some((front, back)) = text.split_once(mark)
            && tokenizer.is_special(mark)
            && let Some(id) = tokenizer.token_to_id(mark)
        {
            let (front, back) = (literal(tokenizer, front), literal(tokenizer, back));
            return format!("{front} <[{id}]> {back}");
        }
    }
    // A JSON string is a string of Lark.
    Value::from(text).to_string()
}
