//! Grammars that constrain a reply to tool calls, in llguidance's variant of Lark, and the rules of such a grammar.

mod arguments;
mod custom;

#[cfg(test)]
pub(super) use self::arguments::tags_of;
#[cfg(feature = "serve")]
pub(crate) use self::custom::INPUT;

use serde_json::{Value, json};

use super::{ReplyFormat, ToolFormat};
use crate::error::Result;
use crate::text::tokenizer::Tokenizer;

/// The tools that a reply may or must call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any number of calls, or none.
    #[default]
    Auto,
    /// No call: the tools are not shown to the model.
    None,
    /// At least one call.
    Required,
    /// One call of this tool.
    Named(String),
}

/// The texts around the calls of a form. Of `outer.0` and `front`, the first that is not empty
/// begins with `open`.
struct Frame {
    /// The mark that begins calls.
    open: &'static str,
    /// Before the first call, and after the last.
    outer: (&'static str, &'static str),
    /// Before a call's name.
    front: &'static str,
    /// Whether the name is a JSON string.
    is_quoted: bool,
    /// After the name, and after the arguments.
    middle: &'static str,
    back: &'static str,
    /// Between two calls; `None` if a reply has one call. It does not begin as the text after the last call does: a
    /// grammar's words are the longest.
    between: Option<&'static str>,
}

/// JSON objects without marks.
const OBJECT: Frame = Frame {
    open: "",
    outer: ("", ""),
    front: "{\"name\": ",
    is_quoted: true,
    middle: ", \"arguments\": ",
    back: "}",
    between: Some(", "),
};

/// A JSON list between marks.
const fn listed(open: &'static str, outer: (&'static str, &'static str)) -> Frame {
    Frame {
        open,
        outer,
        ..OBJECT
    }
}

impl ReplyFormat {
    /// The grammar of a reply that calls tools as `choice` demands: one call, or several with
    /// `is_parallel`. A named tool is called once. If calls are optional and at least one tool is
    /// `strict`, the grammar allows free text with calls in it. If calls are optional and no tool
    /// is strict, there is no grammar. The input of a tool whose `custom` has a `format` of type
    /// `grammar` matches that grammar, and such a tool counts as strict.
    ///
    /// # Errors
    /// A strict tool's schema has a keyword that the family's form cannot express.
    pub fn grammar(
        &self,
        tokenizer: &Tokenizer,
        tools: &[Value],
        choice: &ToolChoice,
        is_parallel: bool,
    ) -> Result<Option<String>> {
        let is_strict = |tool: &Value| tool["function"]["strict"] == true;
        let is_held =
            |tool: &Value| is_strict(tool) || tool["custom"]["format"]["type"] == "grammar";
        let is_free = match choice {
            ToolChoice::None => return Ok(None),
            ToolChoice::Auto if !tools.iter().any(is_held) => return Ok(None),
            ToolChoice::Auto => true,
            ToolChoice::Required | ToolChoice::Named(_) => false,
        };
        let is_parallel = is_parallel && !matches!(choice, ToolChoice::Named(_));
        let wanted = |tool: &&Value| match choice {
            ToolChoice::Named(name) => tool["function"]["name"] == **name,
            _ => true,
        };
        let mut frame = self.frame();
        let mut rules = Rules::new(tokenizer, self.tools);
        // A mark that is not a special token ends the free text before the calls, and belongs to
        // that text.
        let is_cut = is_free && !frame.open.is_empty() && !rules.is_special(frame.open);
        let is_each = is_cut && frame.outer.0.is_empty();
        if is_cut {
            let cut = |text: &'static str| text.strip_prefix(frame.open).unwrap_or(text);
            (frame.outer.0, frame.front) = (cut(frame.outer.0), cut(frame.front));
        }
        let mut calls = Vec::new();
        for tool in tools.iter().filter(wanted) {
            let function = &tool["function"];
            let name = function["name"].as_str().unwrap_or_default();
            let name = match frame.is_quoted {
                true => json!(name).to_string(),
                false => name.to_owned(),
            };
            let schema = match &function["parameters"] {
                schema @ Value::Object(_) => schema.clone(),
                _ => json!({"type": "object"}),
            };
            let format = &tool["custom"]["format"];
            let arguments = match format["type"] == "grammar" {
                true => rules.text_of(self.tools, format)?,
                false => rules.arguments(self.tools, &schema, is_strict(tool))?,
            };
            let (front, back) = (
                rules.literal(&format!("{}{name}", frame.front)),
                rules.literal(frame.back),
            );
            let middle = rules.literal(frame.middle);
            let number = if self.tools == ToolFormat::Kimi {
                "\":\" /[0-9]{1,2}/"
            } else {
                ""
            };
            calls.push(rules.rule(&format!("{front} {number} {middle} {arguments} {back}")));
        }
        let call = rules.rule(&calls.join(" | "));
        let (front, back) = (rules.literal(frame.outer.0), rules.literal(frame.outer.1));
        let block = match frame.between.filter(|_| is_parallel && !is_each) {
            Some(between) => format!("{front} {call} ({} {call})* {back}", rules.literal(between)),
            None => format!("{front} {call} {back}"),
        };
        let start = match is_free {
            false if self.tools == ToolFormat::Harmony => {
                let analysis = analysis(&mut rules);
                format!("({analysis})* {block}")
            }
            false => block,
            true if self.tools == ToolFormat::Harmony => {
                let analysis = analysis(&mut rules);
                let open = rules.literal("<|channel|>commentary<|message|>");
                let preamble = rules.text_until("<|end|><|start|>assistant");
                let last = rules.literal("<|channel|>final<|message|>");
                let text = rules.text();
                let front = format!("({analysis} | {open} {preamble})*");
                format!("{front} ({block} | {last} {text}) | {text}")
            }
            true => free(&mut rules, &block, frame.open),
        };
        Ok(Some(rules.finish(&start)))
    }

    /// Calls as they stand in a reply: names, and arguments in JSON.
    pub(in super::super) fn written(&self, calls: &[(&str, String)]) -> String {
        let frame = self.frame();
        let call = |(name, arguments): &(&str, String)| {
            let name = match frame.is_quoted {
                true => json!(name).to_string(),
                false => (*name).to_owned(),
            };
            let Frame {
                front,
                middle,
                back,
                ..
            } = frame;
            format!("{front}{name}{middle}{arguments}{back}")
        };
        let calls: Vec<String> = calls.iter().map(call).collect();
        let (front, back) = frame.outer;
        format!(
            "{front}{}{back}",
            calls.join(frame.between.unwrap_or_default())
        )
    }

    fn frame(&self) -> Frame {
        match self.tools {
            ToolFormat::Hermes => Frame {
                open: "<tool_call>",
                front: "<tool_call>\n{\"name\": ",
                back: "}\n</tool_call>",
                between: Some("\n"),
                ..OBJECT
            },
            ToolFormat::Llama3 | ToolFormat::Llama4 => Frame {
                middle: ", \"parameters\": ",
                between: Some("; "),
                ..OBJECT
            },
            ToolFormat::Mistral => Frame {
                open: "[TOOL_CALLS]",
                outer: ("[TOOL_CALLS][", "]"),
                ..OBJECT
            },
            ToolFormat::MistralArgs => Frame {
                open: "[TOOL_CALLS]",
                front: "[TOOL_CALLS]",
                is_quoted: false,
                middle: "[ARGS]",
                back: "",
                between: Some(""),
                ..OBJECT
            },
            ToolFormat::DeepSeek => Frame {
                open: "<｜tool▁calls▁begin｜>",
                outer: ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
                is_quoted: false,
                between: Some(""),
                ..match self.is_fenced {
                    true => Frame {
                        front: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                        middle: "\n```json\n",
                        back: "\n```<｜tool▁call▁end｜>",
                        ..OBJECT
                    },
                    false => Frame {
                        front: "<｜tool▁call▁begin｜>",
                        middle: "<｜tool▁sep｜>",
                        back: "<｜tool▁call▁end｜>",
                        ..OBJECT
                    },
                }
            },
            ToolFormat::Kimi => Frame {
                open: "<|tool_calls_section_begin|>",
                outer: ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
                front: "<|tool_call_begin|>functions.",
                is_quoted: false,
                middle: "<|tool_call_argument_begin|>",
                back: "<|tool_call_end|>",
                between: Some(""),
            },
            ToolFormat::Harmony => Frame {
                open: "<|channel|>",
                front: "<|channel|>commentary to=functions.",
                is_quoted: false,
                middle: " <|constrain|>json<|message|>",
                back: "",
                between: None,
                ..OBJECT
            },
            ToolFormat::Gemma4 => Frame {
                open: "<|tool_call>",
                front: "<|tool_call>call:",
                is_quoted: false,
                middle: "",
                back: "<tool_call|>",
                between: Some(""),
                ..OBJECT
            },
            ToolFormat::FunctionGemma => Frame {
                open: "<start_function_call>",
                front: "<start_function_call>call:",
                is_quoted: false,
                middle: "",
                back: "<end_function_call>",
                between: Some(""),
                ..OBJECT
            },
            ToolFormat::Qwen3Coder => Frame {
                open: "<tool_call>",
                front: "<tool_call>\n<function=",
                is_quoted: false,
                middle: ">\n",
                back: "</function>\n</tool_call>",
                between: Some("\n"),
                ..OBJECT
            },
            ToolFormat::MiniMax => Frame {
                open: "<minimax:tool_call>",
                outer: ("<minimax:tool_call>\n", "</minimax:tool_call>"),
                front: "<invoke name=",
                is_quoted: true,
                middle: ">\n",
                back: "</invoke>\n",
                between: Some(""),
            },
            ToolFormat::Seed => Frame {
                open: "<seed:tool_call>",
                front: "<seed:tool_call>\n<function=",
                is_quoted: false,
                middle: ">\n",
                back: "</function>\n</seed:tool_call>",
                between: Some("\n"),
                ..OBJECT
            },
            ToolFormat::Granite => listed("<|tool_call|>", ("<|tool_call|>[", "]")),
            ToolFormat::Hunyuan => listed("<tool_calls>", ("<tool_calls>[", "]</tool_calls>")),
            ToolFormat::Nemotron => listed("<TOOLCALL>", ("<TOOLCALL>[", "]</TOOLCALL>")),
            ToolFormat::Lfm2 => listed(
                "<|tool_call_start|>",
                ("<|tool_call_start|>[", "]<|tool_call_end|>"),
            ),
            ToolFormat::Olmo3 => listed(
                "<function_calls>",
                ("<function_calls>[", "]</function_calls>"),
            ),
            ToolFormat::Apertus => Frame {
                front: "{",
                middle: ": ",
                ..listed(
                    "<|tools_prefix|>",
                    ("<|tools_prefix|>[", "]<|tools_suffix|>"),
                )
            },
            ToolFormat::Dsml => Frame {
                open: "<｜DSML｜function_calls>",
                outer: ("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"),
                front: "<｜DSML｜invoke name=",
                is_quoted: true,
                middle: ">\n",
                back: "</｜DSML｜invoke>\n",
                between: Some(""),
            },
            ToolFormat::DsmlCalls => Frame {
                open: "<｜DSML｜tool_calls>",
                outer: ("<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>"),
                front: "<｜DSML｜invoke name=",
                is_quoted: true,
                middle: ">\n",
                back: "</｜DSML｜invoke>\n",
                between: Some(""),
            },
            ToolFormat::DsmlSpaced => Frame {
                open: "<｜DSML｜ calls>",
                outer: ("<｜DSML｜ calls>\n", "</｜DSML｜ calls>"),
                front: "<｜DSML｜ invoke name=",
                is_quoted: true,
                middle: ">\n",
                back: "</｜DSML｜ invoke>\n",
                between: Some(""),
            },
            ToolFormat::Gcml => Frame {
                open: "<｜GCML｜tool_calls>",
                outer: ("<｜GCML｜tool_calls>\n", "</｜GCML｜tool_calls>"),
                front: "<｜GCML｜invoke name=",
                is_quoted: true,
                middle: ">\n",
                back: "</｜GCML｜invoke>\n",
                between: Some(""),
            },
            ToolFormat::GigaChat => Frame {
                open: "<|function_call|>",
                front: "<|function_call|>{\"name\": ",
                between: None,
                ..OBJECT
            },
            ToolFormat::KimiK3 => Frame {
                open: "<|open|>tools<|sep|>",
                outer: ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
                front: "<|open|>call tool=",
                is_quoted: true,
                middle: " index=\"1\"<|sep|>",
                back: "<|close|>call<|sep|>",
                between: Some(""),
            },
            ToolFormat::LongCat => Frame {
                open: "<longcat_tool_call>",
                front: "<longcat_tool_call>",
                is_quoted: false,
                middle: "\n",
                back: "</longcat_tool_call>",
                between: Some("\n"),
                ..OBJECT
            },
            ToolFormat::IQuest => Frame {
                open: "<iquest_tool_call>",
                front: "<iquest_tool_call>",
                is_quoted: false,
                middle: "\n",
                back: "</iquest_tool_call>",
                between: Some("\n"),
                ..OBJECT
            },
            ToolFormat::HunyuanTags => Frame {
                open: "<tool_calls>",
                outer: ("<tool_calls>\n", "</tool_calls>"),
                front: "<tool_call>",
                is_quoted: false,
                middle: "<tool_sep>\n",
                back: "</tool_call>\n",
                between: Some(""),
            },
            ToolFormat::HunyuanOpen => Frame {
                open: "<tool_calls:opensource>",
                outer: ("<tool_calls:opensource>\n", "</tool_calls:opensource>"),
                front: "<tool_call:opensource>",
                is_quoted: false,
                middle: "<tool_sep:opensource>\n",
                back: "</tool_call:opensource>\n",
                between: Some(""),
            },
            ToolFormat::Step3 => Frame {
                open: "<｜tool_calls_begin｜>",
                outer: ("<｜tool_calls_begin｜>\n", "<｜tool_calls_end｜>"),
                front: "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=",
                is_quoted: true,
                middle: ">\n",
                back: "</steptml:invoke><｜tool_call_end｜>\n",
                between: Some(""),
            },
            ToolFormat::Atem => Frame {
                open: "<atem:function_calls>",
                outer: ("<atem:function_calls>\n", "</atem:function_calls>"),
                front: "<atem:invoke name=",
                is_quoted: true,
                middle: ">\n",
                back: "</atem:invoke>\n",
                between: Some(""),
            },
            ToolFormat::Dots => Frame {
                open: "<dots_function_call>",
                outer: ("<dots_function_call>\n", "</dots_function_call>"),
                front: "<invoke name=",
                is_quoted: true,
                middle: ">\n",
                back: "</invoke>\n",
                between: Some(""),
            },
            ToolFormat::MiniCpm5 => Frame {
                open: "<function name=",
                front: "<function name=",
                is_quoted: true,
                middle: ">",
                back: "</function>",
                between: Some("\n"),
                ..OBJECT
            },
            ToolFormat::InternLm => Frame {
                open: "<|action_start|>",
                front: "<|action_start|> <|plugin|>\n{\"name\": ",
                middle: ", \"parameters\": ",
                back: "}<|action_end|>",
                between: Some("\n"),
                ..OBJECT
            },
            ToolFormat::Command => Frame {
                front: "{\"tool_call_id\": \"0\", \"tool_name\": ",
                middle: ", \"parameters\": ",
                ..listed("<|START_ACTION|>", ("<|START_ACTION|>[", "]<|END_ACTION|>"))
            },
            ToolFormat::Glm => Frame {
                open: "<tool_call>",
                front: "<tool_call>",
                is_quoted: false,
                middle: "\n",
                back: "</tool_call>",
                between: Some("\n"),
                ..OBJECT
            },
        }
    }
}

/// The grammar of the text before an answer in the harmony format: reasoning, and the head of the answer's message.
pub(super) fn harmony_front(tokenizer: &Tokenizer) -> String {
    let mut rules = Rules::new(tokenizer, ToolFormat::Harmony);
    let analysis = analysis(&mut rules);
    let head = rules.literal("<|channel|>final<|message|>");
    rules.finish(&format!("({analysis})* {head}"))
}

/// A message of reasoning, and the beginning of the next message.
fn analysis(rules: &mut Rules<'_>) -> String {
    let open = rules.literal("<|channel|>analysis<|message|>");
    let text = rules.text_until("<|end|><|start|>assistant");
    format!("{open} {text}")
}

/// Free text in which every mark of a call begins a call.
fn free(rules: &mut Rules<'_>, block: &str, open: &str) -> String {
    if open.is_empty() {
        // A call is the whole reply, and no other reply may begin with its first character.
        return format!("{block} | /[^{{ \\n](.|\\n)*/");
    }
    let (text, block) = (rules.text(), rules.rule(block));
    match rules.is_special(open) {
        true => format!("{text} ({block} {text})*"),
        false => {
            let front = rules.text_until(open);
            format!("({front} {block})* {text}")
        }
    }
}

/// The rules so far. Special tokens are written by id, other text in quotation marks.
pub(super) struct Rules<'t> {
    tokenizer: &'t Tokenizer,
    /// The form's marks that are special tokens.
    special: Vec<(&'static str, u32)>,
    lines: Vec<String>,
    named: Vec<&'static str>,
}

impl<'t> Rules<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer, form: ToolFormat) -> Self {
        let marks = form.marks().iter().chain(form.inner_marks()).copied();
        let special = marks.filter(|mark| tokenizer.is_special(mark));
        let special = special.filter_map(|mark| Some((mark, tokenizer.token_to_id(mark)?)));
        Self {
            tokenizer,
            special: special.collect(),
            lines: Vec::new(),
            named: Vec::new(),
        }
    }

    pub(super) fn is_special(&self, mark: &str) -> bool {
        self.tokenizer.is_special(mark)
    }

    /// Adds a rule of this text. Returns its name.
    pub(super) fn rule(&mut self, text: &str) -> String {
        let name = format!("r{}", self.lines.len());
        self.lines.push(format!("{name}: {text}"));
        name
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.named.contains(&name)
    }

    /// A rule that is added only once.
    pub(super) fn once(&mut self, name: &'static str, text: &str) -> &'static str {
        if !self.named.contains(&name) {
            self.named.push(name);
            self.lines.push(format!("{name}: {text}"));
        }
        name
    }

    /// A literal text.
    pub(super) fn literal(&self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let first = self
            .special
            .iter()
            .filter_map(|&(mark, id)| Some((text.find(mark)?, mark, id)));
        match first.min() {
            Some((at, mark, id)) => {
                let (front, back) = (&text[..at], &text[at + mark.len()..]);
                let (front, back) = (self.literal(front), self.literal(back));
                format!("{front} <[{id}]> {back}").trim().to_owned()
            }
            // A JSON string is a string of Lark.
            None => Value::from(text).to_string(),
        }
    }

    /// Any text without special tokens.
    pub(super) fn text(&mut self) -> &'static str {
        self.once("text", "/(.|\\n)*/")
    }

    /// Any text up to `end`, and `end`.
    pub(super) fn text_until(&mut self, end: &str) -> String {
        let literal = self.literal(end);
        if literal.starts_with("<[") {
            return format!("{} {literal}", self.text());
        }
        // If a literal contains a special token, its part before the token ends the text.
        let (quoted, rest) = match literal.find(" <[") {
            Some(at) => literal.split_at(at),
            None => (literal.as_str(), ""),
        };
        let name = format!("r{}", self.lines.len());
        self.lines
            .push(format!("{name}[suffix={quoted}]: /(.|\\n)*/"));
        format!("{name} {rest}")
    }

    /// The grammar whose texts match `start`.
    pub(super) fn finish(self, start: &str) -> String {
        format!("start: {start}\n{}\n", self.lines.join("\n"))
    }
}
