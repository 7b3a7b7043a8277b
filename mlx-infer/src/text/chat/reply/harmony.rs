//! The harmony format of gpt-oss: messages with a channel and a recipient in their head.
//!
//! Source: OpenAI's description of the format. The channel `analysis` is reasoning, `final` and `commentary` are content, and a message to
//! `functions.NAME` is a call of a tool.

use super::calls::Tools;
use super::json::Scan;
use super::parser::{Out, held};

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

/// Marks that end a message.
const ENDS: &[&str] = &[
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|start|>",
    "<|channel|>",
];

/// Where in the format a reply is. It begins in the head of a message, as the prompt ends with `<|start|>assistant`.
#[derive(Debug, Default)]
pub(super) struct Harmony {
    body: Option<Body>,
    /// Whether any mark has come: a text without one is content.
    has_marks: bool,
}

#[derive(Debug)]
enum Body {
    Reasoning,
    Content,
    Call { scan: Scan, is_complete: bool },
}

impl Harmony {
    /// Reads from the front of `text`, and takes what is decided.
    pub(super) fn read(
        &mut self,
        text: &mut String,
        tools: Option<&Tools>,
        out: &mut Out,
        is_end: bool,
    ) {
        loop {
            let Some(body) = &mut self.body else {
                let Some(at) = text.find("<|message|>") else {
                    if is_end && !self.has_marks {
                        out.content(text);
                        text.clear();
                    }
                    return;
                };
                self.has_marks = true;
                self.body = Some(begin(&text[..at], tools, out));
                text.drain(..at + "<|message|>".len());
                continue;
            };
            let end = ENDS
                .iter()
                .filter_map(|mark| Some((text.find(mark)?, mark.len())))
                .min();
            let (said, taken) = match end {
                Some((at, len)) => (at, at + len),
                None if is_end => (text.len(), text.len()),
                None => {
                    let said = text.len() - held(text, ENDS.iter().copied());
                    (said, said)
                }
            };
            let is_over = end.is_some() || is_end;
            match body {
                Body::Reasoning => out.reasoning(&text[..said]),
                Body::Content => out.content(&text[..said]),
                Body::Call { scan, is_complete } => {
                    *is_complete |= scan.read(&text[..said]).is_some();
                    out.arguments(&text[..said]);
                    if is_over && *is_complete {
                        out.end();
                    }
                }
            }
            text.drain(..taken);
            if end.is_none() {
                return;
            }
            self.body = None;
        }
    }
}

/// What the message with this head is.
fn begin(head: &str, tools: Option<&Tools>, out: &mut Out) -> Body {
    let recipient = head.split_once("to=functions.").map(|(_, rest)| {
        let end = rest.find(|c: char| c.is_whitespace() || c == '<');
        &rest[..end.unwrap_or(rest.len())]
    });
    if let Some(name) = recipient
        && tools.is_some_and(|tools| tools.has(name))
    {
        out.start(name);
        return Body::Call {
            scan: Scan::default(),
            is_complete: false,
        };
    }
    match head.contains("analysis") {
        true => Body::Reasoning,
        false => Body::Content,
    }
}
