//! The state of a grammar in one request.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::Matcher;

use super::Mask;
use super::compile::Compiled;
use super::front::{Front, FrontStep};
use crate::error::{Error, ErrorKind, Result};
use crate::request::grammar::Constraint;

/// The error for a grammar that continues with text for which the model has no token.
pub(super) const NO_TOKEN: &str =
    "the model's vocabulary has no token with which the text could go on";

/// Follows a request's tokens through a grammar, and computes which tokens may come next.
pub(crate) struct Guide {
    compiled: Arc<Compiled>,
    matcher: Matcher,
    /// The text before the grammar's text, until the latter starts.
    front: Option<Front>,
    /// Whether the grammar's text is the whole generation and has no token yet.
    is_at_start: bool,
    /// The tokens that may come next, or `None` for all. It is valid once `is_prepared`.
    mask: Option<Mask>,
    is_prepared: bool,
    /// The tokens of the grammar's text so far.
    taken: Vec<u32>,
    /// Drafted tokens that are allowed, and the mask after each.
    ahead: VecDeque<(u32, Option<Mask>)>,
    fault: Option<Error>,
    /// Tokens that end the request. They are allowed when the grammar's text is complete, and not
    /// in the text before it.
    ends: Vec<u32>,
    /// All tokens except `ends`, if there are any.
    not_ends: Option<Mask>,
    /// Whether the checkpoint's end tokens are allowed only if nothing else is.
    ignore_eos: bool,
    name: &'static str,
    /// Whether the next mask panics.
    #[cfg(test)]
    panics: bool,
}

impl Guide {
    /// The state of a request before its first token. `front` is the compiled form of
    /// [`Constraint::front`], `ends` the tokens that end the request.
    pub(crate) fn new(
        compiled: Arc<Compiled>,
        constraint: &Constraint,
        front: Option<&Compiled>,
        ends: &[u32],
        ignore_eos: bool,
    ) -> Self {
        let front = Front::new(constraint, front, &compiled.vocabulary);
        let not_ends = (front.is_some() && !ends.is_empty()).then(|| {
            let mut bits = vec![u32::MAX; compiled.vocabulary.words()];
            clear(&mut bits, ends);
            bits.into()
        });
        Self {
            not_ends,
            // A separate copy, so that its work depends only on its own tokens, and it does not
            // wait for other requests.
            matcher: compiled.start.deep_clone(),
            is_at_start: front.as_ref().is_none_or(Front::may_be_missing),
            front,
            mask: None,
            is_prepared: false,
            taken: Vec::new(),
            ahead: VecDeque::new(),
            fault: None,
            ends: ends.to_vec(),
            ignore_eos,
            name: constraint.grammar.name(),
            #[cfg(test)]
            panics: false,
            compiled,
        }
    }

    /// Computes the mask of the next token, if it was not computed, and the masks after the tokens
    /// of a draft, as far as the grammar allows these: [`masks`](Self::masks). The grammar advances
    /// over the draft and is rolled back. A mask takes 10 microseconds to 10 milliseconds. A fault
    /// is returned by the next [`check`](Self::check).
    pub(crate) fn foresee(&mut self, draft: &[u32]) {
        let work = || {
            self.compute();
            self.look_ahead(draft);
        };
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            self.ahead.clear();
            self.is_prepared = true;
            self.fault = Some(self.panicked());
        }
    }

    fn panicked(&self) -> Error {
        let message = format!("{}: the grammar's compiler has panicked", self.name);
        Error::new(ErrorKind::Compute, message)
    }

    fn compute(&mut self) {
        #[cfg(test)]
        assert!(!self.panics, "a test has asked for it");
        if !std::mem::replace(&mut self.is_prepared, true) {
            match self.allowed() {
                Ok(mask) => self.mask = mask,
                Err(what) => self.fault = Some(error(self.name, &what)),
            }
        }
    }

    /// Computes the mask of the next token.
    #[cfg(test)]
    pub(crate) fn prepare(&mut self) {
        self.foresee(&[]);
    }

    /// Makes the next mask panic.
    #[cfg(test)]
    pub(crate) fn panic_next(&mut self) {
        self.panics = true;
    }

    /// Whether the mask of the next token was computed.
    pub(crate) fn is_prepared(&self) -> bool {
        self.is_prepared
    }

    /// Whether the masks after a draft can be computed. They cannot in a mark that opens reasoning
    /// and in a first text with a grammar of its own: these are short, and drafts do not predict
    /// them.
    pub(crate) fn takes_drafts(&self) -> bool {
        matches!(self.front, None | Some(Front::Free(_)))
    }

    fn look_ahead(&mut self, draft: &[u32]) {
        if self.fault.is_some() || !self.ahead.is_empty() {
            return;
        }
        let mark = match &self.front {
            None => None,
            Some(Front::Free(mark)) => Some(mark.clone()),
            Some(Front::Opener(_) | Front::Held(_)) => return,
        };
        let before = (self.mask.clone(), self.is_at_start);
        let (taken, mut ahead) = (self.taken.len(), VecDeque::new());
        for &id in draft {
            let is_open = self.allows(id) && !self.ends.contains(&id);
            // Nothing follows a complete text. A fault is reported when the token is chosen: its
            // mask is then computed again.
            if !is_open || !matches!(self.take(id), Ok(false)) {
                break;
            }
            let Ok(mask) = self.allowed() else { break };
            self.mask = mask.clone();
            ahead.push_back((id, mask));
        }
        self.take_back(taken);
        (self.mask, self.is_at_start) = before;
        self.front = mark.map(Front::Free);
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
        if let Err(said) = self.matcher.consume_tokens(&self.taken) {
            self.fault = Some(error(self.name, &first_line(&said)));
        }
    }

    /// The mask of the next token, and the masks after the draft of [`foresee`](Self::foresee).
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

    /// The tokens that may come next; `None` for all.
    #[cfg(test)]
    pub(crate) fn mask(&self) -> Option<&Mask> {
        self.mask.as_ref()
    }

    /// The tokens that may come next; `None` for all.
    fn allowed(&mut self) -> std::result::Result<Option<Mask>, String> {
        let words = self.compiled.vocabulary.words();
        match &mut self.front {
            None => self.allowed_by_grammar(words).map(Some),
            Some(front) if !front.may_be_missing() => {
                let mask = front.allowed(words)?;
                Ok(match (mask, &self.not_ends) {
                    // The grammar's text must still come, so an end token is not allowed.
                    (None, not_ends) => not_ends.clone(),
                    (Some(mask), Some(not_ends)) if !matches!(front, Front::Held(_)) => {
                        Some(mask.iter().zip(&**not_ends).map(|(a, b)| a & b).collect())
                    }
                    (mask, _) => mask,
                })
            }
            Some(front) => {
                let mut bits = front
                    .allowed(words)?
                    .map_or_else(Vec::new, |mask| mask.to_vec());
                clear(&mut bits, &self.ends);
                let grammar = self.allowed_by_grammar(words)?;
                bits.iter_mut()
                    .zip(grammar.iter())
                    .for_each(|(bits, more)| *bits |= more);
                Ok(Some(bits.into()))
            }
        }
    }

    fn allowed_by_grammar(&mut self, words: usize) -> std::result::Result<Mask, String> {
        let mask = match self.is_at_start {
            true => self.compiled.first.clone(),
            false => mask_of(&mut self.matcher, words)?,
        };
        let may_end = self.matcher.is_accepting().unwrap_or(false);
        if !may_end || (self.ends.is_empty() && !self.ignore_eos) {
            return Ok(mask);
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
        // Only an end token can follow.
        Ok(match bits.iter().all(|&word| word == 0) {
            true => mask,
            false => bits.into(),
        })
    }

    /// Checks that the next token was chosen with a mask.
    ///
    /// # Errors
    /// The mask could not be computed, or was not computed.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.fault.take() {
            Some(fault) => Err(fault),
            None if self.is_prepared => Ok(()),
            None => {
                let message = format!("{}: a token was chosen without a mask", self.name);
                Err(Error::new(ErrorKind::Compute, message))
            }
        }
    }

    /// Adds the next token. Returns whether the text is complete and cannot continue.
    ///
    /// # Errors
    /// The grammar does not allow the token.
    pub(crate) fn accept(&mut self, id: u32) -> Result<bool> {
        let taken = catch_unwind(AssertUnwindSafe(|| self.take(id)));
        taken.unwrap_or_else(|_| Err(self.panicked()))
    }

    fn take(&mut self, id: u32) -> Result<bool> {
        let foreseen = self.ahead.pop_front();
        let foreseen = foreseen.filter(|(draft, _)| *draft == id);
        if foreseen.is_none() {
            self.ahead.clear();
        }
        self.is_prepared = foreseen.is_some();
        self.mask = foreseen.and_then(|(_, mask)| mask);
        self.is_at_start = false;
        let Some(front) = &mut self.front else {
            return self.consume(id);
        };
        let text = self.compiled.vocabulary.text(id);
        let step = front.accept(id, text);
        match step.map_err(|what| error(self.name, &what))? {
            FrontStep::Stays if front.may_be_missing() => {
                // The grammar may start in the same way as the mark.
                let goes_on = self.matcher.consume_token(id).is_ok();
                self.taken.push(id);
                front.set_missing(goes_on);
                Ok(goes_on && self.matcher.is_stopped())
            }
            FrontStep::Stays => Ok(false),
            FrontStep::Opened => {
                self.matcher = self.compiled.start.deep_clone();
                self.taken.clear();
                Ok(false)
            }
            FrontStep::Over => {
                self.front = None;
                Ok(false)
            }
            FrontStep::Missing => {
                self.front = None;
                self.consume(id)
            }
        }
    }

    fn consume(&mut self, id: u32) -> Result<bool> {
        self.taken.push(id);
        let taken = self.matcher.consume_token(id);
        taken.map_err(|said| error(self.name, &first_line(&said)))?;
        Ok(self.matcher.is_stopped())
    }

    /// The kind of the grammar, for messages.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }
}

fn error(name: &str, what: &str) -> Error {
    Error::new(ErrorKind::Argument, format!("{name}: {what}"))
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
    // llguidance's set has room for one more token than the vocabulary.
    bits.resize(words, 0);
    Ok(bits.into())
}

pub(super) fn clear(words: &mut [u32], ids: &[u32]) {
    for &id in ids {
        if let Some(word) = words.get_mut(id as usize / 32) {
            *word &= !(1 << (id % 32));
        }
    }
}

pub(super) fn first_line(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}
