//! A block of calls, from the mark that opens it to its end.

use super::calls::{Parts, Tools};
use super::envelope::Envelope;
use super::json::is_blank;
use super::named::Named;
use super::notation::Notation;
use super::pythonic::Pythonic;
use super::tags::Tags;

/// The effect of a character on a block of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It belongs to the block, which continues.
    More,
    /// It is the last of the block.
    Done,
    /// It cannot continue the block.
    Broken,
}

/// The text of a block.
#[derive(Debug)]
pub(super) enum Body {
    Envelope(Envelope),
    Tags(Tags),
    Named(Named),
    Notation(Notation),
    Pythonic(Pythonic),
    /// Either of two forms: the first if its text begins with `{` or `[`.
    Either(Box<(Envelope, Body)>),
}

/// A block, and the part of its text that no given part covers.
#[derive(Debug)]
pub(super) struct Block {
    body: Body,
    raw: String,
    has_given: bool,
}

/// How a block ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It is complete, or cut after a call or within one.
    Whole,
    /// This text is not part of a call.
    Text {
        text: String,
        /// Whether its first character opened the block, so that it may not open another.
        opens: bool,
    },
}

impl Block {
    /// Whether it has an opening mark, so that it is a call and no text that looks like one.
    pub(super) fn is_marked(&self, marks: &[&str]) -> bool {
        self.has_given || marks.iter().any(|mark| self.raw.starts_with(mark))
    }

    /// A block after its opening mark.
    pub(super) fn new(mark: &str, body: Body) -> Self {
        Self {
            body,
            raw: mark.to_owned(),
            has_given: false,
        }
    }

    /// Takes the next character. How the block ended, if it did.
    pub(super) fn take(&mut self, c: char, tools: &Tools, parts: &mut Parts) -> Option<End> {
        self.raw.push(c);
        let step = self.body.take(c, tools, parts);
        if parts.moved() {
            self.has_given = true;
            self.raw.clear();
        }
        match step {
            Step::More => None,
            Step::Done => Some(End::Whole),
            Step::Broken => {
                let opens = !self.has_given;
                parts.cut(false);
                Some(End::Text {
                    text: std::mem::take(&mut self.raw),
                    opens,
                })
            }
        }
    }

    /// The end of the reply. A call whose arguments have begun is given as far as it was received.
    pub(super) fn finish(&mut self, parts: &mut Parts) -> End {
        if self.body.is_complete() {
            parts.end();
        }
        if parts.cut(true) || parts.moved() || self.body.is_tail() {
            parts.moved();
            return End::Whole;
        }
        End::Text {
            text: std::mem::take(&mut self.raw),
            opens: !self.has_given,
        }
    }
}

impl Body {
    fn take(&mut self, c: char, tools: &Tools, parts: &mut Parts) -> Step {
        match self {
            Self::Envelope(envelope) => envelope.take(c, tools, parts),
            Self::Tags(tags) => tags.take(c, tools, parts),
            Self::Named(named) => named.take(c, tools, parts),
            Self::Notation(notation) => notation.take(c, tools, parts),
            Self::Pythonic(pythonic) => pythonic.take(c, tools, parts),
            Self::Either(_) if is_blank(c) => Step::More,
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
