//! Calls of tools in the forms of the families.

mod xml;

use std::collections::HashMap;

use serde_json::Value;

use super::ToolFormat;
use super::json::{self, Head, Scan};
use super::parser::Out;
use super::values;

/// The tools on offer.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) format: ToolFormat,
    /// The schema of each tool's parameters.
    schemas: HashMap<String, Value>,
}

impl Tools {
    pub(super) fn new(format: ToolFormat, tools: &[Value]) -> Self {
        let schema = |tool: &Value| {
            let function = &tool["function"];
            let name = function["name"].as_str()?.to_owned();
            Some((name, function["parameters"].clone()))
        };
        Self {
            format,
            schemas: tools.iter().filter_map(schema).collect(),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.schemas.contains_key(name)
    }

    fn schema(&self, tool: &str, parameter: &str) -> Option<&Value> {
        self.schemas.get(tool)?.get("properties")?.get(parameter)
    }

    /// Whether a call may stand alone, without a mark.
    pub(super) fn has_bare_calls(&self) -> bool {
        self.format == ToolFormat::Llama3
    }

    /// The marks that open a block of calls, or stand around several.
    pub(super) fn opens(&self) -> &'static [&'static str] {
        match self.format {
            ToolFormat::Hermes | ToolFormat::Glm => &["<tool_call>"],
            ToolFormat::Qwen3Coder => &["<tool_call>", "<function="],
            ToolFormat::Llama3 => &["<|python_tag|>"],
            ToolFormat::Mistral => &["[TOOL_CALLS]"],
            ToolFormat::Gemma4 => &["<|tool_call>"],
            ToolFormat::FunctionGemma => &["<start_function_call>"],
            ToolFormat::DeepSeek => &[
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁call▁begin｜>",
                "<｜tool▁calls▁end｜>",
            ],
            ToolFormat::Harmony => &[],
        }
    }

    /// Whether a mark stands around calls and says nothing itself.
    pub(super) fn is_frame(&self, mark: &str) -> bool {
        mark.starts_with("<｜tool▁calls▁")
    }
}

/// All marks of a form.
pub(super) fn marks(format: ToolFormat) -> &'static [&'static str] {
    match format {
        ToolFormat::Hermes => &["<tool_call>", "</tool_call>"],
        ToolFormat::Qwen3Coder => &["<tool_call>", "</tool_call>"],
        ToolFormat::Glm => &[
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ],
        ToolFormat::Llama3 => &["<|python_tag|>"],
        ToolFormat::Mistral => &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
        ToolFormat::Gemma4 => &["<|tool_call>", "<tool_call|>", GEMMA4_TEXT],
        ToolFormat::FunctionGemma => &["<start_function_call>", "<end_function_call>", "<escape>"],
        ToolFormat::DeepSeek => &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ],
        ToolFormat::Harmony => super::harmony::MARKS,
    }
}

/// Around texts in Gemma 4's notation.
const GEMMA4_TEXT: &str = "<|\"|>";

/// How far a block was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More text is needed.
    Wait,
    /// The block is complete and taken from the text.
    Done,
    /// What stands in the text is no call of a tool on offer.
    NotACall,
}

/// A block of calls behind a mark.
#[derive(Debug)]
pub(super) struct Block {
    open: &'static str,
    has_begun: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// In front of a call.
    Head,
    /// In the JSON of the arguments. `is_inner`: an object around them is still open.
    Json { scan: Scan, is_inner: bool },
    /// Behind the arguments, in the object around them.
    Outer(Scan),
    /// Among parameters in XML; so many were given.
    Parameters { tool: String, given: usize },
    /// Behind a call.
    Tail,
}

impl Block {
    pub(super) fn new(open: &'static str) -> Self {
        Self {
            open,
            has_begun: false,
            stage: Stage::Head,
        }
    }

    pub(super) fn open(&self) -> &'static str {
        self.open
    }

    /// Whether a call of the block was given.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Reads from the front of `text`, and takes what is decided.
    pub(super) fn read(&mut self, text: &mut String, tools: &Tools, out: &mut Out) -> Progress {
        loop {
            let step = match &mut self.stage {
                Stage::Head => self.head(text, tools, out),
                Stage::Json { scan, is_inner } => match scan.read(text) {
                    Some(end) => {
                        out.arguments(&text[..end]);
                        text.drain(..end);
                        out.end();
                        self.stage = match is_inner {
                            true => Stage::Outer(Scan::inside()),
                            false => Stage::Tail,
                        };
                        None
                    }
                    None => {
                        out.arguments(text);
                        text.clear();
                        Some(Progress::Wait)
                    }
                },
                Stage::Outer(scan) => match scan.read(text) {
                    Some(end) => {
                        text.drain(..end);
                        self.stage = Stage::Tail;
                        None
                    }
                    None => {
                        text.clear();
                        Some(Progress::Wait)
                    }
                },
                Stage::Parameters { .. } => self.parameters(text, tools, out),
                Stage::Tail => self.tail(text, tools),
            };
            if let Some(progress) = step {
                return progress;
            }
        }
    }

    fn begin(&mut self, name: &str, out: &mut Out) {
        self.has_begun = true;
        out.start(name);
    }

    /// Reads up to the arguments. `None`: there is more to read.
    fn head(&mut self, text: &mut String, tools: &Tools, out: &mut Out) -> Option<Progress> {
        match tools.format {
            ToolFormat::Hermes | ToolFormat::Llama3 => self.json_head(text, tools, out),
            ToolFormat::Mistral => {
                let begun = text.trim_start();
                match begun.chars().next() {
                    None => Some(Progress::Wait),
                    Some('[' | ',') => {
                        *text = begun[1..].to_owned();
                        None
                    }
                    Some('{') => self.json_head(text, tools, out),
                    Some(_) => self.named_head(text, tools, out, &["[ARGS]"]),
                }
            }
            ToolFormat::DeepSeek => self.named_head(text, tools, out, &["<｜tool▁sep｜>"]),
            ToolFormat::Gemma4 => self.gemma(text, tools, out, "<tool_call|>", GEMMA4_TEXT),
            ToolFormat::FunctionGemma => {
                self.gemma(text, tools, out, "<end_function_call>", "<escape>")
            }
            ToolFormat::Qwen3Coder | ToolFormat::Glm => self.xml_head(text, tools, out),
            ToolFormat::Harmony => Some(Progress::NotACall),
        }
    }

    /// The head of `{"name": .., "arguments": ..}`.
    fn json_head(&mut self, text: &mut String, tools: &Tools, out: &mut Out) -> Option<Progress> {
        match json::head(text) {
            Head::Unfinished => Some(Progress::Wait),
            Head::Call { name, start } => {
                if !tools.has(&name) {
                    return Some(Progress::NotACall);
                }
                self.begin(&name, out);
                text.drain(..start);
                self.stage = Stage::Json {
                    scan: Scan::default(),
                    is_inner: true,
                };
                None
            }
            Head::Other => {
                if !text.trim_start().starts_with('{') {
                    return Some(Progress::NotACall);
                }
                let Some(end) = Scan::default().read(text) else {
                    return Some(Progress::Wait);
                };
                let Some((name, arguments)) = whole_call(&text[..end], tools) else {
                    return Some(Progress::NotACall);
                };
                self.begin(&name, out);
                out.arguments(&arguments);
                out.end();
                text.drain(..end);
                self.stage = Stage::Tail;
                None
            }
        }
    }

    /// A name, a mark, and the JSON of the arguments.
    fn named_head(
        &mut self,
        text: &mut String,
        tools: &Tools,
        out: &mut Out,
        marks: &[&str],
    ) -> Option<Progress> {
        // DeepSeek V3 has `function`, the mark, the name, and a fence around the JSON.
        let Some(brace) = text.find('{') else {
            let is_long = text.len() > MAX_NAME;
            return Some(if is_long {
                Progress::NotACall
            } else {
                Progress::Wait
            });
        };
        let mut name = text[..brace].trim();
        name = name.strip_suffix("```json").unwrap_or(name).trim();
        for mark in marks {
            name = name.strip_suffix(mark).unwrap_or(name);
            if let Some((_, behind)) = name.split_once(mark) {
                name = behind;
            }
        }
        if let Some((front, _)) = name.split_once("[CALL_ID]") {
            name = front;
        }
        let name = name.trim().to_owned();
        if !tools.has(&name) {
            return Some(Progress::NotACall);
        }
        self.begin(&name, out);
        text.drain(..brace);
        self.stage = Stage::Json {
            scan: Scan::default(),
            is_inner: false,
        };
        None
    }

    /// A whole call in Gemma's notation.
    fn gemma(
        &mut self,
        text: &mut String,
        tools: &Tools,
        out: &mut Out,
        close: &str,
        mark: &str,
    ) -> Option<Progress> {
        let Some(end) = text.find(close) else {
            return Some(Progress::Wait);
        };
        let call = text[..end].trim().strip_prefix("call:");
        let call = call.and_then(|call| {
            let (name, _) = call.split_once('{')?;
            let arguments = values::gemma(&call[name.len()..], mark)?;
            Some((name.trim(), arguments)).filter(|(name, _)| tools.has(name))
        });
        let Some((name, arguments)) = call else {
            return Some(Progress::NotACall);
        };
        self.begin(name, out);
        out.arguments(&arguments.to_string());
        out.end();
        text.drain(..end + close.len());
        Some(Progress::Done)
    }

    /// What stands behind a call: the mark that closes the block, or another call of the same block.
    fn tail(&mut self, text: &mut String, tools: &Tools) -> Option<Progress> {
        let close = match tools.format {
            ToolFormat::Hermes => "</tool_call>",
            ToolFormat::Qwen3Coder if self.open == "<tool_call>" => "</tool_call>",
            ToolFormat::DeepSeek => "<｜tool▁call▁end｜>",
            ToolFormat::Mistral => "]",
            ToolFormat::Llama3 => ";",
            _ => return Some(Progress::Done),
        };
        let mut rest = text.trim_start();
        if tools.format == ToolFormat::DeepSeek {
            rest = rest.strip_prefix("```").unwrap_or(rest).trim_start();
        }
        let next = match tools.format {
            ToolFormat::Mistral => rest.strip_prefix(','),
            ToolFormat::Llama3 => rest.strip_prefix(';'),
            _ => None,
        };
        if let Some(next) = next {
            if next.trim_start().is_empty() {
                return Some(Progress::Wait);
            }
            if next.trim_start().starts_with('{') {
                *text = next.to_owned();
                self.stage = Stage::Head;
                return None;
            }
        }
        match rest.strip_prefix(close) {
            Some(behind) => {
                *text = behind.to_owned();
                Some(Progress::Done)
            }
            None if close.starts_with(rest) || "```".starts_with(rest) => Some(Progress::Wait),
            None => Some(Progress::Done),
        }
    }
}

/// A longer name is none.
const MAX_NAME: usize = 256;

/// Name and arguments of an object whose keys stand in any order.
fn whole_call(text: &str, tools: &Tools) -> Option<(String, String)> {
    let call: Value = serde_json::from_str(text).ok()?;
    // Some write {"type": "function", "function": {..}}.
    let call = call
        .get("function")
        .filter(|inner| inner.is_object())
        .unwrap_or(&call);
    let name = call["name"].as_str().filter(|name| tools.has(name))?;
    let arguments = call.get("arguments").or(call.get("parameters"));
    let arguments = match arguments {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(Value::String(text)) => {
            let inner: Value = serde_json::from_str(text).ok()?;
            inner.is_object().then(|| text.clone())?
        }
        Some(_) => return None,
    };
    Some((name.to_owned(), arguments))
}
