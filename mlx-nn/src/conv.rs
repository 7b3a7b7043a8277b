//! [`CausalConv`]: a convolution of single channels over each token and the tokens before it.

use std::ops::Range;

use mlx_core::ops::{concat, create::zeros};
use mlx_core::{Array, Result};

use crate::activation::Activation;
use crate::init::Initial;
use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::shard::Cut;
use crate::step::{Step, Taps};

/// A causal convolution of single channels. The inputs before a step are a part of the layer's state.
#[derive(Clone, Debug)]
pub struct CausalConv {
    /// `[channels, taps, 1]`, the layout of MLX.
    weight: Param,
    bias: Option<Param>,
    /// `[taps, channels]`, with zeros between the taps of a dilated convolution.
    taps: Array,
    dilation: i32,
    activation: Option<Activation>,
}

impl CausalConv {
    /// A convolution without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(
        channels: i32,
        taps: i32,
        bias: bool,
        activation: Option<Activation>,
    ) -> Result<Self> {
        let deviation = (taps as f32).powf(-0.5);
        let weight = Param::starting(&[channels, taps, 1], Initial::Normal(deviation))?;
        let bias = bias.then(|| Param::starting(&[channels], Initial::Constant(0.0)));
        Ok(Self {
            taps: weight.value().clone(),
            weight,
            bias: bias.transpose()?,
            dilation: 1,
            activation,
        })
    }

    /// The same convolution over every `dilation`-th token: the token itself, the one `dilation` before it, and so on.
    /// The layer's state has `(taps - 1) * dilation` inputs.
    #[must_use]
    pub fn dilated(self, dilation: i32) -> Self {
        Self { dilation, ..self }
    }

    /// Leaves the channels of these ranges.
    pub(crate) fn keep(&mut self, ranges: &[Range<i32>]) -> Result<()> {
        let cut = Cut::new(self.weight.shape(), 0, ranges.to_vec())?;
        self.weight.cut(cut.clone())?;
        match &mut self.bias {
            Some(bias) => bias.cut(cut),
            None => Ok(()),
        }
    }

    /// `x: [1, T, channels] -> [1, T, channels]`, reading and writing the window that is part `part`
    /// of layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(
        &self,
        x: &Array,
        layer: usize,
        part: usize,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        self.weight.get()?;
        let of = Taps {
            taps: &self.taps,
            bias: self.bias.as_ref().map(Param::get).transpose()?,
            activation: self.activation,
        };
        step.convolve(layer, part, x, &of)
    }
}

impl Module for CausalConv {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("weight", |path| self.weight.visit(path, v))?;
        path.scoped("bias", |path| self.bias.visit(path, v))?;
        v.derived(&self.taps)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        path.scoped("weight", |path| self.weight.visit_mut(path, v))?;
        path.scoped("bias", |path| self.bias.visit_mut(path, v))?;
        if self.weight.is_filled() {
            self.taps = spread(taps_first(&self.weight)?, self.dilation)?;
        }
        Ok(())
    }

    crate::known_type!();
}

/// `[channels, taps, 1] -> [taps, channels]`
fn taps_first(weight: &Param) -> Result<Array> {
    weight.value().squeeze(-1)?.t()?.contiguous()
}

/// Taps `[taps, channels]` with `dilation - 1` zeros between one and the next.
fn spread(taps: Array, dilation: i32) -> Result<Array> {
    let [n, channels] = taps.dims()?;
    if dilation == 1 || n == 1 {
        return Ok(taps);
    }
    let zeros = zeros(&[n, dilation - 1, channels], taps.dtype())?;
    let spread = concat(&[taps.expand_dims(1)?, zeros], 1)?;
    let spread = spread.reshape(&[n * dilation, channels])?;
    spread
        .slice_axis(0, 0, (n - 1) * dilation + 1)?
        .contiguous()
}

/// Causal convolutions of adjacent groups of channels. Each group is a part with a weight of its
/// own, and all are computed in one operation.
#[derive(Clone, Debug)]
pub struct JointConv {
    /// The names of the parts, and their weights `[channels, taps, 1]`.
    parts: Vec<(&'static str, Param)>,
    /// `[taps, channels of all parts]`
    taps: Array,
    activation: Activation,
}

impl JointConv {
    /// Convolutions of these names and numbers of channels, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(parts: &[(&'static str, i32)], taps: i32, activation: Activation) -> Result<Self> {
        let deviation = (taps as f32).powf(-0.5);
        let part = |&(name, channels): &(&'static str, i32)| {
            let weight = Param::starting(&[channels, taps, 1], Initial::Normal(deviation))?;
            Ok((name, weight))
        };
        let parts = parts.iter().map(part).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            taps: Array::scalar(0.0f32)?,
            parts,
            activation,
        })
    }

    /// Leaves these channels of the parts.
    pub(crate) fn keep(&mut self, ranges: &[Range<i32>]) -> Result<()> {
        for ((_, weight), range) in self.parts.iter_mut().zip(ranges) {
            let cut = Cut::new(weight.shape(), 0, vec![range.clone()])?;
            weight.cut(cut)?;
        }
        Ok(())
    }

    /// The same as [`CausalConv::forward`], for the channels of all parts.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(
        &self,
        x: &Array,
        layer: usize,
        part: usize,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        for (_, weight) in &self.parts {
            weight.get()?;
        }
        let of = Taps {
            taps: &self.taps,
            bias: None,
            activation: Some(self.activation),
        };
        step.convolve(layer, part, x, &of)
    }
}

impl Module for JointConv {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        for (name, weight) in &self.parts {
            path.scoped(name, |path| {
                path.scoped("weight", |path| weight.visit(path, v))
            })?;
        }
        v.derived(&self.taps)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        for (name, weight) in &mut self.parts {
            path.scoped(name, |path| {
                path.scoped("weight", |path| weight.visit_mut(path, v))
            })?;
        }
        if self.parts.iter().all(|(_, weight)| weight.is_filled()) {
            let taps = self.parts.iter().map(|(_, weight)| taps_first(weight));
            self.taps = concat(&taps.collect::<Result<Vec<_>>>()?, -1)?;
        }
        Ok(())
    }

    crate::known_type!();
}
