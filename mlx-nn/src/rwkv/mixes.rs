//! [`Mixes`]: the six mixes of a token with the one before it.

use mlx_core::ops::stack;
use mlx_core::{Array, Result};

use crate::module::{Module, Param, Path, Visit, VisitMut};

/// The names of the mixes, in the order of receptance, decay, key, value, learning rate and gate.
const NAMES: [&str; 6] = ["x_r", "x_w", "x_k", "x_v", "x_a", "x_g"];

/// How much of the token before each mix takes: `[1, 1, E]` each.
#[derive(Clone, Debug)]
pub(super) struct Mixes {
    parts: [Param; 6],
    /// `[6, 1, 1, E]`
    joined: Array,
}

impl Mixes {
    pub(super) fn empty(hidden: i32) -> Result<Self> {
        let part = |_| Param::empty(&[1, 1, hidden]);
        let parts = (0..NAMES.len()).map(part).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            parts: parts.try_into().expect("one for each name"),
            joined: Array::scalar(0.0f32)?,
        })
    }

    /// The six mixes of `x [1, T, E]`, to which `to_before` leads from the token to the one before
    /// it.
    pub(super) fn of(&self, x: &Array, to_before: &Array) -> Result<[Array; 6]> {
        for part in &self.parts {
            part.get()?;
        }
        let mixed = x
            .add(to_before.multiply(&self.joined)?)?
            .astype(x.dtype())?;
        let mixed = mixed.split(6, 0)?.into_iter().map(|part| part.squeeze(0));
        let mixed = mixed.collect::<Result<Vec<_>>>()?;
        Ok(mixed.try_into().expect("one for each name"))
    }
}

impl Module for Mixes {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        for (name, part) in NAMES.iter().zip(&self.parts) {
            path.scoped(name, |path| part.visit(path, v))?;
        }
        v.derived(&self.joined)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        for (name, part) in NAMES.iter().zip(&mut self.parts) {
            path.scoped(name, |path| part.visit_mut(path, v))?;
        }
        if self.parts.iter().all(Param::is_filled) {
            let parts = self.parts.each_ref().map(|part| part.value().clone());
            self.joined = stack(parts, 0)?;
        }
        Ok(())
    }
}
