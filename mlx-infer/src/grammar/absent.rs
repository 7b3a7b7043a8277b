//! Grammars in a build without the feature `grammar`: each is refused before its request starts, so there is no state.

use std::sync::Arc;

use super::Mask;
use crate::error::{Error, Result};
use crate::request::grammar::Constraint;
use crate::text::tokenizer::Tokenizer;

/// A compiled grammar, of which there is none.
pub(crate) enum Compiled {}

impl Compiled {
    pub(crate) fn ignored(&self) -> &[String] {
        match *self {}
    }
}

/// The grammars of a model.
#[derive(Default)]
pub(crate) struct Grammars {}

impl Grammars {
    /// # Errors
    /// Always: this build has no structured output.
    pub(crate) fn get(
        &self,
        constraint: &Constraint,
        _tokenizer: &Tokenizer,
        _vocab: usize,
        _eos: &[u32],
    ) -> Result<Arc<Compiled>> {
        Err(Error::unsupported(format!(
            "{}: structured output needs the feature `grammar` of mlx-infer",
            constraint.grammar.name()
        )))
    }
}

/// The state of a grammar in a request, of which there is none.
pub(crate) enum Guide {}

impl Guide {
    pub(crate) fn new(
        compiled: Arc<Compiled>,
        _constraint: &Constraint,
        _front: Option<&Compiled>,
        _ends: &[u32],
        _ignore_eos: bool,
    ) -> Self {
        match *compiled {}
    }

    pub(crate) fn foresee(&mut self, _draft: &[u32]) {
        match *self {}
    }

    pub(crate) fn is_prepared(&self) -> bool {
        match *self {}
    }

    pub(crate) fn takes_drafts(&self) -> bool {
        match *self {}
    }

    pub(crate) fn masks(&self) -> std::option::IntoIter<Option<&Mask>> {
        match *self {}
    }

    pub(crate) fn check(&mut self) -> Result<()> {
        match *self {}
    }

    pub(crate) fn accept(&mut self, _id: u32) -> Result<bool> {
        match *self {}
    }

    pub(crate) fn name(&self) -> &'static str {
        match *self {}
    }
}
