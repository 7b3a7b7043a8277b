//! Normalisation layers.

use std::ops::Range;

use mlx_core::{Array, DType, Result, fast};

use crate::Module;
use crate::init::{Initial, drawn};
use crate::module::{Param, Path, Visit, VisitMut};
use crate::shard::{Cut, Spread};

mod batch;
mod by_head;
mod group;

pub use batch::BatchNorm;
pub use by_head::NormByHead;
pub use group::{GroupNorm, InstanceNorm};

/// `x / rms(x) * (weight + offset)` (Zhang and Sennrich, arXiv:1910.07467).
///
/// Gemma stores `weight - 1`, so its offset is 1.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Param,
    offset: f32,
    eps: f32,
    /// `weight + offset`, computed once and not for each token.
    scale: Array,
    /// Where the other features are, if this rank has some of them.
    spread: Option<Spread>,
}

impl RmsNorm {
    /// A norm over the last axis of `size`. Its weight is 1, and its epsilon 1e-5.
    ///
    /// ```
    /// use mlx_core::{Array, Result};
    /// use mlx_nn::RmsNorm;
    ///
    /// # fn main() -> Result<()> {
    /// let norm = RmsNorm::new(2)?.eps(1e-6);
    /// let y = norm.forward(&Array::from_slice(&[3.0f32, -3.0], &[1, 2])?)?;
    /// assert!((y.to_vec::<f32>()?[0] - 1.0).abs() < 1e-5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `size` is not positive, or no memory.
    pub fn new(size: i32) -> Result<Self> {
        drawn(Self::empty(size, 1e-5)?)
    }

    /// The norm with another epsilon.
    #[must_use]
    pub fn eps(self, eps: f32) -> Self {
        Self { eps, ..self }
    }

    /// A norm over the last axis of `size`, without values; a checkpoint sets them.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(size: i32, eps: f32) -> Result<Self> {
        Self::with_offset(size, eps, 0.0)
    }

    /// A norm whose checkpoint stores `weight - offset`, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn with_offset(size: i32, eps: f32, offset: f32) -> Result<Self> {
        let weight = Param::starting(&[size], Initial::Constant(1.0 - offset))?.called("weight");
        let scale = weight.value().clone();
        Ok(Self {
            weight,
            offset,
            eps,
            scale,
            spread: None,
        })
    }

    /// `[.., size] -> [.., size]`; the mean square is accumulated in f32.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        self.weight.get()?;
        match self.spread {
            Some(spread) => spread.rms_norm(x, &self.scale, self.eps),
            None => fast::rms_norm(x, Some(&self.scale), self.eps),
        }
    }

    /// Leaves the weights of these features. With `spread`, [`forward`](Self::forward) still divides by the root of the
    /// mean square of all features.
    pub(crate) fn keep(&mut self, range: Range<i32>, spread: Option<Spread>) -> Result<()> {
        self.spread = spread;
        let cut = Cut::new(self.weight.shape(), 0, vec![range])?;
        self.weight.cut(cut)
    }

    /// The number of features.
    pub(crate) fn size(&self) -> i32 {
        self.weight.shape()[0]
    }

    /// `[.., size] -> [.., size]`. Each of `groups` parts of the features has its own mean square.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn by_group(&self, x: &Array, groups: i32) -> Result<Array> {
        if groups == 1 {
            return self.forward(x);
        }
        self.weight.get()?;
        let grouped = x.reshape(&[-1, groups, x.dim(-1)? / groups])?;
        let normed = fast::rms_norm(&grouped, None, self.eps)?;
        normed.reshape(x.shape())?.multiply(&self.scale)
    }

    /// [`by_group`](Self::by_group) of `x * silu(gate)`, `[.., size] -> [.., size]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub(crate) fn gated(&self, x: &Array, gate: &Array, groups: i32) -> Result<Array> {
        self.weight.get()?;
        match self.spread {
            Some(_) => self.by_group(&fast::swiglu(gate, x)?, groups),
            None => fast::gated_norm(x, gate, &self.scale, groups, self.eps),
        }
    }

    /// `residual + self(x)`, in one operation.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn add_to(&self, residual: &Array, x: &Array) -> Result<Array> {
        self.weight.get()?;
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
        v.module(path, self)?;
        path.scoped("weight", |path| self.weight.visit_mut(path, v))?;
        self.scale = scale(&self.weight, self.offset)?;
        Ok(())
    }

    crate::known_type!();
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
    weight: Option<Param>,
    bias: Option<Param>,
    offset: f32,
    eps: f32,
    /// `weight + offset`, computed once and not for each token.
    scale: Array,
}

impl LayerNorm {
    /// A norm over the last axis of `size`. Its weight is 1, its bias 0, and its epsilon 1e-5.
    ///
    /// ```
    /// use mlx_core::{Array, Result};
    /// use mlx_nn::LayerNorm;
    ///
    /// # fn main() -> Result<()> {
    /// let norm = LayerNorm::new(2)?.eps(1e-6);
    /// let y = norm.forward(&Array::from_slice(&[5.0f32, 9.0], &[1, 2])?)?;
    /// assert!((y.to_vec::<f32>()?[1] - 1.0).abs() < 1e-5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `size` is not positive, or no memory.
    pub fn new(size: i32) -> Result<Self> {
        drawn(Self::empty(size, 1e-5, true)?)
    }

    /// The norm with another epsilon.
    #[must_use]
    pub fn eps(self, eps: f32) -> Self {
        Self { eps, ..self }
    }

    /// The norm without weight and bias.
    #[must_use]
    pub fn without_affine(self) -> Self {
        Self {
            weight: None,
            bias: None,
            ..self
        }
    }

    /// The norm without a bias.
    #[must_use]
    pub fn without_bias(self) -> Self {
        Self { bias: None, ..self }
    }

    /// A norm over the last axis of `size`, without values; a checkpoint sets them.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(size: i32, eps: f32, bias: bool) -> Result<Self> {
        Self::with_offset(size, eps, bias, 0.0)
    }

    /// A norm whose checkpoint stores `weight - offset`, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn with_offset(size: i32, eps: f32, bias: bool, offset: f32) -> Result<Self> {
        let bias = match bias {
            true => Some(Param::empty(&[size])?.called("bias")),
            false => None,
        };
        let weight = Param::starting(&[size], Initial::Constant(1.0 - offset))?.called("weight");
        let scale = weight.value().clone();
        Ok(Self {
            weight: Some(weight),
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
        let (weight, bias) = self.parts()?;
        fast::layer_norm(x, weight, bias, self.eps)
    }

    /// [`forward`](Self::forward) by [`fast::layer_norm_rounded_once`].
    ///
    /// # Errors
    /// The shapes do not fit.
    pub(crate) fn rounded_once(&self, x: &Array) -> Result<Array> {
        let (weight, bias) = self.parts()?;
        fast::layer_norm_rounded_once(x, weight, bias, self.eps)
    }

    fn parts(&self) -> Result<(Option<&Array>, Option<&Array>)> {
        let weight = match &self.weight {
            Some(weight) => weight.get().map(|_| Some(&self.scale))?,
            None => None,
        };
        Ok((weight, self.bias.as_ref().map(Param::get).transpose()?))
    }
}

impl Module for LayerNorm {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("weight", |path| self.weight.visit(path, v))?;
        path.scoped("bias", |path| self.bias.visit(path, v))?;
        v.derived(&self.scale)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        path.scoped("weight", |path| self.weight.visit_mut(path, v))?;
        path.scoped("bias", |path| self.bias.visit_mut(path, v))?;
        if let Some(weight) = &self.weight {
            self.scale = scale(weight, self.offset)?;
        }
        Ok(())
    }

    crate::known_type!();
}

/// `weight * x + bias`; a weight or a bias that does not exist is left out.
fn scaled(x: Array, weight: &Option<Param>, bias: &Option<Param>) -> Result<Array> {
    let x = match weight {
        Some(weight) => weight.value().multiply(&x)?,
        None => x,
    };
    match bias {
        Some(bias) => x.add(bias.value()),
        None => Ok(x),
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
    /// No norm: the features do not change.
    Absent,
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
#[derive(Clone, Debug, Module)]
pub enum Norm {
    /// A norm without a mean.
    Rms(RmsNorm),
    /// A norm without a mean and without a weight, with this epsilon.
    Bare(f32),
    /// A norm with a mean and without a weight, with this epsilon.
    BareLayer(f32),
    /// No norm: the features do not change.
    Absent(()),
    /// A norm with a mean.
    Layer(LayerNorm),
}

impl Norm {
    /// A norm over the last axis of `size`, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(size: i32, config: &NormConfig) -> Result<Self> {
        Ok(match config.kind {
            NormKind::Rms(offset) => Self::Rms(RmsNorm::with_offset(size, config.eps, offset)?),
            NormKind::Bare => Self::Bare(config.eps),
            NormKind::BareLayer => Self::BareLayer(config.eps),
            NormKind::Absent => Self::Absent(()),
            NormKind::Layer { bias, offset } => {
                Self::Layer(LayerNorm::with_offset(size, config.eps, bias, offset)?)
            }
        })
    }

    /// The dtype of the norm's weight, if there is a weight.
    pub fn dtype(&self) -> Option<DType> {
        match self {
            Self::Rms(norm) => Some(norm.weight.value().dtype()),
            Self::Bare(_) | Self::BareLayer(_) | Self::Absent(()) => None,
            Self::Layer(norm) => norm.weight.as_ref().map(|weight| weight.value().dtype()),
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
            Self::BareLayer(eps) => fast::layer_norm_rounded_once(x, None, None, *eps),
            Self::Absent(()) => Ok(x.clone()),
            Self::Layer(norm) => norm.rounded_once(x),
        }
    }

    /// `residual + self(x)`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn add_to(&self, residual: &Array, x: &Array) -> Result<Array> {
        match self {
            Self::Rms(norm) => norm.add_to(residual, x),
            Self::Bare(_) | Self::BareLayer(_) | Self::Absent(()) | Self::Layer(_) => {
                fast::add(&self.forward(x)?, residual)
            }
        }
    }
}
