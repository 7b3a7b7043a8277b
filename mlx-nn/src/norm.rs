//! Normalisation layers.

use mlx_core::{Array, DType, Result, fast};

use crate::init::Initial;
use crate::module::{Module, Param, Path, Visit, VisitMut};

/// `x / rms(x) * (weight + offset)` (Zhang and Sennrich, arXiv:1910.07467).
///
/// Gemma stores `weight - 1`, so its offset is 1.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Param,
    offset: f32,
    eps: f32,
    /// `weight + offset`, derived once and not once a token.
    scale: Array,
}

impl RmsNorm {
    /// A norm over the last axis of `size`, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn new(size: i32, eps: f32) -> Result<Self> {
        Self::with_offset(size, eps, 0.0)
    }

    /// A norm whose checkpoint stores `weight - offset`.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn with_offset(size: i32, eps: f32, offset: f32) -> Result<Self> {
        let weight = Param::starting(&[size], Initial::Constant(1.0 - offset))?;
        let scale = weight.value().clone();
        Ok(Self {
            weight,
            offset,
            eps,
            scale,
        })
    }

    /// `[.., size] -> [.., size]`; the mean square is accumulated in f32.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        fast::rms_norm(x, Some(&self.scale), self.eps)
    }

    /// `residual + self(x)`, one operation.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn add_to(&self, residual: &Array, x: &Array) -> Result<Array> {
        fast::norm_add(x, &self.scale, residual, self.eps)
    }

    /// `sum = residual + x`, or `residual + inner(x)`, and `self(sum)`: both, in one operation.
    /// `inner` has the same epsilon.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn after_add(
        &self,
        residual: &Array,
        x: &Array,
        inner: Option<&Self>,
    ) -> Result<(Array, Array)> {
        let inner = inner.map(|inner| &inner.scale);
        fast::add_norm(x, residual, inner, &self.scale, self.eps)
    }

    /// Weight and epsilon for [`fast::rms_norm`].
    pub(crate) fn parts(&self) -> (&Array, f32) {
        (&self.scale, self.eps)
    }
}

impl Module for RmsNorm {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("weight", |path| self.weight.visit(path, v))?;
        v.derived(&self.scale)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        path.scoped("weight", |path| self.weight.visit_mut(path, v))?;
        let weight = self.weight.value();
        self.scale = if self.offset == 0.0 {
            weight.clone()
        } else {
            weight
                .astype(DType::F32)?
                .add(self.offset)?
                .astype(weight.dtype())?
        };
        Ok(())
    }
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` (Ba et al., arXiv:1607.06450).
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Param,
    bias: Option<Param>,
    eps: f32,
}

crate::module!(LayerNorm { weight, bias } plain { eps });

impl LayerNorm {
    /// A norm over the last axis of `size`, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn new(size: i32, eps: f32, bias: bool) -> Result<Self> {
        let bias = if bias {
            Some(Param::empty(&[size])?)
        } else {
            None
        };
        Ok(Self {
            weight: Param::starting(&[size], Initial::Constant(1.0))?,
            bias,
            eps,
        })
    }

    /// `[.., size] -> [.., size]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        fast::layer_norm(
            x,
            Some(self.weight.value()),
            self.bias.as_ref().map(Param::value),
            self.eps,
        )
    }
}
