//! [`Embedding`]: rows looked up by token id, and the same matrix as a tied output head.

use mlx_core::{Array, Result};

use crate::module::{Module, Path, Visit, VisitMut};
use crate::weight::Weight;

/// A table `[V, E]`, dense or quantised.
#[derive(Clone, Debug)]
pub struct Embedding {
    weight: Weight,
}

impl Embedding {
    /// A table of `vocab` rows of `hidden` numbers, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn new(vocab: i32, hidden: i32) -> Result<Self> {
        Ok(Self {
            weight: Weight::empty(&[vocab, hidden])?,
        })
    }

    /// `tokens [..] -> [.., E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, tokens: &Array) -> Result<Array> {
        self.weight.rows(tokens)
    }

    /// The table as an output head: `[.., E] -> [.., V]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn as_linear(&self, x: &Array) -> Result<Array> {
        self.weight.project(x)
    }

    /// The table.
    pub fn weight(&self) -> &Weight {
        &self.weight
    }
}

impl Module for Embedding {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        self.weight.visit(path, v)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        self.weight.visit_mut(path, v)
    }
}
