//! [`Embedding`]: rows looked up by token id, and the same matrix as a tied output head.

use mlx_core::{Array, DType, Result};

use crate::init::{Initial, drawn};
use crate::lora::{Adaptable, AdaptableLayer, AdapterSlot, Layout, Lora};
use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::observe;
use crate::shard::{Cut, RankJoin, Ranks};
use crate::weight::Weight;

/// A table `[V, E]`, dense or quantised, with or without LoRA.
#[derive(Clone, Debug)]
pub struct Embedding {
    weight: Weight,
    pub(crate) joint: RankJoin,
    /// The first row that this rank holds.
    first: i32,
    // Boxed, because most tables have none.
    pub(crate) lora: Option<Box<Lora>>,
    /// Adapters by row.
    pub(crate) by_row: AdapterSlot,
}

impl Embedding {
    /// A table of `vocab` rows of `hidden` numbers. They are F32 and normal with a standard
    /// deviation of hidden^-1/2, as MLX's Python draws them, with the thread's keys
    /// ([`random::seed`](mlx_core::random::seed)).
    ///
    /// ```
    /// use mlx_core::{Array, Result};
    /// use mlx_nn::Embedding;
    ///
    /// # fn main() -> Result<()> {
    /// let table = Embedding::new(100, 8)?;
    /// let rows = table.forward(&Array::from_slice(&[7i32, 99], &[2])?)?;
    /// assert_eq!(rows.shape(), [2, 8]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A size is not positive, or no memory.
    pub fn new(vocab: i32, hidden: i32) -> Result<Self> {
        drawn(Self::empty(vocab, hidden)?)
    }

    /// A table of `vocab` rows of `hidden` numbers, without values; a checkpoint sets them.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(vocab: i32, hidden: i32) -> Result<Self> {
        let weight = Param::starting(&[vocab, hidden], Initial::Embedding)?;
        Ok(Self {
            weight: Weight::Dense(weight.called("weight")),
            joint: RankJoin::Alone,
            first: 0,
            lora: None,
            by_row: AdapterSlot::default(),
        })
    }

    /// `tokens [..] -> [.., E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, tokens: &Array) -> Result<Array> {
        let RankJoin::Outputs(ranks) = self.joint else {
            return self.rows(tokens);
        };
        let held = self.weight.shape()[0];
        let own = tokens.astype(DType::I32)?.subtract(self.first)?;
        let is_own = own.greater_equal(0)?.logical_and(own.less(held)?)?;
        let rows = self.rows(&is_own.select(&own, 0)?)?;
        ranks.sum(&is_own.expand_dims(-1)?.select(&rows, 0.0)?)
    }

    /// Rows of the part that this rank holds.
    fn rows(&self, tokens: &Array) -> Result<Array> {
        let rows = self.weight.rows(tokens, None)?;
        let rows = match &self.lora {
            Some(lora) => lora.apply_to_rows(tokens, &rows, &self.weight)?,
            None => rows,
        };
        match self.by_row.active() {
            Some(adapters) => adapters.add_to_rows(tokens, &rows),
            None => Ok(rows),
        }
    }

    /// The table as an output head, adapter included: `[.., E] -> [.., V]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn as_linear(&self, x: &Array) -> Result<Array> {
        observe::see(&self.weight, x)?;
        let y = self.weight.project(x)?;
        let y = match &self.lora {
            Some(lora) => lora.forward(x, &y, &self.weight)?,
            None => y,
        };
        let y = match self.by_row.active() {
            Some(adapters) => adapters.add_to(x, &y)?,
            None => y,
        };
        match self.joint {
            RankJoin::Outputs(ranks) => ranks.gather(&y),
            _ => Ok(y),
        }
    }

    /// Leaves this rank's share of the rows; lookups and logits still have all of them. A number of rows that does not
    /// divide stays whole.
    pub(crate) fn shard_vocabulary(&mut self, ranks: Ranks) -> Result<()> {
        let shape = self.weight.shape();
        if shape[0] % ranks.size() as i32 != 0 {
            return Ok(());
        }
        let share = ranks.share(shape[0]);
        self.first = share.start;
        self.joint = RankJoin::Outputs(ranks);
        self.weight.cut(&Cut::new(&shape, 0, vec![share])?)
    }

    /// The table.
    pub fn weight(&self) -> &Weight {
        &self.weight
    }

    /// The adapter, if one is attached.
    pub fn lora(&self) -> Option<&Lora> {
        self.lora.as_deref()
    }
}

impl Module for Embedding {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        let layer = AdaptableLayer {
            layout: Layout::Embedding,
            weight: &self.weight,
            lora: self.lora.as_deref(),
            by_row: Some(&self.by_row),
        };
        v.adaptable(path, layer)?;
        self.weight.visit(path, v)?;
        self.lora.visit(path, v)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        let layer = Adaptable {
            layout: Layout::Embedding,
            weight: &mut self.weight,
            lora: &mut self.lora,
            rounds: None,
        };
        v.adaptable(path, layer)?;
        self.weight.visit_mut(path, v)?;
        self.lora.visit_mut(path, v)
    }

    crate::known_type!();
}
