//! [`Normed`]: the norm of a residual stream, and [`Input`]: what projections read.

use std::cell::OnceCell;

use mlx_core::fast::{self, Gate, Matrix, NormOf, NormProducts};
use mlx_core::{Array, DType, Result};

use crate::norm::{Norm, RmsNorm};
use crate::residual::Residual;

/// The norm of a residual stream. It is computed in one operation with the first projections that
/// read it ([`fast::norm_linear()`]), or by itself if another operation reads it first.
#[derive(Debug)]
pub struct Normed<'n> {
    residual: Residual,
    norm: By<'n>,
    /// The sum and its norm; empty until they are part of the graph.
    done: OnceCell<(Array, Array)>,
}

#[derive(Clone, Copy, Debug)]
enum By<'n> {
    Rms(&'n RmsNorm),
    /// A norm without a weight, with this epsilon.
    Bare(f32),
    Other(&'n Norm),
}

impl<'n> Normed<'n> {
    /// `norm(x)`, which is computed when it is read.
    pub fn new(x: impl Into<Residual>, norm: &'n Norm) -> Self {
        match norm {
            Norm::Rms(norm) => Self::rms(x, norm),
            Norm::Bare(eps) => Self::by(x.into(), By::Bare(*eps)),
            other => Self::by(x.into(), By::Other(other)),
        }
    }

    /// [`new`](Self::new) for an RMS norm.
    pub fn rms(x: impl Into<Residual>, norm: &'n RmsNorm) -> Self {
        Self::by(x.into(), By::Rms(norm))
    }

    fn by(residual: Residual, norm: By<'n>) -> Self {
        Self {
            residual,
            norm,
            done: OnceCell::new(),
        }
    }

    fn both(&self) -> Result<&(Array, Array)> {
        if let Some(both) = self.done.get() {
            return Ok(both);
        }
        let both = match self.norm {
            By::Rms(norm) => self.residual.clone().rms_normed(norm)?,
            By::Bare(eps) => {
                let sum = self.residual.clone().sum()?;
                let normed = fast::rms_norm(&sum, None, eps)?;
                (sum, normed)
            }
            By::Other(norm) => self.residual.clone().normed(norm)?,
        };
        Ok(self.done.get_or_init(|| both))
    }

    /// The norm, `[.., E]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn array(&self) -> Result<&Array> {
        Ok(&self.both()?.1)
    }

    /// The sum that is normed, `[.., E]`. Read it after the projections: it is computed with them.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn sum(&self) -> Result<&Array> {
        Ok(&self.both()?.0)
    }

    /// Computes the norm together with products. `None` if the norm is computed already, or cannot
    /// be computed in one operation with products.
    fn join(
        &self,
        products: impl FnOnce(&NormOf<'_>) -> Result<NormProducts>,
    ) -> Result<Option<Vec<Array>>> {
        if self.done.get().is_some() {
            return Ok(None);
        }
        let joined = match self.norm {
            By::Rms(norm) => match self.residual.norm_of(norm) {
                Some(of) => products(&of)?,
                None => return Ok(None),
            },
            // The sum is an operation of its own, because `add_norm` needs a weight.
            By::Bare(eps) => products(&NormOf {
                x: &self.residual.clone().sum()?,
                residual: None,
                inner: None,
                weight: None,
                eps,
            })?,
            By::Other(_) => return Ok(None),
        };
        self.done.get_or_init(|| (joined.sum, joined.normed));
        Ok(Some(joined.products))
    }
}

/// The input of projections: features `[.., E]`, or a norm that is computed with the first
/// projections.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Features.
    Array(&'a Array),
    /// A norm.
    Normed(&'a Normed<'a>),
}

impl<'a> From<&'a Array> for Input<'a> {
    fn from(x: &'a Array) -> Self {
        Self::Array(x)
    }
}

impl<'a> From<&'a Normed<'_>> for Input<'a> {
    fn from(x: &'a Normed<'_>) -> Self {
        Self::Normed(x)
    }
}

impl<'a> Input<'a> {
    /// The features.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn array(self) -> Result<&'a Array> {
        match self {
            Self::Array(x) => Ok(x),
            Self::Normed(x) => x.array(),
        }
    }

    /// The dtype of the features.
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::Array(x) => x.dtype(),
            Self::Normed(x) => x.residual.dtype(),
        }
    }

    /// The products with several matrices.
    pub(crate) fn products(self, matrices: &[Matrix<'_>]) -> Result<Vec<Array>> {
        if let Self::Normed(x) = self
            && let Some(products) = x.join(|of| fast::norm_linear(of, matrices))?
        {
            return Ok(products);
        }
        fast::linear_many(self.array()?, matrices)
    }

    /// `gate(a) * b` of the products with two matrices.
    pub(crate) fn gated(self, gate: Gate, [a, b]: [&Matrix<'_>; 2]) -> Result<Array> {
        if let Self::Normed(x) = self
            && let Some(mut products) = x.join(|of| fast::norm_gated_linear(gate, of, [a, b]))?
        {
            return Ok(products.remove(0));
        }
        fast::gated_linear(gate, self.array()?, a, b)
    }
}
