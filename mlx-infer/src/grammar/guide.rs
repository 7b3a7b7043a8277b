//! The state of a grammar in one request.

use std::collections::VecDeque;
use std::sync::Arc;

use llguidance::Matcher;

use super::Constraint;
use super::compile::Compiled;
use crate::error::{Error, ErrorKind, Result};

/// Bit `i % 32` of word `i / 32` allows token `i`.
pub(crate) type Mask = Arc<[u32]>;

/// The fault of a grammar that goes on with text for which the model has no token.
pub(super) const NO_TOKEN: &str =
    "the model's vocabulary has no token with which the text could go on";

/// Follows a request's tokens through a grammar, and says which may come next.
pub(crate) struct Guide {
    compiled: Arc<Compiled>,
    matcher: Matcher,
    /// The mark before the grammar's text, until it has come.
    mark: Option<Mark>,
    /// Whether no token of the grammar's text has come, and that text is the whole generation.
    is_at_start: bool,
    /// The tokens that may come next, if not all may. They are known once `is_prepared`.
    mask: Option<Mask>,
    is_prepared: bool,
    /// The tokens of the grammar's text.
    taken: Vec<u32>,
    /// Drafts that may come next, and the mask behind each.
    ahead: VecDeque<(u32, Option<Mask>)>,
    fault: Option<Error>,
    /// Tokens that end the request. They are allowed where the text is complete.
    ends: Vec<u32>,
    /// The checkpoint's end tokens are allowed only where nothing else is.
    ignore_eos: bool,
    name: &'static str,
}

impl Guide {
    /// A request's state before its first token. `ends`: the tokens that end it.
    pub(crate) fn new(
        compiled: Arc<Compiled>,
        constraint: &Constraint,
        ends: &[u32],
        ignore_eos: bool,
    ) -> Self {
        let after = constraint.after.as_deref();
        Self {
            // A copy of its own: what it computes depends on its tokens alone, and it waits for no other request.
            matcher: compiled.start.deep_clone(),
            mark: after.map(|after| Mark::new(after, compiled.vocabulary.crossing(after))),
            is_at_start: after.is_none(),
            mask: None,
            is_prepared: false,
            taken: Vec::new(),
            ahead: VecDeque::new(),
            fault: None,
            ends: ends.to_vec(),
            ignore_eos,
            name: constraint.grammar.name(),
            compiled,
        }
    }

    /// Computes the mask of the next token, if it is not there. It takes 10 microseconds to 10 milliseconds. A fault is the result of the
    /// next [`check`](Self::check).
    pub(crate) fn prepare(&mut self) {
        if !std::mem::replace(&mut self.is_prepared, true) {
            match self.allowed() {
                Ok(mask) => self.mask = mask,
                Err(what) => self.fault = Some(self.error(&what)),
            }
        }
    }

    /// Whether the mask of the next token is there.
    pub(crate) fn is_prepared(&self) -> bool {
        self.is_prepared
    }

    /// Computes the masks behind the tokens of a draft, too, as far as the grammar allows them: [`masks`](Self::masks). The grammar advances
    /// over the draft and is rolled back.
    pub(crate) fn foresee(&mut self, draft: &[u32]) {
        self.prepare();
        if self.fault.is_some() || !self.ahead.is_empty() {
            return;
        }
        let before = (self.mask.clone(), self.mark.clone(), self.is_at_start);
        let (taken, mut ahead) = (self.taken.len(), VecDeque::new());
        for &id in draft {
            let is_open = self.allows(id) && !self.ends.contains(&id);
            // Nothing follows where the text is complete. A fault is told when the token is chosen: its mask is computed again then.
            if !is_open || !matches!(self.accept(id), Ok(false)) {
                break;
            }
            let Ok(mask) = self.allowed() else { break };
            self.mask = mask.clone();
            ahead.push_back((id, mask));
        }
        self.take_back(taken);
        (self.mask, self.mark, self.is_at_start) = before;
        (self.is_prepared, self.ahead) = (true, ahead);
    }

    /// Rolls the grammar back to its first `len` tokens.
    fn take_back(&mut self, len: usize) {
        let more = self.taken.len() - len;
        self.taken.truncate(len);
        if more == 0 || self.matcher.rollback(more).is_ok() {
            return;
        }
        // A matcher that has failed cannot be rolled back.
        self.matcher = self.compiled.start.deep_clone();
        if let Err(error) = self.matcher.consume_tokens(&self.taken) {
            self.fault = Some(self.error(&first_line(&error)));
        }
    }

    /// The mask of the next token, and those behind the draft of [`foresee`](Self::foresee).
    pub(crate) fn masks(&self) -> impl Iterator<Item = Option<&Mask>> {
        let behind = self.ahead.iter().map(|(_, mask)| mask.as_ref());
        std::iter::once(self.mask.as_ref()).chain(behind)
    }

    fn allows(&self, id: u32) -> bool {
        let bit = |mask: &Mask| {
            let word = mask.get(id as usize / 32);
            word.is_some_and(|word| word >> (id % 32) & 1 == 1)
        };
        self.mask.as_ref().is_none_or(bit)
    }

    /// The tokens that may come next, if not all may.
    pub(crate) fn mask(&self) -> Option<&Mask> {
        self.mask.as_ref()
    }

    /// `None`: all tokens.
    fn allowed(&mut self) -> std::result::Result<Option<Mask>, String> {
        let words = self.compiled.vocabulary.words();
        if let Some(mark) = &self.mark {
            return Ok(mark.mask(words));
        }
        let mask = match self.is_at_start {
            true => self.compiled.first.clone(),
            false => mask_of(&mut self.matcher, words)?,
        };
        let may_end = self.matcher.is_accepting().unwrap_or(false);
        if !may_end || (self.ends.is_empty() && !self.ignore_eos) {
            return Ok(Some(mask));
        }
        let mut bits = mask.to_vec();
        if self.ignore_eos {
            clear(&mut bits, self.compiled.vocabulary.eos_ids());
        }
        for &id in &self.ends {
            if let Some(word) = bits.get_mut(id as usize / 32) {
                *word |= 1 << (id % 32);
            }
        }
        // Only the end can follow.
        Ok(Some(match bits.iter().all(|&word| word == 0) {
            true => mask,
            false => bits.into(),
        }))
    }

    /// Whether the next token was chosen by a mask.
    ///
    /// # Errors
    /// The mask could not be computed.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.fault.take() {
            Some(fault) => Err(fault),
            None => {
                assert!(self.is_prepared, "masks come before choices");
                Ok(())
            }
        }
    }

    /// Takes the next token. Returns whether the text is complete and cannot go on.
    ///
    /// # Errors
    /// The grammar does not allow the token.
    pub(crate) fn accept(&mut self, id: u32) -> Result<bool> {
        let foreseen = self.ahead.pop_front();
        let foreseen = foreseen.filter(|(draft, _)| *draft == id);
        if foreseen.is_none() {
            self.ahead.clear();
        }
        self.is_prepared = foreseen.is_some();
        self.mask = foreseen.and_then(|(_, mask)| mask);
        self.is_at_start = false;
        let Some(mark) = &mut self.mark else {
            return self.consume(id);
        };
        if mark.push(self.compiled.vocabulary.text(id)) {
            self.mark = None;
        }
        Ok(false)
    }

    fn consume(&mut self, id: u32) -> Result<bool> {
        self.taken.push(id);
        let taken = self.matcher.consume_token(id);
        taken.map_err(|error| self.error(&first_line(&error)))?;
        Ok(self.matcher.is_stopped())
    }

    /// The error if `is_forbidden` holds for every token that the grammar allows.
    pub(crate) fn blocked(&self, is_forbidden: impl Fn(u32) -> bool) -> Option<Error> {
        let mask = self.mask.as_ref()?;
        let bits = (0..).zip(mask.iter()).flat_map(|(at, word)| {
            let is_set = move |bit: &u32| word >> bit & 1 == 1;
            (0..32u32).filter(is_set).map(move |bit: u32| at * 32 + bit)
        });
        let is_blocked = bits.into_iter().all(is_forbidden);
        is_blocked.then(|| self.error("logit_bias forbids every token with which it could go on"))
    }

    fn error(&self, what: &str) -> Error {
        Error::new(ErrorKind::Argument, format!("{}: {what}", self.name))
    }
}

/// The tokens that a matcher allows next.
pub(super) fn mask_of(matcher: &mut Matcher, words: usize) -> std::result::Result<Mask, String> {
    let set = matcher.compute_mask().map_err(|error| {
        let said = first_line(&error);
        match said.contains("NoExtensionBias") {
            true => NO_TOKEN.to_owned(),
            false => format!("no mask could be computed: {said}"),
        }
    })?;
    let mut bits = Vec::from(set);
    // The set has room for one token more than there are.
    bits.resize(words, 0);
    Ok(bits.into())
}

fn clear(words: &mut [u32], ids: &[u32]) {
    for &id in ids {
        if let Some(word) = words.get_mut(id as usize / 32) {
            *word &= !(1 << (id % 32));
        }
    }
}

fn first_line(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Looks for a mark in the bytes of tokens.
#[derive(Clone)]
struct Mark {
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
