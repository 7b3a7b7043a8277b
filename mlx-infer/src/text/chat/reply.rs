//! What is in a model's reply: reasoning, content, and calls of tools.
//!
//! Families write reasoning and calls in forms of their own. [`ReplyFormat::detect`] recognises the form by the chat template and the vocabulary;
//! a [`ReplyParser`] reads a reply as it comes. The parts do not depend on how the text is cut into pieces. A text that looks like a call and is
//! none stays content, so nothing is lost.

mod calls;
mod grammar;
mod harmony;
mod json;
mod parser;
#[cfg(test)]
mod tests;
mod values;

use serde_json::Value;

pub use self::grammar::ToolChoice;
pub use self::parser::ReplyParser;

use super::ChatTemplate;
use crate::text::tokenizer::Tokenizer;

/// A part of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text that the model thinks before it answers.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
    /// A call of a tool begins.
    CallStart {
        /// Which call of the reply, from 0.
        index: usize,
        /// The tool, one of those on offer.
        name: String,
    },
    /// A piece of the call's arguments: joined, they are the text of a JSON object. They are cut short if the reply is.
    CallArguments {
        /// Which call.
        index: usize,
        /// The piece.
        json: String,
    },
    /// The call is complete.
    CallEnd {
        /// Which call.
        index: usize,
    },
}

/// The form in which a family writes calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>` (Hermes, Qwen 2.5 and 3). Also taken for models without a form of their own.
    Hermes,
    /// `<tool_call><function=f><parameter=p>..</parameter></function></tool_call>` (Qwen3-Coder, Qwen 3.5).
    Qwen3Coder,
    /// `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>` (GLM 4.5).
    Glm,
    /// `{"name": .., "parameters": {..}}`, alone or behind `<|python_tag|>` (Llama 3).
    Llama3,
    /// `[TOOL_CALLS][{"name": .., "arguments": {..}}]` or `[TOOL_CALLS]f[ARGS]{..}` (Mistral).
    Mistral,
    /// `<|tool_call>call:f{k:<|"|>v<|"|>}<tool_call|>` (Gemma 4).
    Gemma4,
    /// `<start_function_call>call:f{k:<escape>v<escape>}<end_function_call>` (FunctionGemma).
    FunctionGemma,
    /// `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{..}<｜tool▁call▁end｜>` (DeepSeek V3.1).
    DeepSeek,
    /// Channels of the harmony format (gpt-oss).
    Harmony,
}

/// The marks around reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

const REASONING: [Marks; 3] = [
    Marks {
        open: "<think>",
        close: "</think>",
    },
    Marks {
        open: "[THINK]",
        close: "[/THINK]",
    },
    Marks {
        open: "<|channel>thought\n",
        close: "<channel|>",
    },
];

/// How a model writes reasoning and calls of tools.
///
/// ```
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_infer::LoadedModel;
/// use mlx_infer::chat::reply::{Part, ReplyFormat};
/// let model = LoadedModel::load_default()?;
/// let format = ReplyFormat::detect(model.chat_template()?, model.tokenizer()?);
/// let tools = [serde_json::json!({"type": "function", "function": {"name": "add"}})];
/// let mut parser = format.parser("", &tools);
/// let mut parts = parser.push("So: <tool_call>{\"name\": \"add\", \"argum");
/// parts.extend(parser.push("ents\": {\"a\": 1}}</tool_call>"));
/// parts.extend(parser.finish());
/// assert_eq!(parts[0], Part::Content("So:".into()));
/// assert_eq!(parts[1], Part::CallStart { index: 0, name: "add".into() });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ReplyFormat {
    reasoning: Option<Marks>,
    tools: ToolFormat,
    kept: Vec<u32>,
}

impl ReplyFormat {
    /// Recognises the form by the marks in the template and in the vocabulary.
    pub fn detect(template: &ChatTemplate, tokenizer: &Tokenizer) -> Self {
        let sources: Vec<&str> = template
            .names()
            .filter_map(|name| template.source(name))
            .collect();
        let has = |mark: &str| sources.iter().any(|source| source.contains(mark));
        let is_token = |mark: &str| tokenizer.token_to_id(mark).is_some();
        let tools = if has("<|channel|>") && (has("<|call|>") || is_token("<|call|>")) {
            ToolFormat::Harmony
        } else if has("<|tool_call>") {
            ToolFormat::Gemma4
        } else if has("<start_function_call>") {
            ToolFormat::FunctionGemma
        } else if has("<｜tool▁call▁begin｜>") {
            ToolFormat::DeepSeek
        } else if has("[TOOL_CALLS]") {
            ToolFormat::Mistral
        } else if has("<function=") {
            ToolFormat::Qwen3Coder
        } else if has("<arg_key>") {
            ToolFormat::Glm
        } else if has("<tool_call>") {
            ToolFormat::Hermes
        } else if has("<|python_tag|>") || is_token("<|python_tag|>") {
            ToolFormat::Llama3
        } else {
            ToolFormat::Hermes
        };
        let reasoning = REASONING
            .into_iter()
            .find(|marks| is_token(marks.close) || has(marks.close));
        let reasoning = reasoning.filter(|_| tools != ToolFormat::Harmony);
        let marks = reasoning.iter().flat_map(|marks| [marks.open, marks.close]);
        let kept = marks
            .chain(calls::marks(tools).iter().copied())
            .chain(["<|channel>"])
            .filter(|mark| tokenizer.is_special(mark))
            .filter_map(|mark| tokenizer.token_to_id(mark))
            .collect();
        Self {
            reasoning,
            tools,
            kept,
        }
    }

    #[cfg(test)]
    pub(super) fn of(reasoning: Option<usize>, tools: ToolFormat) -> Self {
        Self {
            reasoning: reasoning.map(|index| REASONING[index]),
            tools,
            kept: Vec::new(),
        }
    }

    /// Special tokens whose text a parser needs, for [`GenerateOptions::kept_special`](crate::GenerateOptions::kept_special).
    pub fn kept_special(&self) -> &[u32] {
        &self.kept
    }

    /// The form of calls.
    pub fn tools(&self) -> ToolFormat {
        self.tools
    }

    /// A parser of one reply to `prompt`, the text that the template made. `tools` are those on offer, in OpenAI's form; without any, calls are
    /// content.
    pub fn parser(&self, prompt: &str, tools: &[Value]) -> ReplyParser {
        ReplyParser::new(self, self.begins_in_reasoning(prompt), tools)
    }

    /// Whether a reply to `prompt` begins inside of the reasoning, because the prompt has opened it and not closed it.
    pub fn begins_in_reasoning(&self, prompt: &str) -> bool {
        self.reasoning.is_some_and(|marks| {
            let opened = prompt.rfind(marks.open.trim_end());
            opened.is_some_and(|at| {
                let rest = &prompt[at + marks.open.trim_end().len()..];
                rest.trim().is_empty()
            })
        })
    }

    /// The mark behind which the answer to `prompt` begins, if the reply begins with reasoning.
    pub fn reasoning_end(&self, prompt: &str) -> Option<&str> {
        let marks = self.reasoning?;
        self.begins_in_reasoning(prompt).then_some(marks.close)
    }
}
