//! Takes a model's reply apart into reasoning, content and tool calls.
//!
//! Each family of models has its own syntax for reasoning and tool calls. [`ReplyFormat::detect`] recognises the syntax
//! by the chat template and the vocabulary. A [`ReplyParser`] reads a reply while it is generated. The joined parts do
//! not depend on how the text is cut into pieces.
//!
//! - A text that looks like a call stays content if it does not parse or if no offered tool has its name. The first 128
//!   bytes of a call's arguments are held back until the call is complete. If a longer call stops being valid, it ends
//!   there, and the rest is content.
//! - A reply that ends within the arguments of a call yields the beginning of the call, without [`Part::CallEnd`]. A call
//!   that ends before its arguments stays content.
//! - White space around reasoning, inside its marks, and between calls is dropped.

mod calls;
mod channel;
mod grammar;
mod harmony;
mod json;
mod marks;
mod named;
mod notation;
mod parser;
mod pythonic;
mod seen;
mod tags;
#[cfg(test)]
mod tests;

use serde_json::Value;

#[cfg(feature = "serve")]
pub(crate) use self::grammar::INPUT;
pub use self::grammar::ToolChoice;
pub use self::parser::ReplyParser;

use self::seen::Seen;

use super::ChatTemplate;
use crate::text::tokenizer::Tokenizer;

/// A part of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Reasoning: the text before the answer.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
    /// A call of a tool begins.
    CallStart {
        /// Which call of the reply, from 0.
        index: usize,
        /// The tool, one of those that the request offers.
        name: String,
    },
    /// A piece of the call's arguments. The joined pieces are the text of a JSON object, or its beginning if the reply
    /// ends early.
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
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>` (Hermes, Qwen 2.5 and 3). Also used
    /// for models with an unknown form.
    Hermes,
    /// `<tool_call><function=f><parameter=p>..</parameter></function></tool_call>` (Qwen3-Coder, Qwen 3.5).
    Qwen3Coder,
    /// `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>` (GLM 4.5).
    Glm,
    /// `<minimax:tool_call><invoke name="f"><parameter name="p">..</parameter></invoke></minimax:tool_call>` (MiniMax M2).
    MiniMax,
    /// `{"name": .., "parameters": {..}}`, alone or behind `<|python_tag|>` (Llama 3).
    Llama3,
    /// `[TOOL_CALLS][{"name": .., "arguments": {..}}]` (Mistral).
    Mistral,
    /// `[TOOL_CALLS]f[ARGS]{..}` (Mistral since 2025).
    MistralArgs,
    /// `<|tool_call>call:f{k:<|"|>v<|"|>}<tool_call|>` (Gemma 4).
    Gemma4,
    /// `<start_function_call>call:f{k:<escape>v<escape>}<end_function_call>` (FunctionGemma).
    FunctionGemma,
    /// `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{..}<｜tool▁call▁end｜>` (DeepSeek V3.1, and the longer form of V3).
    DeepSeek,
    /// `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{..}<|tool_call_end|>` (Kimi K2).
    Kimi,
    /// Channels of the harmony format (gpt-oss).
    Harmony,
    /// `<seed:tool_call><function=f><parameter=p>..</parameter></function></seed:tool_call>` (Seed-OSS).
    Seed,
    /// `<|tool_call|>[{"name": .., "arguments": {..}}]` (Granite 3, Phi 4 mini).
    Granite,
    /// `<|START_ACTION|>[{"tool_name": .., "parameters": {..}}]<|END_ACTION|>` (Command R7B, A).
    Command,
    /// `<tool_calls>[{"name": .., "arguments": {..}}]</tool_calls>` (Hunyuan).
    Hunyuan,
    /// `<TOOLCALL>[{"name": .., "arguments": {..}}]</TOOLCALL>` (Nemotron).
    Nemotron,
    /// `<|tool_call_start|>[f(k="v")]<|tool_call_end|>`, or JSON between the marks (LFM 2). The
    /// calls are returned when the block is complete.
    Lfm2,
    /// `<function_calls>f(k="v")</function_calls>`, or JSON between the marks (OLMo 3). The calls
    /// are returned when the block is complete.
    Olmo3,
    /// `[f(k="v")]`, alone or between `<|python_start|>` and `<|python_end|>`, or JSON there (Llama
    /// 4). A list of calls is returned when it is complete.
    Llama4,
    /// `<|tools_prefix|>[{"f": {..}}]<|tools_suffix|>` (Apertus).
    Apertus,
    /// `<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="p" string="true">..</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>`
    /// (DeepSeek V3.2).
    Dsml,
    /// `<｜DSML｜tool_calls>` with the same calls (DeepSeek V4).
    DsmlCalls,
    /// `<｜DSML｜ calls>` with a space in each tag (DeepSeek V4.1).
    DsmlSpaced,
    /// `<｜GCML｜tool_calls><｜GCML｜invoke name="f"><｜GCML｜parameter name="p" string="true">..</｜GCML｜parameter></｜GCML｜invoke></｜GCML｜tool_calls>`
    /// (GigaChat 3.5).
    Gcml,
    /// `<|function_call|>{"name": .., "arguments": {..}}` (GigaChat 3).
    GigaChat,
    /// `<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>`, then for each parameter
    /// `<|open|>argument key="p" type="string"<|sep|>..<|close|>argument<|sep|>` (Kimi K3).
    KimiK3,
    /// GLM's form with `longcat_` in each tag (LongCat).
    LongCat,
    /// GLM's form in `<iquest_tool_call>` (IQuest Q1).
    IQuest,
    /// `<tool_calls><tool_call>f<tool_sep><arg_key>k</arg_key><arg_value>v</arg_value></tool_call></tool_calls>`
    /// (Hunyuan 3 and 4).
    HunyuanTags,
    /// The same with `:opensource` in each tag.
    HunyuanOpen,
    /// `<steptml:invoke name="f"><steptml:parameter name="p">..</steptml:parameter></steptml:invoke>` between marks of
    /// their own (Step 3).
    Step3,
    /// `<atem:function_calls><atem:invoke name="f"><atem:parameter name="p">..</atem:parameter></atem:invoke></atem:function_calls>`
    /// (Muse).
    Atem,
    /// `<dots_function_call><invoke name="f"><parameter name="p">..</parameter></invoke></dots_function_call>`, or JSON
    /// between the marks (dots).
    Dots,
    /// `<function name="f"><param name="p">..</param></function>` (MiniCPM 5).
    MiniCpm5,
    /// `<|action_start|> <|plugin|>{"name": .., "parameters": {..}}<|action_end|>` (InternLM 2 and later).
    InternLm,
}

impl ToolFormat {
    /// Whether a call's arguments are a JSON object.
    fn is_json(self) -> bool {
        use ToolFormat::*;
        matches!(
            self,
            Hermes | Llama3 | Llama4 | Mistral | MistralArgs | DeepSeek
        )
    }

    /// The form whose marks a template or a vocabulary has.
    fn detect(has: impl Fn(&str) -> bool, is_token: impl Fn(&str) -> bool) -> Self {
        if has("<|channel|>") && (has("<|call|>") || is_token("<|call|>")) {
            Self::Harmony
        } else if has("<|tool_call>") {
            Self::Gemma4
        } else if has("<start_function_call>") {
            Self::FunctionGemma
        } else if has("<｜GCML｜") {
            Self::Gcml
        } else if has("<|open|>") && has("<|close|>") && has("<|sep|>") {
            Self::KimiK3
        } else if has("<longcat_tool_call>") {
            Self::LongCat
        } else if has("<iquest_tool_call>") {
            Self::IQuest
        } else if has("<tool_sep:opensource>") {
            Self::HunyuanOpen
        } else if has("<tool_sep>") {
            Self::HunyuanTags
        } else if has("<steptml:invoke") {
            Self::Step3
        } else if has("<atem:function_calls>") {
            Self::Atem
        } else if has("<dots_function_call>") {
            Self::Dots
        } else if has("<function name=") && has("<param name=") {
            Self::MiniCpm5
        } else if has("<|action_start|>") && has("<|plugin|>") {
            Self::InternLm
        } else if has("<|function_call|>") || has("function call<|role_sep|>") {
            Self::GigaChat
        } else if has("｜DSML｜ calls>") || has("｜DSML｜ invoke") {
            Self::DsmlSpaced
        } else if has("｜DSML｜tool_calls>") {
            Self::DsmlCalls
        } else if has("<｜DSML｜") {
            Self::Dsml
        } else if has("<｜tool▁call▁begin｜>") {
            Self::DeepSeek
        } else if has("<|tool_call_begin|>") {
            Self::Kimi
        } else if has("[TOOL_CALLS]") && has("[ARGS]") {
            Self::MistralArgs
        } else if has("[TOOL_CALLS]") {
            Self::Mistral
        } else if has("<minimax:tool_call>") {
            Self::MiniMax
        } else if has("<seed:tool_call>") {
            Self::Seed
        } else if has("<|START_ACTION|>") {
            Self::Command
        } else if has("<TOOLCALL>") {
            Self::Nemotron
        } else if has("<function_calls>") {
            Self::Olmo3
        } else if has("<function=") {
            Self::Qwen3Coder
        } else if has("<arg_key>") {
            Self::Glm
        } else if has("<tool_call>") {
            Self::Hermes
        } else if has("<|tool_call_start|>") {
            Self::Lfm2
        } else if has("<|tool_call|>") {
            Self::Granite
        } else if has("<tool_calls>") {
            Self::Hunyuan
        } else if has("<|tools_prefix|>") {
            Self::Apertus
        } else if has("<|python_start|>") || is_token("<|python_start|>") {
            Self::Llama4
        } else if has("<|python_tag|>") || is_token("<|python_tag|>") {
            Self::Llama3
        } else if is_token("<|tool_call_start|>") {
            // The templates of these models render tools, but no calls.
            Self::Lfm2
        } else if is_token("｜DSML｜") {
            // The model's repository has a program instead of a template.
            Self::Dsml
        } else {
            Self::Hermes
        }
    }
}

/// The marks around reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marks {
    open: &'static str,
    close: &'static str,
    /// Whether the mark also opens reasoning after content. Other marks open it only at the
    /// beginning of a reply.
    is_anywhere: bool,
}

const REASONING: [Marks; 11] = [
    Marks {
        open: "<think>",
        close: "</think>",
        is_anywhere: false,
    },
    Marks {
        open: "[THINK]",
        close: "[/THINK]",
        is_anywhere: true,
    },
    Marks {
        open: "<|channel>thought",
        close: "<channel|>",
        is_anywhere: true,
    },
    Marks {
        open: "<seed:think>",
        close: "</seed:think>",
        is_anywhere: false,
    },
    Marks {
        open: "<|START_THINKING|>",
        close: "<|END_THINKING|>",
        is_anywhere: true,
    },
    Marks {
        open: "<|inner_prefix|>",
        close: "<|inner_suffix|>",
        is_anywhere: true,
    },
    Marks {
        open: "<|open|>think<|sep|>",
        close: "<|close|>think<|sep|>",
        is_anywhere: true,
    },
    Marks {
        open: "<longcat_think>",
        close: "</longcat_think>",
        is_anywhere: false,
    },
    Marks {
        open: "<think:opensource>",
        close: "</think:opensource>",
        is_anywhere: false,
    },
    Marks {
        open: "<mm:think>",
        close: "</mm:think>",
        is_anywhere: false,
    },
    Marks {
        open: " to=self<|message|>",
        close: "<|eom|>",
        is_anywhere: true,
    },
];

/// Muse's marks of reasoning. Other models end other texts with the second one.
const MUSE: usize = 10;

/// Kimi K3's marks of reasoning. Templates write the parts of its tags apart.
const KIMI_K3: usize = 6;

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
    /// The texts of the special tokens.
    special: Vec<String>,
    /// Whether DeepSeek's calls have a fence around their arguments.
    is_fenced: bool,
    seen: Seen,
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
        let seen = Seen::by(template);
        let tools = match ToolFormat::detect(has, is_token) {
            // Only calls with JSON arguments can be described in a text.
            form if !seen.tools && !form.is_json() => ToolFormat::Hermes,
            form => form,
        };
        let is_fenced = has("```json");
        let reasoning = match tools {
            ToolFormat::KimiK3 => Some(REASONING[KIMI_K3]),
            ToolFormat::Atem if is_token("<|eom|>") || has("<|eom|>") => Some(REASONING[MUSE]),
            _ => {
                // Many vocabularies and templates have the first marks beside those of their family.
                let (usual, of_families) = (&REASONING[..1], &REASONING[1..MUSE]);
                let named = of_families.iter().find(|marks| has(marks.close));
                let mut all = usual.iter().chain(of_families);
                named
                    .or_else(|| all.find(|marks| is_token(marks.close) || has(marks.close)))
                    .copied()
            }
        };
        let reasoning = reasoning.filter(|_| tools != ToolFormat::Harmony);
        // Gemma 4 opens reasoning with a token and a word.
        let marks = reasoning.iter().flat_map(|marks| [marks.open, marks.close]);
        let kept = marks
            .chain(["<|channel>"])
            .chain(tools.marks().iter().copied())
            .chain(tools.inner_marks().iter().copied())
            .filter(|mark| tokenizer.is_special(mark))
            .filter_map(|mark| tokenizer.token_to_id(mark))
            .collect();
        Self {
            reasoning,
            tools,
            kept,
            special: tokenizer.special_texts(),
            is_fenced,
            seen,
        }
    }

    #[cfg(test)]
    pub(super) fn of(reasoning: Option<usize>, tools: ToolFormat) -> Self {
        Self {
            reasoning: reasoning.map(|index| REASONING[index]),
            tools,
            kept: Vec::new(),
            special: vec!["<|im_end|>".to_owned()],
            is_fenced: false,
            seen: Seen::ALL,
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

    /// The parts of a conversation that the template shows to the model.
    pub(super) fn seen(&self) -> Seen {
        self.seen
    }

    /// A parser of one reply to `prompt`, the text that the template rendered. `tools` are the
    /// offered tools in OpenAI's form. Without tools, calls are content.
    pub fn parser(&self, prompt: &str, tools: &[Value]) -> ReplyParser {
        ReplyParser::new(self, prompt, tools)
    }

    /// Whether a reply to `prompt` begins inside of reasoning, because the prompt opens reasoning in the turn of the
    /// reply and does not close it.
    pub fn begins_in_reasoning(&self, prompt: &str) -> bool {
        let Some(marks) = self.reasoning else {
            return false;
        };
        let Some((_, begun)) = prompt.rsplit_once(marks.open) else {
            return false;
        };
        // After the mark of an earlier turn there is a special token.
        !begun.contains(marks.close)
            && !self
                .special
                .iter()
                .any(|token| begun.contains(token.as_str()))
    }

    /// Whether the model has marks of reasoning.
    pub fn has_reasoning(&self) -> bool {
        self.reasoning.is_some() || self.tools == ToolFormat::Harmony
    }

    /// The marks of reasoning in a reply to `prompt`; `None` if the model has none.
    pub fn reasoning(&self, prompt: &str) -> Option<ReasoningMarks> {
        if self.tools == ToolFormat::Harmony {
            return Some(harmony::REASONING);
        }
        let Marks {
            open,
            close,
            is_anywhere,
        } = self.reasoning?;
        Some(ReasoningMarks {
            open,
            close,
            is_begun: self.begins_in_reasoning(prompt),
            is_anywhere,
            heads: None,
        })
    }

    /// The text before the answer in a reply to `prompt`.
    pub fn front(&self, tokenizer: &Tokenizer, prompt: &str) -> ReplyFront {
        if self.tools == ToolFormat::Harmony {
            return ReplyFront::Form(grammar::harmony_front(tokenizer));
        }
        let Some(Marks { open, close, .. }) = self.reasoning else {
            return ReplyFront::Nothing;
        };
        if self.begins_in_reasoning(prompt) {
            return ReplyFront::Reasoning { open: None, close };
        }
        // A prompt that has closed the reasoning of its own turn gets a reply without reasoning.
        match self.of_turn(prompt).contains(close) {
            true => ReplyFront::Nothing,
            false => ReplyFront::Reasoning {
                open: Some(open),
                close,
            },
        }
    }

    /// The part of the prompt after the last mark of a turn, which is a special token.
    fn of_turn<'p>(&self, prompt: &'p str) -> &'p str {
        let is_mark = |token: &&String| {
            let marks = self.reasoning.iter();
            let mut marks = marks.flat_map(|marks| [marks.open, marks.close]);
            !marks.any(|mark| mark.contains(token.as_str()))
        };
        let ends = self.special.iter().filter(is_mark);
        let ends = ends.filter_map(|token| Some(prompt.rfind(token.as_str())? + token.len()));
        &prompt[ends.max().unwrap_or(0)..]
    }
}

/// The marks of reasoning in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasoningMarks {
    /// The mark that opens reasoning.
    pub open: &'static str,
    /// The mark that ends it.
    pub close: &'static str,
    /// Whether the reply begins within reasoning.
    pub is_begun: bool,
    /// Whether reasoning may begin anywhere in the reply, and not only at its beginning.
    pub is_anywhere: bool,
    /// If reasoning is a message of its own: the text between it and the kind of the next message,
    /// the mark before a message's kind, and the kind of reasoning.
    pub heads: Option<[&'static str; 3]>,
}

/// The text before the answer in a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyFront {
    /// Nothing.
    Nothing,
    /// Reasoning up to `close`. With `open`, only if the reply begins with that mark.
    Reasoning {
        /// The mark that opens it.
        open: Option<&'static str>,
        /// The mark that ends it.
        close: &'static str,
    },
    /// Text that matches this Lark grammar: messages of other channels, and the head of the answer.
    Form(String),
}
