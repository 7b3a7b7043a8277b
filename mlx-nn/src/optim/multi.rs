//! [`MultiOptimizer`]: different methods for different parameters of one model.

use std::fmt;

use mlx_core::{Array, Result, eval};

use super::Optimizer;
use crate::grad::Gradients;
use crate::module::Module;
use crate::trainable::changing;

/// Whether an optimiser changes a parameter, from the parameter's name and gradient.
type Filter = Box<dyn Fn(&str, &Array) -> bool>;

/// Several optimisers, each for the parameters that its filter accepts. The first filter that
/// accepts a parameter decides, and the last optimiser changes all other parameters.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::optim::{AdamW, MultiOptimizer, Muon};
///
/// # fn main() -> Result<()> {
/// let optimizer = MultiOptimizer::new(AdamW::new(1e-3))
///     .with(Muon::new(0.02), |name, grad| grad.ndim() == 2 && !name.contains("embed"));
/// assert_eq!(optimizer.optimizers().count(), 2);
/// # Ok(())
/// # }
/// ```
pub struct MultiOptimizer {
    chosen: Vec<(Optimizer, Filter)>,
    rest: Optimizer,
}

impl fmt::Debug for MultiOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.optimizers()).finish()
    }
}

impl MultiOptimizer {
    /// `rest` for every parameter that no filter accepts.
    pub fn new(rest: impl Into<Optimizer>) -> Self {
        Self {
            chosen: Vec::new(),
            rest: rest.into(),
        }
    }

    /// Adds an optimiser for the parameters that `filter` accepts by name and gradient, if no earlier one does.
    #[must_use]
    pub fn with(
        mut self,
        optimizer: impl Into<Optimizer>,
        filter: impl Fn(&str, &Array) -> bool + 'static,
    ) -> Self {
        self.chosen.push((optimizer.into(), Box::new(filter)));
        self
    }

    /// The optimisers in the order of their filters, then the one for all other parameters.
    pub fn optimizers(&self) -> impl Iterator<Item = &Optimizer> {
        let chosen = self.chosen.iter().map(|(optimizer, _)| optimizer);
        chosen.chain([&self.rest])
    }

    /// The optimisers, to change their schedules.
    pub fn optimizers_mut(&mut self) -> impl Iterator<Item = &mut Optimizer> {
        let chosen = self.chosen.iter_mut().map(|(optimizer, _)| optimizer);
        chosen.chain([&mut self.rest])
    }

    /// Takes a step of each optimiser, and evaluates the parameters, the buffers and the
    /// optimisers' states.
    ///
    /// # Errors
    /// The errors of [`Optimizer::update`].
    pub fn update<M: Module>(&mut self, module: &mut M, grads: &Gradients) -> Result<()> {
        let mut parts = vec![Gradients::new(); self.chosen.len() + 1];
        for (name, grad) in grads {
            let chosen = self.chosen.iter();
            let place = chosen
                .clone()
                .position(|(_, accepts)| accepts(name, grad))
                .unwrap_or(self.chosen.len());
            parts[place].insert(name.clone(), grad.clone());
        }
        for (optimizer, part) in self.optimizers_mut().zip(&parts) {
            optimizer.apply_lazily(module, part)?;
        }
        let changed = changing(module)?;
        let pending = self.optimizers().flat_map(Optimizer::pending);
        eval(changed.iter().chain(pending))
    }
}
