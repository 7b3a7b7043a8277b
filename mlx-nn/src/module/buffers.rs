//! [`Buffers`]: fields of modules that are saved and not trained.

use mlx_core::{Array, Result};

use super::{Path, Visit, VisitMut};

/// An array, or a container of arrays, that a module saves and does not train. A field is one if it is marked with
/// `#[module(state)]` or stands in `state { .. }` of [`module!`](crate::module!).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a module's state",
    label = "not an `Array`, or an `Option`, `Vec` or array of such",
    note = "the type of a field that is marked with `#[module(state)]` is `Array`"
)]
pub trait Buffers {
    /// Passes the arrays to a visitor.
    ///
    /// # Errors
    /// An error of the visitor.
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()>;

    /// Passes the arrays to a visitor that changes them.
    ///
    /// # Errors
    /// An error of the visitor.
    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()>;
}

impl Buffers for Array {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        v.state(path, self)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.state(path, self)
    }
}

impl<B: Buffers> Buffers for Option<B> {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        self.as_ref().map_or(Ok(()), |buffer| buffer.visit(path, v))
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        self.as_mut()
            .map_or(Ok(()), |buffer| buffer.visit_mut(path, v))
    }
}

impl<B: Buffers> Buffers for [B] {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        for (index, buffer) in self.iter().enumerate() {
            path.scoped(&index.to_string(), |path| buffer.visit(path, v))?;
        }
        Ok(())
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        for (index, buffer) in self.iter_mut().enumerate() {
            path.scoped(&index.to_string(), |path| buffer.visit_mut(path, v))?;
        }
        Ok(())
    }
}

impl<B: Buffers> Buffers for Vec<B> {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        self.as_slice().visit(path, v)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        self.as_mut_slice().visit_mut(path, v)
    }
}

impl<B: Buffers, const N: usize> Buffers for [B; N] {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        self.as_slice().visit(path, v)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        self.as_mut_slice().visit_mut(path, v)
    }
}
