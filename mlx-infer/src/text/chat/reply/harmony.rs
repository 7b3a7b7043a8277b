//! The harmony format of gpt-oss: messages whose head names a channel and a recipient.
//!
//! Source: OpenAI's description of the format. The channel `analysis` is reasoning, `final` and `commentary` are content, and a message to
//! `functions.NAME` is a call of a tool.

use super::ReasoningMarks;
use super::calls::{ReplyParts, Tools};
use super::named::Named;
use super::parser::{Block, BlockBody, BlockEnd, Seek};

/// The format's marks.
pub(super) const MARKS: &[&str] = &[
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];

/// Reasoning is a message of the channel `analysis`.
pub(super) const REASONING: ReasoningMarks = ReasoningMarks {
    open: "<|channel|>analysis<|message|>",
    close: "<|end|>",
    is_begun: false,
    is_anywhere: true,
    heads: Some(["<|start|>assistant<|channel|>", "<|channel|>", "analysis"]),
};

/// The reader's place in the format. A reply begins in the head of a message, because the prompt ends with
/// `<|start|>assistant`.
#[derive(Debug, Default)]
pub(super) struct Harmony {
    seek: Seek,
    head: String,
    text: Option<Text>,
    /// Whether a mark was read. A reply without marks is content.
    has_marks: bool,
}

#[derive(Debug)]
enum Text {
    Reasoning,
    Content,
    Call(Block),
    /// After the arguments of a call.
    Behind,
}

impl Harmony {
    pub(super) fn take(&mut self, c: char, tools: &Tools, parts: &mut ReplyParts) {
        let mut free = String::new();
        let mark = self.seek.take(c, MARKS, &mut free).map(|at| MARKS[at]);
        self.free(&free, tools, parts);
        let Some(mark) = mark else { return };
        match (mark, &self.text) {
            ("<|message|>", None) => {
                let head = std::mem::take(&mut self.head);
                self.text = Some(begin(&head, tools, parts));
            }
            ("<|channel|>" | "<|constrain|>", None) => self.head.push_str(mark),
            ("<|message|>" | "<|constrain|>", Some(_)) => self.free(mark, tools, parts),
            _ => {
                self.end(parts);
                if mark == "<|channel|>" {
                    self.head.push_str(mark);
                }
            }
        }
        self.has_marks = true;
    }

    /// Handles the end of the reply.
    pub(super) fn finish(&mut self, tools: &Tools, parts: &mut ReplyParts) {
        let rest = self.seek.finish();
        self.free(&rest, tools, parts);
        self.end(parts);
    }

    /// Handles text between marks.
    fn free(&mut self, text: &str, tools: &Tools, parts: &mut ReplyParts) {
        match &mut self.text {
            None => self.head.push_str(text),
            Some(Text::Reasoning) => parts.reasoning(text),
            Some(Text::Content) => parts.content(text),
            Some(Text::Behind) => {
                let text = text.trim_start();
                if !text.is_empty() {
                    parts.content(text);
                    self.text = Some(Text::Content);
                }
            }
            Some(Text::Call(block)) => {
                for (at, c) in text.char_indices() {
                    let Some(end) = block.take(c, tools, parts) else {
                        continue;
                    };
                    self.text = Some(match end {
                        BlockEnd::Whole => Text::Behind,
                        BlockEnd::Text { text, .. } => {
                            parts.content(&text);
                            Text::Content
                        }
                    });
                    return self.free(&text[at + c.len_utf8()..], tools, parts);
                }
            }
        }
    }

    /// Handles the end of a message.
    fn end(&mut self, parts: &mut ReplyParts) {
        let head = std::mem::take(&mut self.head);
        match self.text.take() {
            None if !self.has_marks => parts.content(&head),
            Some(Text::Call(mut block)) => {
                if let BlockEnd::Text { text, .. } = block.finish(parts) {
                    parts.content(&text);
                }
            }
            _ => {}
        }
    }
}

/// The kind of the message with this head.
fn begin(head: &str, tools: &Tools, parts: &mut ReplyParts) -> Text {
    let recipient = head.split_once("to=functions.").map(|(_, rest)| {
        let end = rest.find(|c: char| c.is_whitespace() || c == '<');
        &rest[..end.unwrap_or(rest.len())]
    });
    match recipient {
        Some(name) if tools.has(name) => {
            parts.start(name);
            Text::Call(Block::new("", BlockBody::Named(Named::arguments())))
        }
        _ if head.contains("<|channel|>analysis") => Text::Reasoning,
        _ => Text::Content,
    }
}
