//! The text before a grammar's text: reasoning up to a mark, which a model may open itself, or text with a grammar of
//! its own.

use std::sync::Arc;

use llguidance::Matcher;

use super::Mask;
use super::compile::Compiled;
use super::guide::{clear, first_line, mask_of};
use super::vocabulary::Vocabulary;
use crate::request::grammar::Constraint;

/// The kind of text before the grammar's text.
pub(super) enum Front {
    /// A mark that opens free text, or nothing.
    Opener(Opener),
    /// Free text up to a mark.
    Free(Mark),
    /// Text with a grammar of its own.
    Held(Box<Matcher>),
}

/// The effect of a token.
pub(super) enum FrontStep {
    /// The text before the grammar's text continues.
    Stays,
    /// The opening mark is complete, and free text follows.
    Opened,
    /// The text before the grammar's text is complete, and the grammar's text starts with the next
    /// token.
    Over,
    /// There is no text before the grammar's text, which has already started.
    Missing,
}

impl Front {
    pub(super) fn new(
        constraint: &Constraint,
        front: Option<&Compiled>,
        vocabulary: &Vocabulary,
    ) -> Option<Self> {
        if let Some(front) = front {
            return Some(Self::Held(Box::new(front.start.deep_clone())));
        }
        let after = constraint.after.as_deref()?;
        let mark = Mark::new(after, vocabulary.crossing(after));
        Some(match constraint.opener.as_deref() {
            None => Self::Free(mark),
            Some(opener) => Self::Opener(Opener {
                sought: opener.as_bytes().to_vec(),
                came: 0,
                next: vocabulary.opening(opener, after),
                behind: mark,
                may_be_missing: true,
            }),
        })
    }

    /// Whether the text so far may also be the start of the grammar's text.
    pub(super) fn may_be_missing(&self) -> bool {
        matches!(self, Self::Opener(opener) if opener.may_be_missing)
    }

    /// Sets whether the text so far may also be the start of the grammar's text.
    pub(super) fn set_missing(&mut self, may_be: bool) {
        if let Self::Opener(opener) = self {
            opener.may_be_missing = may_be;
        }
    }

    /// The tokens that may come next; `None` for all.
    pub(super) fn allowed(&mut self, words: usize) -> Result<Option<Mask>, String> {
        match self {
            Self::Opener(opener) => Ok(Some(opener.next[opener.came].clone())),
            Self::Free(mark) => Ok(mark.mask(words)),
            Self::Held(matcher) => mask_of(matcher, words).map(Some),
        }
    }

    /// Takes a token of this text.
    ///
    /// # Errors
    /// Its grammar does not allow the token.
    pub(super) fn accept(&mut self, id: u32, text: &[u8]) -> Result<FrontStep, String> {
        match self {
            Self::Opener(opener) => {
                let rest = &opener.sought[opener.came..];
                if let Some(behind) = text.strip_prefix(rest) {
                    let mut mark = std::mem::take(&mut opener.behind);
                    mark.push(behind);
                    *self = Self::Free(mark);
                    return Ok(FrontStep::Opened);
                }
                if text.is_empty() || !rest.starts_with(text) {
                    return Ok(FrontStep::Missing);
                }
                opener.came += text.len();
                Ok(FrontStep::Stays)
            }
            Self::Free(mark) => Ok(match mark.push(text) {
                true => FrontStep::Over,
                false => FrontStep::Stays,
            }),
            Self::Held(matcher) => {
                let taken = matcher.consume_token(id);
                taken.map_err(|error| first_line(&error))?;
                Ok(match matcher.is_accepting().unwrap_or(false) {
                    true => FrontStep::Over,
                    false => FrontStep::Stays,
                })
            }
        }
    }
}

/// Looks for the mark that opens free text at the start of a generation.
pub(super) struct Opener {
    sought: Vec<u8>,
    /// The number of bytes of the mark that were found.
    came: usize,
    /// For each number of bytes found: the tokens that continue the mark.
    next: Arc<Vec<Mask>>,
    /// The mark that ends the free text.
    behind: Mark,
    /// Whether the grammar also allows the text so far.
    may_be_missing: bool,
}

/// Looks for a mark in the bytes of tokens.
#[derive(Clone, Default)]
pub(super) struct Mark {
    sought: Vec<u8>,
    /// The last bytes, fewer than the mark has.
    tail: Vec<u8>,
    crossing: Arc<Crossing>,
}

/// For each number of bytes of the mark that may have been found: the tokens that end the mark and continue with other
/// text. They are forbidden, so that the grammar's text starts with a token.
pub(super) type Crossing = Vec<Vec<u32>>;

impl Mark {
    fn new(sought: &str, crossing: Arc<Crossing>) -> Self {
        Self {
            sought: sought.as_bytes().to_vec(),
            tail: Vec::new(),
            crossing,
        }
    }

    /// Adds bytes. Returns whether the mark is complete.
    fn push(&mut self, bytes: &[u8]) -> bool {
        self.tail.extend_from_slice(bytes);
        let n = self.sought.len();
        let has_come = self.tail.windows(n).any(|bytes| bytes == self.sought);
        let keep = self.tail.len().min(n - 1);
        self.tail.drain(..self.tail.len() - keep);
        has_come
    }

    fn mask(&self, words: usize) -> Option<Mask> {
        let may_have_come = |(n, _): &(usize, _)| self.tail.ends_with(&self.sought[..*n]);
        let crossing = self.crossing.iter().enumerate().filter(may_have_come);
        let forbidden: Vec<u32> = crossing.flat_map(|(_, ids)| ids).copied().collect();
        let mut bits = vec![u32::MAX; words];
        clear(&mut bits, &forbidden);
        (!forbidden.is_empty()).then(|| bits.into())
    }
}
