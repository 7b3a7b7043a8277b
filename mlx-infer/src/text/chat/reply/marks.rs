//! The marks of each form of calls.

use super::ToolFormat;
use super::channel;

/// Which calls count that a model makes inside of reasoning, without the mark that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallsInReasoning {
    /// All.
    Marked,
    /// Those whose mark begins a line: it may be quoted within one.
    Lines,
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
            // The repository of these models may have a program instead of a template, so that the form is known by a
            // token that all of them have.
            Self::Dsml | Self::DsmlCalls | Self::DsmlSpaced => &[
                "<｜DSML｜function_calls>",
                "<｜DSML｜tool_calls>",
                "<｜DSML｜ calls>",
            ],
            Self::Gcml => &["<｜GCML｜tool_calls>"],
            Self::GigaChat => &["<|function_call|>", "function call<|role_sep|>\n"],
            Self::KimiK3 => &["<|open|>tools<|sep|>"],
            Self::LongCat => &["<longcat_tool_call>"],
            Self::IQuest => &["<iquest_tool_call>"],
            Self::HunyuanTags => &["<tool_calls>"],
            Self::HunyuanOpen => &["<tool_calls:opensource>"],
            Self::Step3 => &["<｜tool_calls_begin｜>"],
            Self::Atem => &["<atem:function_calls>"],
            Self::Dots => &["<dots_function_call>"],
            Self::MiniCpm5 => &["<function name="],
            Self::InternLm => &["<|action_start|> <|plugin|>", "<|action_start|><|plugin|>"],
        }
    }

    /// Which calls inside of reasoning count, if any do. A text that looks like one and is none stays reasoning.
    pub(super) fn ends_reasoning(self) -> Option<CallsInReasoning> {
        match self {
            Self::Kimi | Self::KimiK3 => Some(CallsInReasoning::Marked),
            Self::Hermes | Self::Qwen3Coder => Some(CallsInReasoning::Lines),
            _ => None,
        }
    }

    /// Marks around content, which are not part of it.
    pub(super) fn frames(self) -> &'static [&'static str] {
        match self {
            Self::Command => &[
                "<|START_RESPONSE|>",
                "<|END_RESPONSE|>",
                "<|START_TEXT|>",
                "<|END_TEXT|>",
            ],
            Self::Atem => &[channel::START, "<|eom|>", "<|eot|>"],
            Self::KimiK3 => &[
                "<|open|>response<|sep|>",
                "<|close|>response<|sep|>",
                "<|close|>message<|sep|>",
            ],
            _ => &[],
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
            Self::Dsml | Self::DsmlCalls | Self::DsmlSpaced => &["｜DSML｜"],
            Self::Gcml => &["｜GCML｜"],
            Self::GigaChat => &["<|role_sep|>"],
            Self::KimiK3 => &["<|open|>", "<|close|>", "<|sep|>"],
            Self::LongCat => &[
                "</longcat_tool_call>",
                "<longcat_arg_key>",
                "</longcat_arg_key>",
                "<longcat_arg_value>",
                "</longcat_arg_value>",
            ],
            Self::IQuest => &[
                "</iquest_tool_call>",
                "<arg_key>",
                "</arg_key>",
                "<arg_value>",
                "</arg_value>",
            ],
            Self::HunyuanTags => &[
                "</tool_calls>",
                "<tool_call>",
                "</tool_call>",
                "<tool_sep>",
                "<arg_key>",
                "</arg_key>",
                "<arg_value>",
                "</arg_value>",
            ],
            Self::HunyuanOpen => &[
                "</tool_calls:opensource>",
                "<tool_call:opensource>",
                "</tool_call:opensource>",
                "<tool_sep:opensource>",
                "<arg_key:opensource>",
                "</arg_key:opensource>",
                "<arg_value:opensource>",
                "</arg_value:opensource>",
            ],
            Self::Step3 => &[
                "<｜tool_calls_end｜>",
                "<｜tool_call_begin｜>",
                "<｜tool_sep｜>",
                "<｜tool_call_end｜>",
            ],
            Self::Atem => &[
                "</atem:function_calls>",
                "<|start|>",
                "<|message|>",
                "<|eom|>",
                "<|eot|>",
            ],
            Self::Dots => &["</dots_function_call>"],
            Self::MiniCpm5 => &["<function", "</function>", "<param", "</param>"],
            Self::InternLm => &["<|action_start|>", "<|plugin|>", "<|action_end|>"],
            Self::Mistral | Self::MistralArgs => &["[ARGS]", "[CALL_ID]"],
            Self::Gemma4 => &["<tool_call|>", "<|\"|>"],
            Self::FunctionGemma => &["<end_function_call>", "<escape>"],
            Self::DeepSeek => &["<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
            Self::Kimi => &["<|tool_call_argument_begin|>", "<|tool_call_end|>"],
            Self::Harmony => super::harmony::MARKS,
        }
    }
}
