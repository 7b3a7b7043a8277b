//! The budget of a request's reasoning: when it is used up, the mark that ends the reasoning is
//! forced.
//!
//! A step is queued before the token of the previous step is read. So the state also knows what
//! would follow an unread token: only if that token ends or begins reasoning is the answer not
//! known, and then the sampler's graph compares it with the few tokens that do.

use std::sync::Arc;

use super::Mask;
use crate::error::{Error, Result};
use crate::request::reasoning::ReasoningBudget;
use crate::text::spelling::{Spelled, Spelling};
use crate::text::tokenizer::Tokenizer;

/// The tokens that a row must choose from.
#[derive(Clone, Copy)]
pub(crate) struct Demand<'a> {
    pub(crate) allowed: &'a Mask,
    pub(crate) when: When<'a>,
}

/// Whether a demand holds, if that depends on a token that was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When<'a> {
    Always,
    /// It holds if the unread token is one of these.
    Behind(&'a [u32]),
    /// It holds if the unread token is none of these.
    NotBehind(&'a [u32]),
}

/// The marks of a budget in the tokens of a model.
pub(crate) struct BudgetMarks {
    tokenizer: Tokenizer,
    open: Sought,
    close: Sought,
    /// The tokens that are forced, and the mask that allows each.
    forced: Vec<(u32, Mask)>,
    /// The bytes of the forced text.
    text: Vec<u8>,
    /// The mark of a message's kind, and the tokens that do not begin the kind of reasoning.
    heads: Option<(Sought, Mask)>,
}

/// A text that is looked for in the bytes of tokens.
struct Sought {
    bytes: Vec<u8>,
    /// For each number of bytes that were found: the tokens that complete the text.
    completing: Vec<Vec<u32>>,
}

/// The state of a request's budget.
#[derive(Clone)]
pub(crate) struct Budget {
    marks: Arc<BudgetMarks>,
    /// The tokens of reasoning that are left.
    left: usize,
    is_anywhere: bool,
    place: Place,
    /// The last bytes, in which the next mark may have begun.
    tail: Vec<u8>,
    /// The tokens behind which the demand changes, of [`behind_unread`](Self::behind_unread).
    watched: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Not in reasoning.
    Outside,
    Inside,
    /// The forced token with this index is next.
    Forced(usize),
    /// There is no more reasoning.
    Over,
}

impl Sought {
    fn new(text: &str, spelled: &[Vec<u8>]) -> Self {
        let bytes = text.as_bytes().to_vec();
        let ids = |completes: &dyn Fn(&[u8]) -> bool| {
            let ids = (0u32..).zip(spelled);
            ids.filter(|(_, token)| completes(token))
                .map(|(id, _)| id)
                .collect()
        };
        let completing = (0..bytes.len()).map(|n| match n {
            0 => ids(&|token| find(token, &bytes).is_some()),
            n => ids(&|token| token.starts_with(&bytes[n..])),
        });
        Self {
            completing: completing.collect(),
            bytes,
        }
    }

    /// The tokens that complete the text after `tail`.
    fn completing(&self, tail: &[u8]) -> Vec<u32> {
        let found = self.completing.iter().enumerate();
        let found = found.filter(|(n, _)| tail.ends_with(&self.bytes[..*n]));
        let mut ids: Vec<u32> = found.flat_map(|(_, ids)| ids).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// The end of the first occurrence of a text.
fn find(bytes: &[u8], sought: &[u8]) -> Option<usize> {
    let mut windows = bytes.windows(sought.len());
    windows
        .position(|window| window == sought)
        .map(|at| at + sought.len())
}

/// A mask of `vocab` tokens.
fn mask(vocab: usize, is_allowed: impl Fn(usize) -> bool) -> Mask {
    let mut words = vec![0; vocab.div_ceil(32)];
    for id in (0..vocab).filter(|&id| is_allowed(id)) {
        words[id / 32] |= 1 << (id % 32);
    }
    words.into()
}

impl BudgetMarks {
    /// The marks in the tokens of a model with `vocab` ids.
    ///
    /// # Errors
    /// The bytes of a token depend on the tokens beside it, or a mark has no tokens.
    pub(crate) fn new(
        budget: &ReasoningBudget,
        tokenizer: &Tokenizer,
        vocab: usize,
    ) -> Result<Self> {
        let spelling = Spelling::new(tokenizer)?;
        let spelled: Vec<Vec<u8>> = (0..vocab as u32).map(|id| bytes(&spelling, id)).collect();
        let text = budget.forced();
        let forced = match tokenizer.token_to_id(&text) {
            Some(id) => vec![id],
            None => tokenizer.encode(&text, false)?,
        };
        if forced.is_empty() || forced.iter().any(|&id| id as usize >= vocab) {
            return Err(Error::unsupported(format!(
                "reasoning_budget: the vocabulary has no tokens for {text:?}"
            )));
        }
        let only = |id: u32| (id, mask(vocab, |at| at == id as usize));
        Ok(Self {
            tokenizer: tokenizer.clone(),
            open: Sought::new(&budget.open, &spelled),
            close: Sought::new(&budget.close, &spelled),
            forced: forced.into_iter().map(only).collect(),
            text: text.into_bytes(),
            heads: budget.heads.as_ref().map(|heads| {
                let kind = heads.kind.as_bytes();
                let begins_kind = |token: &[u8]| {
                    !token.is_empty() && (kind.starts_with(token) || token.starts_with(kind))
                };
                let others = mask(vocab, |id| !begins_kind(&spelled[id]));
                (Sought::new(&heads.mark, &spelled), others)
            }),
        })
    }
}

/// The bytes of a token, by name if it is special.
fn bytes(spelling: &Spelling<'_>, id: u32) -> Vec<u8> {
    match spelling.of(id) {
        Spelled::Nothing => Vec::new(),
        Spelled::Special(name) => name.into_bytes(),
        Spelled::Text(bytes) => bytes,
    }
}

impl Budget {
    /// The state before the first token.
    pub(crate) fn new(marks: Arc<BudgetMarks>, budget: &ReasoningBudget) -> Self {
        let mut state = Self {
            marks,
            left: budget.tokens,
            is_anywhere: budget.is_anywhere,
            place: Place::Outside,
            tail: Vec::new(),
            watched: Vec::new(),
        };
        if budget.is_begun {
            state.begin();
        }
        state.watch();
        state
    }

    /// Whether a demand may come within this many tokens.
    pub(crate) fn is_near(&self, tokens: usize) -> bool {
        self.place != Place::Over && self.left <= tokens
    }

    /// The demand on the next token, if all tokens before it were read.
    pub(crate) fn demand(&self) -> Option<Demand<'_>> {
        let allowed = match (self.place, &self.marks.heads) {
            (Place::Forced(at), _) => &self.marks.forced[at].1,
            (Place::Outside, Some((mark, others)))
                if self.left == 0 && self.tail.ends_with(&mark.bytes) =>
            {
                others
            }
            _ => return None,
        };
        Some(Demand {
            allowed,
            when: When::Always,
        })
    }

    /// The demand on the token after the next one, which was chosen and not read.
    pub(crate) fn behind_unread(&self) -> Option<Demand<'_>> {
        let marks = &*self.marks;
        let first = &marks.forced[0].1;
        let (allowed, when) = match (self.place, &marks.heads) {
            (Place::Forced(at), heads) => {
                let next = marks.forced.get(at + 1).map(|(_, mask)| mask);
                let others = heads
                    .as_ref()
                    .filter(|(mark, _)| marks.text.ends_with(&mark.bytes));
                (next.or(others.map(|(_, mask)| mask))?, When::Always)
            }
            (Place::Inside, _) if self.left == 1 => (first, When::NotBehind(&self.watched)),
            (Place::Outside, heads) if self.left == 0 && !self.watched.is_empty() => {
                let allowed = heads.as_ref().map_or(first, |(_, others)| others);
                (allowed, When::Behind(&self.watched))
            }
            _ => return None,
        };
        Some(Demand { allowed, when })
    }

    /// Adds a token.
    pub(crate) fn advance(&mut self, id: u32) {
        if self.place == Place::Over {
            return;
        }
        if let Ok(spelling) = Spelling::new(&self.marks.tokenizer) {
            self.tail.extend(bytes(&spelling, id));
        }
        match self.place {
            Place::Forced(at) if self.marks.forced[at].0 == id => {
                self.place = Place::Forced(at + 1);
                if at + 1 == self.marks.forced.len() {
                    self.end(self.tail.len());
                }
            }
            Place::Forced(_) | Place::Inside => self.take(1),
            Place::Outside => self.look_for_opener(),
            Place::Over => {}
        }
        let longest = [&self.marks.open, &self.marks.close]
            .into_iter()
            .chain(self.marks.heads.as_ref().map(|(mark, _)| mark))
            .map(|sought| sought.bytes.len())
            .max();
        let keep = self.tail.len().min(longest.unwrap_or(0));
        if self.is_anywhere || self.place != Place::Outside {
            self.tail.drain(..self.tail.len() - keep);
        }
        self.watch();
    }

    /// Handles the bytes of reasoning in `tail`, of which `tokens` were added.
    fn take(&mut self, tokens: usize) {
        if let Some(end) = find(&self.tail, &self.marks.close.bytes) {
            return self.end(end);
        }
        self.left = self.left.saturating_sub(tokens);
        self.begin();
    }

    fn begin(&mut self) {
        self.place = match self.left {
            0 => Place::Forced(0),
            _ => Place::Inside,
        };
    }

    /// Handles the end of reasoning after `end` bytes of `tail`.
    fn end(&mut self, end: usize) {
        self.place = match self.is_anywhere {
            true => Place::Outside,
            false => Place::Over,
        };
        let is_forced = self.tail.ends_with(&self.marks.text);
        if !is_forced {
            self.tail.drain(..end);
        }
    }

    fn look_for_opener(&mut self) {
        let open = &self.marks.open.bytes;
        let end = match self.is_anywhere {
            true => find(&self.tail, open),
            false => {
                let blanks = self
                    .tail
                    .iter()
                    .take_while(|byte| byte.is_ascii_whitespace());
                let blanks = blanks.count();
                let said = &self.tail[blanks..];
                if !said.starts_with(open) && !open.starts_with(said) {
                    self.place = Place::Over;
                    return;
                }
                said.starts_with(open).then_some(blanks + open.len())
            }
        };
        if let Some(end) = end {
            self.tail.drain(..end);
            self.take(0);
        }
    }

    fn watch(&mut self) {
        let marks = &self.marks;
        self.watched = match (self.place, &marks.heads) {
            (Place::Inside, _) if self.left == 1 => marks.close.completing(&self.tail),
            (Place::Outside, Some((mark, _))) if self.left == 0 => mark.completing(&self.tail),
            (Place::Outside, None) if self.left == 0 => marks.open.completing(&self.tail),
            _ => Vec::new(),
        };
    }
}
