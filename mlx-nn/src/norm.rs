//! Normalisation layers.

use mlx_core::{Array, DType, Result, fast};

use crate::init::Initial;
use crate::module::{Module, Param, Path, Visit, VisitMut};

mod by_head;

pub use by_head::LayerNormByHead;

/// `x / rms(x) * (weight + offset)` (Zhang and Sennrich, arXiv:1910.07467).
///
/// Gemma stores `weight - 1`, so its offset is 1.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Param,
    offset: f32,
    eps: f32,
    /// `weight + offset`, derived once, not for each token.
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

    /// `[.., size] -> [.., size]`. Each of `groups` parts of the features has its own mean square.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn by_group(&self, x: &Array, groups: i32) -> Result<Array> {
        if groups == 1 {
            return self.forward(x);
        }
        let grouped = x.reshape(&[-1, groups, x.dim(-1)? / groups])?;
        let normed = fast::rms_norm(&grouped, None, self.eps)?;
        normed.reshape(x.shape())?.multiply(&self.scale)
    }

    /// `residual + self(x)`, one operation.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn add_to(&self, residual: &Array, x: &Array) -> Result<Array> {
        fast::norm_add(x, &self.scale, residual, self.eps)
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
        self.scale = scale(&self.weight, self.offset)?;
        Ok(())
    }
}

/// `weight + offset`, added in F32.
fn scale(weight: &Param, offset: f32) -> Result<Array> {
    let weight = weight.value();
    if offset == 0.0 {
        return Ok(weight.clone());
    }
    let sum = weight.astype(DType::F32)?.add(offset)?;
    sum.astype(weight.dtype())
}

/// `(x - mean) / sqrt(variance + eps) * (weight + offset) + bias` (Ba et al., arXiv:1607.06450).
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Param,
    bias: Option<Param>,
    offset: f32,
    eps: f32,
    /// `weight + offset`, derived once, not for each token.
    scale: Array,
}

impl LayerNorm {
    /// A norm over the last axis of `size`, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn new(size: i32, eps: f32, bias: bool) -> Result<Self> {
        Self::with_offset(size, eps, bias, 0.0)
    }

    /// A norm whose checkpoint stores `weight - offset`.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn with_offset(size: i32, eps: f32, bias: bool, offset: f32) -> Result<Self> {
        let bias = if bias {
            Some(Param::empty(&[size])?)
        } else {
            None
        };
        let weight = Param::starting(&[size], Initial::Constant(1.0 - offset))?;
        let scale = weight.value().clone();
        Ok(Self {
            weight,
            bias,
            offset,
            eps,
            scale,
        })
    }

    /// `[.., size] -> [.., size]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let bias = self.bias.as_ref().map(Param::value);
        fast::layer_norm(x, Some(&self.scale), bias, self.eps)
    }
}

impl Module for LayerNorm {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("weight", |path| self.weight.visit(path, v))?;
        path.scoped("bias", |path| self.bias.visit(path, v))?;
        v.derived(&self.scale)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        path.scoped("weight", |path| self.weight.visit_mut(path, v))?;
        path.scoped("bias", |path| self.bias.visit_mut(path, v))?;
        self.scale = scale(&self.weight, self.offset)?;
        Ok(())
    }
}

/// The kind of norm that the layers of a model have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConfig {
    /// The formula.
    pub kind: NormKind,
    /// Epsilon.
    pub eps: f32,
}

/// The formula of a norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormKind {
    /// [`RmsNorm`], with the number that is added to the stored weight.
    Rms(f32),
    /// [`RmsNorm`] without a weight.
    Bare,
    /// [`LayerNorm`] without weight and bias.
    BareLayer,
    /// [`LayerNorm`].
    Layer {
        /// Whether there is a bias.
        bias: bool,
        /// A number that is added to the stored weight.
        offset: f32,
    },
}

impl NormKind {
    /// A [`LayerNorm`] that multiplies by its weight.
    pub const fn layer(bias: bool) -> Self {
        Self::Layer { bias, offset: 0.0 }
    }
}

impl NormConfig {
    /// An [`RmsNorm`] that multiplies by its weight.
    pub const fn rms(eps: f32) -> Self {
        Self {
            kind: NormKind::Rms(0.0),
            eps,
        }
    }
}

/// The norm that a [`NormConfig`] describes.
#[derive(Clone, Debug)]
pub enum Norm {
    /// Without a mean.
    Rms(RmsNorm),
    /// Without a mean and without a weight: its epsilon.
    Bare(f32),
    /// With a mean and without a weight: its epsilon.
    BareLayer(f32),
    /// With a mean.
    Layer(LayerNorm),
}

impl Norm {
    /// A norm over the last axis of `size`, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn new(size: i32, config: &NormConfig) -> Result<Self> {
        Ok(match config.kind {
            NormKind::Rms(offset) => Self::Rms(RmsNorm::with_offset(size, config.eps, offset)?),
            NormKind::Bare => Self::Bare(config.eps),
            NormKind::BareLayer => Self::BareLayer(config.eps),
            NormKind::Layer { bias, offset } => {
                Self::Layer(LayerNorm::with_offset(size, config.eps, bias, offset)?)
            }
        })
    }

    /// The dtype of its weight, if it has one.
    pub fn dtype(&self) -> Option<DType> {
        match self {
            Self::Rms(norm) => Some(norm.weight.value().dtype()),
            Self::Bare(_) | Self::BareLayer(_) => None,
            Self::Layer(norm) => Some(norm.weight.value().dtype()),
        }
    }

    /// `[.., size] -> [.., size]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Rms(norm) => norm.forward(x),
            Self::Bare(eps) => fast::rms_norm(x, None, *eps),
            Self::BareLayer(eps) => fast::layer_norm(x, None, None, *eps),
            Self::Layer(norm) => norm.forward(x),
        }
    }

    /// `residual + self(x)`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn add_to(&self, residual: &Array, x: &Array) -> Result<Array> {
        match self {
            Self::Rms(norm) => norm.add_to(residual, x),
            Self::Bare(_) | Self::BareLayer(_) | Self::Layer(_) => fast::add(&self.forward(x)?, residual),
        }
    }
}

impl Module for Norm {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        match self {
            Self::Rms(norm) => norm.visit(path, v),
            Self::Bare(_) | Self::BareLayer(_) => Ok(()),
            Self::Layer(norm) => norm.visit(path, v),
        }
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        match self {
            Self::Rms(norm) => norm.visit_mut(path, v),
            Self::Bare(_) | Self::BareLayer(_) => Ok(()),
            Self::Layer(norm) => norm.visit_mut(path, v),
        }
    }
}
