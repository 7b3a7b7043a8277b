//! The syntax of each family's calls: its marks, and the reader of the text after them.

use super::ToolFormat;
use super::body::Body;
use super::envelope::Envelope;
use super::named::{self, Named};
use super::notation::Notation;
use super::pythonic::Pythonic;
use super::tags::{self, Tags};

/// What a mark in a reply begins.
pub(super) enum Begins {
    /// A block of calls.
    Block(Body),
    /// Nothing: the mark surrounds blocks.
    Nothing,
}

impl ToolFormat {
    /// The marks that begin calls, and those around them.
    pub(super) fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &["<tool_call>"],
            Self::Qwen3Coder => &["<tool_call>", "<function="],
            Self::Glm => &["<tool_call>"],
            Self::MiniMax => &["<minimax:tool_call>"],
            Self::Llama3 => &["<|python_tag|>"],
            Self::Mistral | Self::MistralArgs => &["[TOOL_CALLS]"],
            Self::Gemma4 => &["<|tool_call>"],
            Self::FunctionGemma => &["<start_function_call>"],
            Self::DeepSeek => &[
                "<｜tool▁call▁begin｜>",
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁calls▁end｜>",
            ],
            Self::Kimi => &[
                "<|tool_call_begin|>",
                "<|tool_calls_section_begin|>",
                "<|tool_calls_section_end|>",
            ],
            Self::Harmony => &[],
            Self::Seed => &["<seed:tool_call>"],
            Self::Granite => &["<|tool_call|>"],
            Self::Command => &["<|START_ACTION|>"],
            Self::Hunyuan => &["<tool_calls>"],
            Self::Nemotron => &["<TOOLCALL>"],
            Self::Lfm2 => &["<|tool_call_start|>"],
            Self::Olmo3 => &["<function_calls>"],
            Self::Llama4 => &["<|python_start|>"],
            Self::Apertus => &["<|tools_prefix|>"],
            Self::Dsml => &["<｜DSML｜function_calls>"],
        }
    }

    /// Marks inside of calls.
    pub(super) fn inner_marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::Qwen3Coder => &["</tool_call>"],
            Self::Glm => &[
                "</tool_call>",
                "<arg_key>",
                "</arg_key>",
                "<arg_value>",
                "</arg_value>",
            ],
            Self::MiniMax => &["</minimax:tool_call>"],
            Self::Llama3 | Self::Granite => &[],
            Self::Seed => &["</seed:tool_call>"],
            Self::Command => &["<|END_ACTION|>"],
            Self::Hunyuan => &["</tool_calls>"],
            Self::Nemotron => &["</TOOLCALL>"],
            Self::Lfm2 => &["<|tool_call_end|>"],
            Self::Olmo3 => &["</function_calls>"],
            Self::Llama4 => &["<|python_end|>"],
            Self::Apertus => &["<|tools_suffix|>"],
            Self::Dsml => &["｜DSML｜"],
            Self::Mistral | Self::MistralArgs => &["[ARGS]", "[CALL_ID]"],
            Self::Gemma4 => &["<tool_call|>", "<|\"|>"],
            Self::FunctionGemma => &["<end_function_call>", "<escape>"],
            Self::DeepSeek => &["<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
            Self::Kimi => &["<|tool_call_argument_begin|>", "<|tool_call_end|>"],
            Self::Harmony => super::harmony::MARKS,
        }
    }

    /// The reader for a reply that begins with this character, if it may be a call without a mark.
    pub(super) fn bare(self, first: char) -> Option<Body> {
        match (self, first) {
            (Self::Llama3 | Self::Llama4, '{') => Some(Body::Envelope(Envelope::bare())),
            (Self::Llama4, '[') => Some(Body::Pythonic(Pythonic::bare())),
            _ => None,
        }
    }

    /// What a mark begins.
    pub(super) fn begins(self, mark: &str) -> Begins {
        Begins::Block(match self {
            Self::Hermes => Body::Envelope(Envelope::new("</tool_call>")),
            Self::Qwen3Coder if mark == "<function=" => Body::Tags(Tags::named(&tags::QWEN3_CODER)),
            Self::Qwen3Coder => json_or(Body::Tags(Tags::new(&tags::QWEN3_CODER))),
            Self::Glm => json_or(Body::Tags(Tags::new(&tags::GLM))),
            Self::MiniMax => Body::Tags(Tags::new(&tags::MINIMAX)),
            Self::Seed => Body::Tags(Tags::new(&tags::SEED)),
            Self::Granite => Body::Envelope(Envelope::new("")),
            Self::Command => Body::Envelope(Envelope::new("<|END_ACTION|>")),
            Self::Hunyuan => Body::Envelope(Envelope::new("</tool_calls>")),
            Self::Nemotron => Body::Envelope(Envelope::new("</TOOLCALL>")),
            Self::Lfm2 => Body::Pythonic(Pythonic::new("<|tool_call_end|>")),
            Self::Olmo3 => Body::Pythonic(Pythonic::new("</function_calls>")),
            Self::Llama4 => Body::Pythonic(Pythonic::new("<|python_end|>")),
            Self::Apertus => Body::Envelope(Envelope::keyed("<|tools_suffix|>")),
            Self::Dsml => Body::Tags(Tags::new(&tags::DSML)),
            Self::Llama3 => Body::Envelope(Envelope::bare()),
            Self::Mistral | Self::MistralArgs => {
                let named = Body::Named(Named::new(named::mistral, ""));
                Body::Either(Box::new((Envelope::new(""), named)))
            }
            Self::Gemma4 => Body::Notation(Notation::new("<|\"|>", "<tool_call|>")),
            Self::FunctionGemma => Body::Notation(Notation::new("<escape>", "<end_function_call>")),
            Self::DeepSeek if mark == self.marks()[0] => {
                Body::Named(Named::new(named::deepseek, "<｜tool▁call▁end｜>"))
            }
            Self::Kimi if mark == self.marks()[0] => {
                Body::Named(Named::new(named::kimi, "<|tool_call_end|>"))
            }
            Self::DeepSeek | Self::Kimi | Self::Harmony => return Begins::Nothing,
        })
    }
}

/// Some models write JSON between the marks of the other form.
fn json_or(other: Body) -> Body {
    Body::Either(Box::new((Envelope::new("</tool_call>"), other)))
}
