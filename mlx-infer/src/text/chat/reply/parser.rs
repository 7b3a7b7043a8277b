//! Reads a reply character by character, so that its parts do not depend on the pieces in which it arrives: the marks of
//! each family, and the blocks of calls after them.

use std::collections::VecDeque;

use serde_json::Value;

use super::calls::{ReplyParts, Tools};
use super::channel::{self, MessageHead};
use super::harmony::Harmony;
use super::json::{Envelope, is_blank};
use super::marks::CallsInReasoning;
use super::named::{self, Named};
use super::notation::Notation;
use super::pythonic::Pythonic;
use super::tags::{self, Tags};
use super::{Marks, Part, ReplyFormat, ToolFormat};

/// Reads one reply while it is generated ([`ReplyFormat::parser`]).
#[derive(Debug)]
pub struct ReplyParser {
    reasoning: Option<Marks>,
    form: ToolFormat,
    tools: Tools,
    state: State,
    seek: Seek,
    parts: ReplyParts,
    /// Text that is read again, because it turned out not to be a call.
    pushed_back: VecDeque<char>,
    /// Blanks, and marks around calls. If content follows, they are content; if a call follows,
    /// they are dropped.
    between: String,
    has_content: bool,
    /// Whether blanks are dropped now, because they follow a mark of reasoning.
    skips_blanks: bool,
    /// Whether the block is inside of reasoning, which goes on after it.
    is_inside: bool,
}

#[derive(Debug)]
enum State {
    Content,
    Reasoning {
        has_text: bool,
    },
    Block(Block),
    Harmony(Harmony),
    /// The beginning of a message, which may be its head.
    Head(String),
}

impl ReplyParser {
    pub(super) fn new(format: &ReplyFormat, prompt: &str, tools: &[Value]) -> Self {
        let is_reasoning = format.begins_in_reasoning(prompt);
        let has_heads = format.tools == ToolFormat::Atem && format.reasoning.is_some();
        Self {
            reasoning: format.reasoning,
            form: format.tools,
            tools: Tools::new(tools),
            state: match is_reasoning {
                _ if format.tools == ToolFormat::Harmony => State::Harmony(Harmony::default()),
                true => State::Reasoning { has_text: false },
                false if has_heads && prompt.ends_with(channel::START) => {
                    State::Head(String::new())
                }
                false => State::Content,
            },
            seek: Seek::default(),
            parts: ReplyParts::default(),
            pushed_back: VecDeque::new(),
            between: String::new(),
            has_content: false,
            skips_blanks: is_reasoning,
            is_inside: false,
        }
    }

    /// Takes the next text of the reply. Returns the parts that are certain by now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        for c in text.chars() {
            self.take(c);
            self.take_pushed_back();
        }
        self.parts.take()
    }

    /// The rest of a reply that was cut at its maximum number of tokens. A call that was cut before
    /// its arguments is dropped. `is_call` says that the reply must call a tool: then the beginning
    /// of a call need not have a mark.
    pub fn cut(&mut self, is_call: bool) -> Vec<Part> {
        if let State::Block(block) = &mut self.state
            && (is_call || block.is_marked(self.form.marks()))
        {
            // A call whose arguments have begun is returned as far as it was read.
            block.finish(&mut self.parts);
            self.between.clear();
            self.state = State::Content;
        } else if is_call && matches!(self.state, State::Content) {
            // A text that is the beginning of a mark is dropped.
            self.seek.finish();
        }
        self.finish()
    }

    /// The rest of a complete reply.
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
                    self.take_pushed_back();
                }
                State::Head(head) => {
                    let text = std::mem::take(head);
                    self.state = State::Content;
                    for c in text.chars() {
                        self.say(c);
                    }
                }
            }
        }
        self.parts.take()
    }

    fn take_pushed_back(&mut self) {
        while let Some(c) = self.pushed_back.pop_front() {
            self.take(c);
        }
    }

    fn take(&mut self, c: char) {
        match &mut self.state {
            State::Content => self.content(c),
            State::Reasoning { .. } => self.reasoning(c),
            State::Harmony(harmony) => harmony.take(c, &self.tools, &mut self.parts),
            State::Head(_) => self.head(c),
            State::Block(block) => {
                if let Some(end) = block.take(c, &self.tools, &mut self.parts) {
                    self.leave(end);
                }
            }
        }
    }

    /// Continues after a block, with reasoning if the block was inside of it, else with content.
    fn leave(&mut self, end: BlockEnd) {
        let is_inside = std::mem::take(&mut self.is_inside);
        self.state = match is_inside {
            true => State::Reasoning { has_text: true },
            false => State::Content,
        };
        if self.parts.has_calls() {
            self.between.retain(char::is_whitespace);
        }
        if is_inside && end == BlockEnd::Whole {
            self.between.clear();
            self.skips_blanks = true;
        }
        if let BlockEnd::Text { text, opens } = end {
            let mut chars = text.chars();
            if opens && let Some(first) = chars.next() {
                match is_inside {
                    true => self.think(first),
                    false => self.say(first),
                }
            }
            for c in chars.rev() {
                self.pushed_back.push_front(c);
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
        let frames = match (self.form, self.reasoning) {
            // A template without channels.
            (ToolFormat::Atem, None) => &[],
            (form, _) => form.frames(),
        };
        let marks: Vec<&'static str> = reasoning
            .iter()
            .chain(calls)
            .chain(frames)
            .copied()
            .collect();
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
            Some(channel::START) => self.state = State::Head(String::new()),
            Some(mark) if frames.contains(&mark) => {}
            Some(mark) => match self.form.begins(mark) {
                Begins::Block(body) => self.state = State::Block(Block::new(mark, body)),
                Begins::Nothing if self.parts.has_calls() => {}
                Begins::Nothing => self.between.push_str(mark),
            },
        }
    }

    /// Adds a character of content.
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
        let repeated = (!*has_text).then_some(marks.open);
        let calls = match self.form.ends_reasoning() {
            Some(_) if !self.tools.is_empty() => self.form.marks(),
            _ => &[],
        };
        let wanted: Vec<&'static str> = std::iter::once(marks.close)
            .chain(repeated)
            .chain(calls.iter().copied())
            .collect();
        let mut free = String::new();
        let found = self.seek.take(c, &wanted, &mut free).map(|at| wanted[at]);
        for c in free.chars() {
            self.think(c);
        }
        match found {
            None => {}
            Some(mark) if mark == marks.close => {
                self.between.clear();
                self.skips_blanks = true;
                self.state = State::Content;
            }
            Some(mark) if calls.contains(&mark) => self.call_in_reasoning(mark),
            Some(_) => {}
        }
    }

    /// Handles the mark of a call inside of reasoning.
    fn call_in_reasoning(&mut self, mark: &'static str) {
        let has_text = !matches!(self.state, State::Reasoning { has_text: false });
        let needs_line = self.form.ends_reasoning() == Some(CallsInReasoning::Lines);
        if needs_line && has_text && !self.between.contains('\n') {
            mark.chars().for_each(|c| self.think(c));
            return;
        }
        match self.form.begins(mark) {
            Begins::Block(body) => {
                self.state = State::Block(Block::new(mark, body));
                self.is_inside = true;
            }
            Begins::Nothing if self.parts.has_calls() => {}
            Begins::Nothing => self.between.push_str(mark),
        }
    }

    /// Adds a character of a message's beginning.
    fn head(&mut self, c: char) {
        let State::Head(head) = &mut self.state else {
            return;
        };
        head.push(c);
        match channel::head(head) {
            MessageHead::Begun => {}
            MessageHead::Reasoning if self.reasoning.is_some() => {
                self.skips_blanks = true;
                self.state = State::Reasoning { has_text: false };
            }
            MessageHead::Reasoning | MessageHead::Content => self.state = State::Content,
            MessageHead::Absent => {
                let text = std::mem::take(head);
                self.state = State::Content;
                for c in text.chars().rev() {
                    self.pushed_back.push_front(c);
                }
            }
        }
    }

    /// Adds a character of reasoning.
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

/// The effect of a character on a block of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyStep {
    /// The character belongs to the block, which continues.
    More,
    /// The character is the last of the block.
    Done,
    /// The character cannot continue the block.
    Broken,
}

/// The text of a block.
#[derive(Debug)]
pub(super) enum BlockBody {
    Envelope(Envelope),
    Tags(Tags),
    Named(Named),
    Notation(Notation),
    Pythonic(Pythonic),
    /// One of two forms: the first if its text begins with `{` or `[`.
    Either(Box<(Envelope, BlockBody)>),
}

/// A block, and the part of its text that was not returned in parts.
#[derive(Debug)]
pub(super) struct Block {
    body: BlockBody,
    raw: String,
    has_given: bool,
}

/// How a block ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BlockEnd {
    /// The block is complete, or cut after a call or within one.
    Whole,
    /// This text is not part of a call.
    Text {
        text: String,
        /// Whether the first character of the text opened the block, so that it may not open
        /// another one.
        opens: bool,
    },
}

impl Block {
    /// Whether the block has an opening mark, so that it is a call and not a text that looks like
    /// one.
    pub(super) fn is_marked(&self, marks: &[&str]) -> bool {
        self.has_given || marks.iter().any(|mark| self.raw.starts_with(mark))
    }

    /// A block after its opening mark.
    pub(super) fn new(mark: &str, body: BlockBody) -> Self {
        Self {
            body,
            raw: mark.to_owned(),
            has_given: false,
        }
    }

    /// Takes the next character. Returns how the block ended, if it did.
    pub(super) fn take(
        &mut self,
        c: char,
        tools: &Tools,
        parts: &mut ReplyParts,
    ) -> Option<BlockEnd> {
        self.raw.push(c);
        let step = self.body.take(c, tools, parts);
        if parts.moved() {
            self.has_given = true;
            self.raw.clear();
        }
        match step {
            ReplyStep::More => None,
            ReplyStep::Done => Some(BlockEnd::Whole),
            ReplyStep::Broken => {
                let opens = !self.has_given;
                parts.cut(false);
                Some(BlockEnd::Text {
                    text: std::mem::take(&mut self.raw),
                    opens,
                })
            }
        }
    }

    /// Handles the end of the reply. A call whose arguments have begun is returned as far as it was
    /// read.
    pub(super) fn finish(&mut self, parts: &mut ReplyParts) -> BlockEnd {
        if self.body.is_complete() {
            parts.end();
        }
        if parts.cut(true) || parts.moved() || self.body.is_tail() {
            parts.moved();
            return BlockEnd::Whole;
        }
        BlockEnd::Text {
            text: std::mem::take(&mut self.raw),
            opens: !self.has_given,
        }
    }
}

impl BlockBody {
    fn take(&mut self, c: char, tools: &Tools, parts: &mut ReplyParts) -> ReplyStep {
        match self {
            Self::Envelope(envelope) => envelope.take(c, tools, parts),
            Self::Tags(tags) => tags.take(c, tools, parts),
            Self::Named(named) => named.take(c, tools, parts),
            Self::Notation(notation) => notation.take(c, tools, parts),
            Self::Pythonic(pythonic) => pythonic.take(c, tools, parts),
            Self::Either(_) if is_blank(c) => ReplyStep::More,
            Self::Either(both) => {
                let envelope = std::mem::replace(&mut both.0, Envelope::new(""));
                let other = std::mem::replace(&mut both.1, Self::Envelope(Envelope::new("")));
                *self = match c {
                    '{' | '[' => Self::Envelope(envelope),
                    _ => other,
                };
                self.take(c, tools, parts)
            }
        }
    }

    /// Whether only a closing mark is missing.
    fn is_tail(&self) -> bool {
        match self {
            Self::Envelope(envelope) => envelope.is_tail(),
            Self::Tags(tags) => tags.is_tail(),
            Self::Named(named) => named.is_tail(),
            Self::Notation(notation) => notation.is_tail(),
            Self::Pythonic(_) | Self::Either(_) => false,
        }
    }

    /// Whether the arguments of the call that was begun are complete.
    fn is_complete(&self) -> bool {
        match self {
            Self::Envelope(envelope) => envelope.is_complete(),
            _ => false,
        }
    }
}

/// The effect of a mark in a reply.
pub(super) enum Begins {
    /// A block of calls.
    Block(BlockBody),
    /// Nothing begins: the mark surrounds blocks.
    Nothing,
}

impl ToolFormat {
    /// The reader for a reply that begins with this character, if it may be a call without a mark.
    pub(super) fn bare(self, first: char) -> Option<BlockBody> {
        match (self, first) {
            (Self::Llama3 | Self::Llama4, '{') => Some(BlockBody::Envelope(Envelope::bare())),
            (Self::Llama4, '[') => Some(BlockBody::Pythonic(Pythonic::bare())),
            _ => None,
        }
    }

    /// The effect of a mark.
    pub(super) fn begins(self, mark: &str) -> Begins {
        Begins::Block(match self {
            Self::Hermes => BlockBody::Envelope(Envelope::new("</tool_call>")),
            Self::Qwen3Coder if mark == "<function=" => {
                BlockBody::Tags(Tags::named(&tags::QWEN3_CODER))
            }
            Self::Qwen3Coder => json_or("</tool_call>", &tags::QWEN3_CODER),
            Self::Glm => json_or("</tool_call>", &tags::GLM),
            Self::MiniMax => BlockBody::Tags(Tags::new(&tags::MINIMAX)),
            Self::Seed => BlockBody::Tags(Tags::new(&tags::SEED)),
            Self::Granite => BlockBody::Envelope(Envelope::new("")),
            Self::Command => BlockBody::Envelope(Envelope::new("<|END_ACTION|>")),
            Self::Hunyuan => BlockBody::Envelope(Envelope::new("</tool_calls>")),
            Self::Nemotron => BlockBody::Envelope(Envelope::new("</TOOLCALL>")),
            Self::Lfm2 => BlockBody::Pythonic(Pythonic::new("<|tool_call_end|>")),
            Self::Olmo3 => BlockBody::Pythonic(Pythonic::new("</function_calls>")),
            Self::Llama4 => BlockBody::Pythonic(Pythonic::new("<|python_end|>")),
            Self::Apertus => BlockBody::Envelope(Envelope::keyed("<|tools_suffix|>")),
            Self::Dsml | Self::DsmlCalls | Self::DsmlSpaced => {
                BlockBody::Tags(Tags::new(match mark {
                    "<｜DSML｜tool_calls>" => &tags::DSML_CALLS,
                    "<｜DSML｜ calls>" => &tags::DSML_SPACED,
                    _ => &tags::DSML,
                }))
            }
            Self::Gcml => BlockBody::Tags(Tags::new(&tags::GCML)),
            Self::GigaChat => BlockBody::Envelope(Envelope::new("")),
            Self::KimiK3 => BlockBody::Tags(Tags::new(&tags::KIMI_K3)),
            Self::LongCat => json_or("</longcat_tool_call>", &tags::LONGCAT),
            Self::IQuest => json_or("</iquest_tool_call>", &tags::IQUEST),
            Self::HunyuanTags => json_or("</tool_calls>", &tags::HUNYUAN_TAGS),
            Self::HunyuanOpen => BlockBody::Tags(Tags::new(&tags::HUNYUAN_OPEN)),
            Self::Step3 => BlockBody::Tags(Tags::new(&tags::STEP3)),
            Self::Atem => BlockBody::Tags(Tags::new(&tags::ATEM)),
            Self::Dots => json_or("</dots_function_call>", &tags::DOTS),
            Self::MiniCpm5 => BlockBody::Tags(Tags::named(&tags::MINICPM5)),
            Self::InternLm => BlockBody::Envelope(Envelope::new("<|action_end|>")),
            Self::Llama3 => BlockBody::Envelope(Envelope::bare()),
            Self::Mistral | Self::MistralArgs => {
                let named = BlockBody::Named(Named::new(named::mistral, ""));
                BlockBody::Either(Box::new((Envelope::new(""), named)))
            }
            Self::Gemma4 => BlockBody::Notation(Notation::new("<|\"|>", "<tool_call|>")),
            Self::FunctionGemma => {
                BlockBody::Notation(Notation::new("<escape>", "<end_function_call>"))
            }
            Self::DeepSeek if mark == self.marks()[0] => {
                BlockBody::Named(Named::new(named::deepseek, "<｜tool▁call▁end｜>"))
            }
            Self::Kimi if mark == self.marks()[0] => {
                BlockBody::Named(Named::new(named::kimi, "<|tool_call_end|>"))
            }
            Self::DeepSeek | Self::Kimi | Self::Harmony => return Begins::Nothing,
        })
    }
}

/// JSON or the given form, because some models write JSON between the marks of that form.
fn json_or(close: &'static str, form: &'static tags::Form) -> BlockBody {
    BlockBody::Either(Box::new((
        Envelope::new(close),
        BlockBody::Tags(Tags::new(form)),
    )))
}

/// Looks for marks. Text that may be the beginning of a mark is held back.
#[derive(Debug, Default)]
pub(super) struct Seek {
    held: String,
}

impl Seek {
    /// Takes the next character and appends to `free` the text that belongs to no mark. Returns the index of a mark
    /// that is now complete.
    pub(super) fn take(&mut self, c: char, marks: &[&str], free: &mut String) -> Option<usize> {
        self.held.push(c);
        loop {
            let held = self.held.as_str();
            if let Some(found) = marks.iter().position(|mark| *mark == held) {
                self.held.clear();
                return Some(found);
            }
            if marks.iter().any(|mark| mark.starts_with(held)) {
                return None;
            }
            free.push(self.held.remove(0));
            if self.held.is_empty() {
                return None;
            }
        }
    }

    /// Whether nothing is held back.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The text that was held back, at the end of the text.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_behind_their_own_beginnings() {
        let mut seek = Seek::default();
        let (mut free, mut found) = (String::new(), Vec::new());
        for c in "a<<to<tool>b</tool><tool".chars() {
            found.extend(seek.take(c, &["<tool>", "</tool>"], &mut free));
        }
        assert_eq!((free.as_str(), found.as_slice()), ("a<<tob", &[0, 1][..]));
        assert_eq!(seek.finish(), "<tool");
        assert!(seek.is_empty());
    }
}
