//! Reads a reply character by character, so that its parts do not depend on the pieces in which it arrives.

use std::collections::VecDeque;

use serde_json::Value;

use super::body::{Block, End};
use super::calls::{Parts, Tools};
use super::forms::Begins;
use super::harmony::Harmony;
use super::seek::Seek;
use super::{Marks, Part, ReplyFormat, ToolFormat};

/// Reads one reply while it is generated ([`ReplyFormat::parser`]).
#[derive(Debug)]
pub struct ReplyParser {
    reasoning: Option<Marks>,
    form: ToolFormat,
    tools: Tools,
    state: State,
    seek: Seek,
    parts: Parts,
    /// Text that is read again, because it turned out not to be a call.
    again: VecDeque<char>,
    /// Blanks, and marks around calls. They are content if content follows, and nothing if a call follows.
    between: String,
    has_content: bool,
    /// Whether blanks are dropped now, because they follow a mark of reasoning.
    skips_blanks: bool,
}

#[derive(Debug)]
enum State {
    Content,
    Reasoning { has_text: bool },
    Block(Block),
    Harmony(Harmony),
}

impl ReplyParser {
    pub(super) fn new(format: &ReplyFormat, is_reasoning: bool, tools: &[Value]) -> Self {
        Self {
            reasoning: format.reasoning,
            form: format.tools,
            tools: Tools::new(tools),
            state: match is_reasoning {
                _ if format.tools == ToolFormat::Harmony => State::Harmony(Harmony::default()),
                true => State::Reasoning { has_text: false },
                false => State::Content,
            },
            seek: Seek::default(),
            parts: Parts::default(),
            again: VecDeque::new(),
            between: String::new(),
            has_content: false,
            skips_blanks: is_reasoning,
        }
    }

    /// Takes the next text of the reply. Returns the parts that are certain by now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        for c in text.chars() {
            self.take(c);
            self.read_again();
        }
        self.parts.take()
    }

    /// The rest of a reply that was cut, because it has as many tokens as it may have. A call that was cut before its arguments is dropped.
    /// `is_call` says that the reply must call a tool: then a beginning that has no mark is one of a call too.
    pub fn cut(&mut self, is_call: bool) -> Vec<Part> {
        if let State::Block(block) = &mut self.state
            && (is_call || block.is_marked(self.form.marks()))
        {
            // A call whose arguments have begun is given as far as it came.
            block.finish(&mut self.parts);
            self.between.clear();
            self.state = State::Content;
        } else if is_call && matches!(self.state, State::Content) {
            // The beginning of a mark.
            self.seek.finish();
        }
        self.finish()
    }

    /// The rest, at the end of the reply.
    pub fn finish(&mut self) -> Vec<Part> {
        loop {
            match &mut self.state {
                State::Content => {
                    for c in self.seek.finish().chars() {
                        self.say(c);
                    }
                    let rest = std::mem::take(&mut self.between);
                    if !self.parts.has_calls() {
                        self.parts.content(&rest);
                    }
                    break;
                }
                State::Reasoning { .. } => {
                    for c in self.seek.finish().chars() {
                        self.think(c);
                    }
                    self.parts.reasoning(&std::mem::take(&mut self.between));
                    break;
                }
                State::Harmony(harmony) => {
                    harmony.finish(&self.tools, &mut self.parts);
                    break;
                }
                State::Block(block) => {
                    let end = block.finish(&mut self.parts);
                    self.leave(end);
                    self.read_again();
                }
            }
        }
        self.parts.take()
    }

    fn read_again(&mut self) {
        while let Some(c) = self.again.pop_front() {
            self.take(c);
        }
    }

    fn take(&mut self, c: char) {
        match &mut self.state {
            State::Content => self.content(c),
            State::Reasoning { .. } => self.reasoning(c),
            State::Harmony(harmony) => harmony.take(c, &self.tools, &mut self.parts),
            State::Block(block) => {
                if let Some(end) = block.take(c, &self.tools, &mut self.parts) {
                    self.leave(end);
                }
            }
        }
    }

    /// Continues with content after a block.
    fn leave(&mut self, end: End) {
        self.state = State::Content;
        if self.parts.has_calls() {
            self.between.retain(char::is_whitespace);
        }
        if let End::Text { text, opens } = end {
            let mut chars = text.chars();
            if opens && let Some(first) = chars.next() {
                self.say(first);
            }
            for c in chars.rev() {
                self.again.push_front(c);
            }
        }
    }

    fn content(&mut self, c: char) {
        let has_tools = !self.tools.is_empty();
        let may_be_bare = has_tools && !self.has_content && self.seek.is_empty();
        if let Some(body) = self.form.bare(c).filter(|_| may_be_bare) {
            let mut block = Block::new("", body);
            block.take(c, &self.tools, &mut self.parts);
            self.state = State::Block(block);
            return;
        }
        // Marks that are not special tokens may be quotations. They open reasoning only at the beginning of the reply.
        let reasoning = self
            .reasoning
            .filter(|marks| marks.is_anywhere || !self.has_content);
        let reasoning = reasoning.map(|marks| marks.open);
        let calls = if has_tools { self.form.marks() } else { &[] };
        let marks: Vec<&'static str> = reasoning.iter().chain(calls).copied().collect();
        let mut free = String::new();
        let found = self.seek.take(c, &marks, &mut free).map(|at| marks[at]);
        for c in free.chars() {
            self.say(c);
        }
        match found {
            None => {}
            Some(mark) if Some(mark) == reasoning => {
                self.between.clear();
                self.skips_blanks = true;
                self.state = State::Reasoning { has_text: false };
            }
            Some(mark) => match self.form.begins(mark) {
                Begins::Block(body) => self.state = State::Block(Block::new(mark, body)),
                Begins::Nothing if self.parts.has_calls() => {}
                Begins::Nothing => self.between.push_str(mark),
            },
        }
    }

    /// Gives a character of content.
    fn say(&mut self, c: char) {
        let is_blank = c.is_whitespace();
        if self.skips_blanks && is_blank {
            return;
        }
        self.skips_blanks = false;
        self.between.push(c);
        // Blanks before a mark are dropped.
        if is_blank && (!self.has_content || !self.tools.is_empty()) {
            return;
        }
        self.has_content = true;
        self.parts.content(&std::mem::take(&mut self.between));
    }

    fn reasoning(&mut self, c: char) {
        let (Some(marks), State::Reasoning { has_text }) = (self.reasoning, &self.state) else {
            return;
        };
        // A model may repeat the mark with which the prompt ends.
        let wanted: &[&str] = if *has_text {
            &[marks.close]
        } else {
            &[marks.close, marks.open]
        };
        let mut free = String::new();
        let found = self.seek.take(c, wanted, &mut free);
        for c in free.chars() {
            self.think(c);
        }
        if found == Some(0) {
            self.between.clear();
            self.skips_blanks = true;
            self.state = State::Content;
        }
    }

    /// Gives a character of reasoning.
    fn think(&mut self, c: char) {
        let is_blank = c.is_whitespace();
        if self.skips_blanks && is_blank {
            return;
        }
        self.skips_blanks = false;
        self.between.push(c);
        if !is_blank {
            self.state = State::Reasoning { has_text: true };
            self.parts.reasoning(&std::mem::take(&mut self.between));
        }
    }
}
