//! Reads the texts of a turn's rows as reasoning, content and calls.

use serde_json::Value;

use crate::request::generation::FinishReason;
use crate::request::metrics::Metrics;
use crate::request::sampling::Choice;
use crate::serve::http::trace::{Trace, new_id};
use crate::serve::turn::choices::{Choices, RowStep};
use crate::text::chat::reply::{Part, ReplyFormat, ReplyParser};
use crate::text::tokenizer::Tokenizer;

/// The parsers of the rows' texts.
pub(in super::super) struct Replies {
    pub(super) rows: Vec<Reply>,
    pub(super) is_parallel: bool,
    /// Whether an answer must call a tool.
    pub(super) must_call: bool,
    pub(super) stop: Vec<String>,
    /// Special tokens that are text in these answers.
    pub(super) kept_special: Vec<u32>,
    /// Tokens that end an answer.
    pub(super) stop_ids: Vec<u32>,
    /// Stop strings do not count within this number of first tokens.
    pub(super) min_tokens: usize,
    pub(super) tokenizer: Tokenizer,
    pub(super) trace: Trace,
}

pub(super) struct Reply {
    parser: ReplyParser,
    /// Whether the last token belongs to the reasoning.
    is_reasoning: bool,
    calls: usize,
    is_complete: bool,
    /// The number of tokens of the answer.
    tokens: usize,
    /// The ids of the answer's tokens, if it has stop strings.
    ids: Vec<u32>,
}

/// A further part of a row's answer.
#[derive(Debug, Default)]
pub(in super::super) struct Delta {
    pub(in super::super) row: usize,
    pub(in super::super) parts: Vec<Part>,
    pub(in super::super) tokens: Vec<Choice>,
    /// The ids of its tokens, also of one that ends it.
    pub(in super::super) ids: Vec<u32>,
    pub(in super::super) end: Option<End>,
}

/// The end of a row.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct End {
    pub(in super::super) reason: FinishReason,
    /// Whether the answer calls tools.
    pub(in super::super) has_calls: bool,
    /// The stop string that ended it, as an index into those of the request.
    pub(in super::super) stopped_at: Option<usize>,
    pub(in super::super) metrics: Metrics,
}

impl Replies {
    /// Parses a step. An answer that may have only one call of a tool ends with that call.
    pub(in super::super) fn read(&mut self, step: RowStep, choices: &mut Choices) -> Delta {
        let row = &mut self.rows[step.row];
        let mut delta = Delta {
            row: step.row,
            ..Delta::default()
        };
        let mut reasoned = 0;
        for (choice, text) in step.tokens {
            if row.is_complete {
                break;
            }
            row.tokens += 1;
            delta.ids.push(choice.id);
            for part in row.parser.push(&text) {
                row.take(part, self.is_parallel, &mut delta.parts);
            }
            reasoned += usize::from(row.is_reasoning);
            if !self.stop.is_empty() {
                row.ids.push(choice.id);
            }
            // The text does not have its end token, so that token is not among those of the text
            // either.
            if !self.stop_ids.contains(&choice.id) {
                delta.tokens.push(choice);
            }
        }
        if row.is_complete {
            choices.end(step.row);
        }
        if let Some((reason, metrics)) = step.end {
            if !row.is_complete {
                let rest = row.parser.push(&step.rest);
                let last = match reason {
                    FinishReason::Length | FinishReason::Repetition => {
                        row.parser.cut(self.must_call)
                    }
                    FinishReason::Stop | FinishReason::Cancelled => row.parser.finish(),
                };
                for part in rest.into_iter().chain(last) {
                    row.take(part, self.is_parallel, &mut delta.parts);
                }
            }
            let mut metrics = metrics;
            if row.is_complete {
                // The engine was some tokens ahead of the parser. They belong to no answer.
                let unread = metrics.decode_tokens.saturating_sub(row.tokens);
                metrics.decode_tokens -= unread;
                self.trace.unread(unread);
            }
            delta.end = Some(End {
                reason: match row.is_complete {
                    true => FinishReason::Stop,
                    false => reason,
                },
                has_calls: row.calls > 0,
                stopped_at: match reason {
                    FinishReason::Stop => {
                        let (tokenizer, kept) = (&self.tokenizer, &self.kept_special);
                        let text = |ids: &[u32]| text_of(tokenizer, kept, ids);
                        stopped_at(text, &row.ids, &self.stop, self.min_tokens)
                    }
                    _ => None,
                },
                metrics,
            });
        }
        if reasoned > 0 {
            self.trace.reasoned(reasoned);
        }
        delta
    }
}

/// The text of tokens in which the engine looks for stop strings.
fn text_of(tokenizer: &Tokenizer, kept_special: &[u32], ids: &[u32]) -> Option<String> {
    let mut detokenizer = tokenizer.detokenizer(true).keeping(kept_special);
    let mut text = String::new();
    for &id in ids {
        text += &detokenizer.push(id).ok()?;
    }
    Some(text + &detokenizer.finish().ok()?)
}

/// The index of the stop string that ends first in the text of `ids`. Those within the first `passed` tokens do not count.
fn stopped_at(
    text: impl Fn(&[u32]) -> Option<String>,
    ids: &[u32],
    stop: &[String],
    passed: usize,
) -> Option<usize> {
    if stop.is_empty() {
        return None;
    }
    let passed = text(&ids[..passed.min(ids.len())])?;
    let text = text(ids)?;
    let ends = stop.iter().enumerate().filter_map(|(index, stop)| {
        let mut starts =
            (0..text.len()).filter(|&at| text.as_bytes()[at..].starts_with(stop.as_bytes()));
        let start = starts.find(|at| at + stop.len() > passed.len())?;
        Some((start + stop.len(), start, index))
    });
    // If several end at the same place, the longest counts.
    ends.min().map(|(.., index)| index)
}

impl Reply {
    /// The reader of a reply to `prompt`, the text that the template made.
    pub(super) fn new(format: &ReplyFormat, prompt: &str, tools: &[Value]) -> Self {
        Self {
            parser: format.parser(prompt, tools),
            is_reasoning: format.begins_in_reasoning(prompt),
            calls: 0,
            is_complete: false,
            tokens: 0,
            ids: Vec::new(),
        }
    }

    fn take(&mut self, part: Part, is_parallel: bool, parts: &mut Vec<Part>) {
        if self.is_complete {
            return;
        }
        match &part {
            Part::Reasoning(_) => self.is_reasoning = true,
            Part::Content(_) | Part::CallArguments { .. } => self.is_reasoning = false,
            Part::CallStart { .. } => {
                self.is_reasoning = false;
                self.calls += 1;
            }
            Part::CallEnd { .. } => self.is_complete = !is_parallel,
        }
        parts.push(part);
    }
}

/// The whole answer of a row.
#[derive(Debug, Default)]
pub(in super::super) struct Whole {
    pub(in super::super) reasoning: String,
    pub(in super::super) content: String,
    pub(in super::super) calls: Vec<Call>,
    pub(in super::super) tokens: Vec<Choice>,
    pub(in super::super) ids: Vec<u32>,
    pub(in super::super) end: Option<End>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Call {
    pub(in super::super) id: String,
    pub(in super::super) name: String,
    pub(in super::super) arguments: String,
    /// Whether it is complete.
    pub(in super::super) is_whole: bool,
}

impl Whole {
    /// Adds a part.
    pub(in super::super) fn add(&mut self, delta: Delta) {
        for part in delta.parts {
            match part {
                Part::Reasoning(text) => self.reasoning.push_str(&text),
                Part::Content(text) => self.content.push_str(&text),
                Part::CallStart { name, .. } => self.calls.push(Call {
                    id: call_id(),
                    name,
                    arguments: String::new(),
                    is_whole: false,
                }),
                Part::CallArguments { json, .. } => {
                    if let Some(call) = self.calls.last_mut() {
                        call.arguments.push_str(&json);
                    }
                }
                Part::CallEnd { .. } => {
                    if let Some(call) = self.calls.last_mut() {
                        call.is_whole = true;
                    }
                }
            }
        }
        self.tokens.extend(delta.tokens);
        self.ids.extend(delta.ids);
        self.end = delta.end.or(self.end);
    }
}

/// A new id for a call. It has nine hexadecimal digits, because Mistral's templates refuse ids of
/// another length.
pub(in super::super) fn call_id() -> String {
    new_id("")[..9].to_owned()
}
