//! Reads a reply piece by piece.

use serde_json::Value;

use super::calls::{Block, Progress, Tools};
use super::harmony::Harmony;
use super::{Marks, Part, ReplyFormat, ToolFormat};

/// Reads one reply as it comes ([`ReplyFormat::parser`]).
#[derive(Debug)]
pub struct ReplyParser {
    marks: Option<Marks>,
    tools: Option<Tools>,
    state: State,
    /// Text that is not decided yet: the beginning of a mark, or of a call.
    buffer: String,
    out: Out,
    /// Whether content has come: reasoning and bare calls stand at the beginning alone.
    has_content: bool,
    /// Line breaks behind a mark are no text.
    skips_breaks: bool,
    /// Blanks at the end of what came, which are no text in front of a mark.
    blanks: String,
}

#[derive(Debug)]
enum State {
    Content,
    Reasoning,
    Call(Block),
    Harmony(Harmony),
}

/// The parts that were found.
#[derive(Debug, Default)]
pub(super) struct Out {
    parts: Vec<Part>,
    calls: usize,
}

impl Out {
    pub(super) fn content(&mut self, text: &str) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::Content(said)) => said.push_str(text),
            _ => self.parts.push(Part::Content(text.to_owned())),
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::Reasoning(said)) => said.push_str(text),
            _ => self.parts.push(Part::Reasoning(text.to_owned())),
        }
    }

    pub(super) fn start(&mut self, name: &str) {
        self.parts.push(Part::CallStart {
            index: self.calls,
            name: name.to_owned(),
        });
        self.calls += 1;
    }

    pub(super) fn arguments(&mut self, text: &str) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::CallArguments { json, .. }) => json.push_str(text),
            _ => self.parts.push(Part::CallArguments {
                index: self.calls - 1,
                json: text.to_owned(),
            }),
        }
    }

    pub(super) fn end(&mut self) {
        self.parts.push(Part::CallEnd {
            index: self.calls - 1,
        });
    }
}

impl ReplyParser {
    pub(super) fn new(format: &ReplyFormat, is_reasoning: bool, tools: &[Value]) -> Self {
        let is_harmony = format.tools == ToolFormat::Harmony;
        let tools = (!tools.is_empty()).then(|| Tools::new(format.tools, tools));
        Self {
            state: match is_reasoning {
                _ if is_harmony => State::Harmony(Harmony::default()),
                true => State::Reasoning,
                false => State::Content,
            },
            marks: format.reasoning,
            tools,
            buffer: String::new(),
            out: Out::default(),
            has_content: false,
            skips_breaks: is_reasoning,
            blanks: String::new(),
        }
    }

    /// Takes the next text of the reply; the parts that are certain by now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        if !text.is_empty() {
            self.buffer.push_str(text);
            self.read(false);
        }
        std::mem::take(&mut self.out.parts)
    }

    /// The rest, at the end of the reply.
    pub fn finish(&mut self) -> Vec<Part> {
        self.read(true);
        std::mem::take(&mut self.out.parts)
    }

    fn read(&mut self, is_end: bool) {
        loop {
            let goes_on = match &mut self.state {
                State::Content => self.content(is_end),
                State::Reasoning => self.reasoning(is_end),
                State::Call(_) => self.call(is_end),
                State::Harmony(harmony) => {
                    let tools = self.tools.as_ref();
                    harmony.read(&mut self.buffer, tools, &mut self.out, is_end);
                    false
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Reads content up to a mark. Whether there was one.
    fn content(&mut self, is_end: bool) -> bool {
        if let Some(tools) = &self.tools
            && tools.has_bare_calls()
            && !self.has_content
        {
            match self.buffer.trim_start().chars().next() {
                Some('{') => {
                    self.state = State::Call(Block::new(""));
                    return true;
                }
                None if !is_end => return false,
                _ => {}
            }
        }
        let reasoning = self.marks.filter(|_| !self.has_content);
        let reasoning = reasoning.map(|marks| marks.open);
        let calls = self.tools.as_ref().map_or(&[][..], Tools::opens);
        let marks = reasoning.iter().chain(calls).copied();
        let found = marks
            .clone()
            .filter_map(|mark| Some((self.buffer.find(mark)?, mark)))
            .min_by_key(|&(at, mark)| (at, usize::MAX - mark.len()));
        let Some((at, mark)) = found else {
            let held = match is_end {
                true => 0,
                false => held(&self.buffer, marks),
            };
            let rest = self.buffer.split_off(self.buffer.len() - held);
            let text = std::mem::replace(&mut self.buffer, rest);
            self.say(&text, is_end);
            return false;
        };
        let rest = self.buffer.split_off(at + mark.len());
        let text = std::mem::replace(&mut self.buffer, rest);
        self.say(&text[..at], false);
        if reasoning == Some(mark) && !self.has_content {
            self.blanks.clear();
            self.state = State::Reasoning;
            self.skips_breaks = true;
        } else if reasoning == Some(mark) {
            // Content came before it after all: it is text.
            self.say(mark, false);
        } else if !self
            .tools
            .as_ref()
            .is_some_and(|tools| tools.is_frame(mark))
        {
            self.state = State::Call(Block::new(mark));
        }
        true
    }

    /// Gives content.
    fn say(&mut self, text: &str, is_end: bool) {
        let text = match self.skips_breaks {
            true => text.trim_start_matches('\n'),
            false => text,
        };
        if text.is_empty() && !is_end {
            return;
        }
        self.skips_breaks = false;
        let text = format!("{}{text}", std::mem::take(&mut self.blanks));
        // Blanks in front of a mark are no text.
        let may_be_front = self.tools.is_some() || !self.has_content && text.trim().is_empty();
        let end = match may_be_front && !is_end {
            true => text.trim_end().len(),
            false => text.len(),
        };
        self.has_content |= !text[..end].trim().is_empty();
        self.out.content(&text[..end]);
        self.blanks = text[end..].to_owned();
    }

    /// Reads reasoning up to its end. Whether it has ended.
    fn reasoning(&mut self, is_end: bool) -> bool {
        let Some(marks) = self.marks else {
            self.state = State::Content;
            return true;
        };
        if self.skips_breaks {
            // The mark itself may come again although the prompt has opened it.
            let kept = self.buffer.trim_start_matches('\n');
            let kept = kept.strip_prefix(marks.open).unwrap_or(kept);
            let kept = kept.trim_start_matches('\n');
            if !is_end && (kept.is_empty() || marks.open.starts_with(kept)) {
                return false;
            }
            self.buffer = kept.to_owned();
            self.skips_breaks = false;
        }
        let (text, has_ended) = match self.buffer.find(marks.close) {
            Some(at) => {
                let rest = self.buffer.split_off(at + marks.close.len());
                let mut text = std::mem::replace(&mut self.buffer, rest);
                text.truncate(at);
                (text, true)
            }
            None => {
                let held = match is_end {
                    true => 0,
                    false => held(&self.buffer, [marks.close].into_iter()),
                };
                let rest = self.buffer.split_off(self.buffer.len() - held);
                (std::mem::replace(&mut self.buffer, rest), false)
            }
        };
        let text = format!("{}{text}", std::mem::take(&mut self.blanks));
        // Line breaks in front of the mark are no text.
        let end = text.trim_end_matches('\n').len();
        self.out.reasoning(&text[..end]);
        if has_ended {
            self.state = State::Content;
            self.skips_breaks = true;
        } else if is_end {
            self.out.reasoning(&text[end..]);
        } else {
            self.blanks = text[end..].to_owned();
        }
        has_ended
    }

    /// Reads a block of calls. Whether it has ended.
    fn call(&mut self, is_end: bool) -> bool {
        let (State::Call(block), Some(tools)) = (&mut self.state, &self.tools) else {
            return false;
        };
        let progress = block.read(&mut self.buffer, tools, &mut self.out);
        let is_call = block.has_begun();
        match progress {
            Progress::Wait if !is_end => return false,
            Progress::Done => {
                self.has_content = true;
                self.blanks.clear();
            }
            Progress::Wait | Progress::NotACall => {
                if is_call {
                    // What was read of the call stands. Half a parameter at the end of a reply that was cut is no text.
                    if progress == Progress::Wait {
                        self.buffer.clear();
                    }
                } else {
                    let text = format!("{}{}", std::mem::take(&mut self.blanks), block.open());
                    self.out.content(&text);
                }
                self.has_content = true;
            }
        }
        self.state = State::Content;
        !(is_end && self.buffer.is_empty())
    }
}

/// How many bytes at the end of a text may be the beginning of a mark.
pub(super) fn held<'m>(text: &str, marks: impl Iterator<Item = &'m str>) -> usize {
    let longest = |mark: &str| {
        let lengths = (1..mark.len()).rev().filter(|&n| mark.is_char_boundary(n));
        lengths.into_iter().find(|&n| text.ends_with(&mark[..n]))
    };
    marks.filter_map(longest).max().unwrap_or(0)
}
