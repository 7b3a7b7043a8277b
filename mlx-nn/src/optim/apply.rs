//! Visitors that give the parameters of a module their new values.

use std::collections::BTreeMap;

use crate::module::{Param, Path, VisitMut};
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use super::{Optimizer, Update};
use crate::grad::Gradients;

/// Changes the parameters that are not joined, and collects those that are.
pub(super) struct Apply<'a> {
    pub(super) optimizer: &'a mut Optimizer,
    pub(super) grads: &'a Gradients,
    pub(super) rate: f64,
    /// The joined parameters.
    pub(super) small: BTreeMap<String, Array>,
    /// The number of other parameters that were changed.
    pub(super) done: usize,
}

impl VisitMut for Apply<'_> {
    fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
        let name = path.as_str();
        let is_same = |shape: &[i32]| match shape == param.shape() {
            true => Ok(()),
            false => {
                let message = format!(
                    "{name} has shape {:?}, its gradient {shape:?}",
                    param.shape()
                );
                Err(Error::new(ErrorKind::Shape, message))
            }
        };
        if !param.trainable {
            return Ok(());
        }
        if let Some(shape) = self.optimizer.joined.0.shape_of(name) {
            is_same(shape)?;
            self.small.insert(name.to_owned(), param.value().clone());
        } else if let Some(grad) = self.grads.get(name) {
            is_same(grad.shape())?;
            let Optimizer {
                method,
                states,
                step,
                ..
            } = &mut *self.optimizer;
            let new = method.update(Update {
                name,
                step: *step,
                rate: self.rate,
                param: param.value().astype(DType::F32)?,
                grad: grad.astype(DType::F32)?,
                state: states.entry(name.to_owned()).or_default(),
            })?;
            let dtype = param.value().dtype();
            param.set(new.astype(dtype)?);
            self.done += 1;
        }
        Ok(())
    }
}

/// Gives parameters their new values, in their own dtypes.
pub(super) struct Set<'a>(pub(super) &'a mut BTreeMap<String, Array>);

impl VisitMut for Set<'_> {
    fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
        if let Some(new) = self.0.remove(path.as_str()) {
            param.set(new.astype(param.value().dtype())?);
        }
        Ok(())
    }
}
