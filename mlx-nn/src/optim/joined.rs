//! Small parameters, joined into one array.
//!
//! An adapter has hundreds of small matrices, and an optimiser needs a dozen operations for each:
//! thousands of launches on a GPU. A method that changes each element independently computes the
//! same numbers on one array that holds all small parameters one after the other.

use std::collections::BTreeMap;

use mlx_core::ops::concat;
use mlx_core::{Array, DType, Result};

use super::OptimizerState;
use crate::grad::Gradients;

/// Parameters with fewer elements are joined. Joining copies them.
const SMALL: usize = 1 << 18;
/// The most elements of the joined array.
const MOST: usize = 1 << 28;
/// The key of the joined array among gradients. No field has such a name.
pub(super) const KEY: &str = "(joined)";

/// The parameters that are joined: names and shapes, in the order of their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JoinedLayout(BTreeMap<String, Vec<i32>>);

impl JoinedLayout {
    /// The parameters whose gradients have few elements, if there are several such parameters.
    pub(super) fn of(grads: &Gradients) -> Self {
        let small = grads.iter().filter(|(_, grad)| grad.size() < SMALL);
        let elements: usize = small.clone().map(|(_, grad)| grad.size()).sum();
        if small.clone().count() < 2 || elements > MOST {
            return Self::default();
        }
        Self(
            small
                .map(|(name, grad)| (name.clone(), grad.shape().to_vec()))
                .collect(),
        )
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn shape_of(&self, name: &str) -> Option<&[i32]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// The gradients with the small ones as one F32 array `[N]`, under a name that no parameter has.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn join(&self, mut grads: Gradients) -> Result<Gradients> {
        if !self.is_empty() {
            let parts: Vec<Array> = self
                .0
                .keys()
                .filter_map(|name| grads.remove(name))
                .collect();
            grads.insert(KEY.to_owned(), join(&parts)?);
        }
        Ok(grads)
    }

    /// The parts of a joined array `[N]`, by name.
    pub(super) fn split(&self, joined: &Array) -> Result<BTreeMap<String, Array>> {
        let mut end = 0;
        let mut ends = Vec::with_capacity(self.0.len());
        for shape in self.0.values() {
            end += shape.iter().product::<i32>();
            ends.push(end);
        }
        ends.pop();
        let parts = joined.split_at(&ends, 0)?;
        let named = self.0.iter().zip(parts);
        named
            .map(|((name, shape), part)| Ok((name.clone(), part.reshape(shape)?)))
            .collect()
    }

    /// The joined states of the parameters. A parameter without a state has zeros.
    pub(super) fn gather(
        &self,
        states: &mut BTreeMap<String, OptimizerState>,
    ) -> Result<OptimizerState> {
        let taken: Vec<OptimizerState> = (self.0.keys())
            .map(|name| states.remove(name).unwrap_or_default())
            .collect();
        let slots: Vec<&'static str> = taken
            .iter()
            .flat_map(|state| state.keys().copied())
            .collect();
        let mut joined = OptimizerState::new();
        for slot in slots {
            if joined.contains_key(slot) {
                continue;
            }
            let parts: Result<Vec<Array>> = (self.0.values().zip(&taken))
                .map(|(shape, state)| match state.get(slot) {
                    Some(array) => Ok(array.clone()),
                    None => mlx_core::ops::create::zeros(shape, DType::F32),
                })
                .collect();
            joined.insert(slot, join(&parts?)?);
        }
        Ok(joined)
    }
}

/// The elements of all arrays, F32 `[N]`.
pub(super) fn join(parts: &[Array]) -> Result<Array> {
    let flat = parts
        .iter()
        .map(|part| part.astype(DType::F32)?.reshape(&[-1]));
    concat(&flat.collect::<Result<Vec<_>>>()?, 0)
}
