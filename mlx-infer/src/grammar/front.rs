//! What stands before a grammar's text: reasoning up to a mark, which a model may open itself, or text of a grammar of its own.

use std::sync::Arc;

use llguidance::Matcher;

use super::Constraint;
use super::compile::Compiled;
use super::guide::{Mask, clear, first_line, mask_of};
use super::vocabulary::Vocabulary;

/// What stands before the text.
pub(super) enum Front {
    /// The mark that opens free text, or nothing.
    Opener(Opener),
    /// Free text up to a mark.
    Free(Mark),
    /// Text that a grammar holds.
    Held(Box<Matcher>),
}

/// What a token does.
pub(super) enum Step {
    /// The front goes on.
    Stays,
    /// The opening mark is whole: free text follows.
    Opened,
    /// The front is over, and the grammar's text begins with the next token.
    Over,
    /// There is no front: the grammar's text has begun.
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

    /// Whether what has come may be the beginning of the grammar's text as well.
    pub(super) fn may_be_missing(&self) -> bool {
        matches!(self, Self::Opener(opener) if opener.may_be_missing)
    }

    /// Sets whether it may.
    pub(super) fn set_missing(&mut self, may_be: bool) {
        if let Self::Opener(opener) = self {
            opener.may_be_missing = may_be;
        }
    }

    /// The tokens with which it goes on; `None`: all.
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
    pub(super) fn accept(&mut self, id: u32, text: &[u8]) -> Result<Step, String> {
        match self {
            Self::Opener(opener) => {
                let rest = &opener.sought[opener.came..];
                if let Some(behind) = text.strip_prefix(rest) {
                    let mut mark = std::mem::take(&mut opener.behind);
                    mark.push(behind);
                    *self = Self::Free(mark);
                    return Ok(Step::Opened);
                }
                if text.is_empty() || !rest.starts_with(text) {
                    return Ok(Step::Missing);
                }
                opener.came += text.len();
                Ok(Step::Stays)
            }
            Self::Free(mark) => Ok(match mark.push(text) {
                true => Step::Over,
                false => Step::Stays,
            }),
            Self::Held(matcher) => {
                let taken = matcher.consume_token(id);
                taken.map_err(|error| first_line(&error))?;
                Ok(match matcher.is_accepting().unwrap_or(false) {
                    true => Step::Over,
                    false => Step::Stays,
                })
            }
        }
    }
}

/// Looks for the mark that opens free text at the beginning of a generation.
pub(super) struct Opener {
    sought: Vec<u8>,
    /// Bytes of it that have come.
    came: usize,
    /// The tokens that go on with it behind each number of its bytes.
    next: Arc<Vec<Mask>>,
    /// The mark that ends the free text.
    behind: Mark,
    /// The grammar allows what has come.
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

/// For each number of the mark's bytes that may have come: the tokens that end the mark behind them and go on with other text. They are
/// forbidden, so that the grammar's text begins with a token.
pub(super) type Crossing = Vec<Vec<u32>>;

impl Mark {
    fn new(sought: &str, crossing: Arc<Crossing>) -> Self {
        Self {
            sought: sought.as_bytes().to_vec(),
            tail: Vec::new(),
            crossing,
        }
    }

    /// Takes the next bytes. Returns whether the mark has come.
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
