//! [`Decay`]: the decay parameters of a linear attention's state.

use std::ops::Range;

use mlx_core::{Array, DType, Result};

use crate::init::Initial;
use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::shard::Cut;

/// The parameters `A_log`, one number for each head, and `dt_bias`. `A_log` is never narrowed to 16
/// bits.
#[derive(Clone, Debug)]
pub(crate) struct Decay {
    a_log: Param,
    dt_bias: Param,
    /// `exp(a_log)` and `dt_bias`, F32.
    rate: Array,
    bias: Array,
    bound: Option<f32>,
}

impl Decay {
    /// A decay whose `A_log` has this shape in files, with this number of biases.
    pub(crate) fn empty(heads: &[i32], biases: i32) -> Result<Self> {
        let a_log = Param::starting(heads, Initial::LogUniform(16.0))?.never_narrowed();
        let dt_bias = Param::starting(&[biases], Initial::Constant(1.0))?;
        Ok(Self {
            rate: a_log.value().clone(),
            bias: dt_bias.value().clone(),
            a_log,
            dt_bias,
            bound: None,
        })
    }

    /// The decay whose logarithm is `bound * sigmoid(exp(A_log) * (a + dt_bias))` for this negative
    /// bound, if there is one (Kimi Delta Attention's safe gate).
    pub(crate) fn bounded(self, bound: Option<f32>) -> Self {
        Self { bound, ..self }
    }

    /// Leaves the numbers of these heads.
    pub(crate) fn keep(&mut self, heads: &Range<i32>) -> Result<()> {
        let shape = self.a_log.shape();
        let axis = shape.iter().position(|&n| n != 1).unwrap_or(0);
        let (all, biases) = (shape[axis], self.dt_bias.size() as i32);
        let cut = Cut::new(shape, axis, vec![heads.clone()])?;
        self.a_log.cut(cut)?;
        let width = biases / all;
        let own = heads.start * width..heads.end * width;
        let cut = Cut::new(self.dt_bias.shape(), 0, vec![own])?;
        self.dt_bias.cut(cut)
    }

    /// `exp(A_log)`, F32.
    pub(crate) fn rate(&self) -> &Array {
        &self.rate
    }

    /// `dt_bias`, F32.
    pub(crate) fn bias(&self) -> &Array {
        &self.bias
    }

    /// The negative number above which the logarithm of the decay stays.
    pub(crate) fn bound(&self) -> Option<f32> {
        self.bound
    }
}

/// The names of the parameters have capitals, so they are not field names.
impl Module for Decay {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("A_log", |path| self.a_log.visit(path, v))?;
        path.scoped("dt_bias", |path| self.dt_bias.visit(path, v))?;
        v.derived(&self.rate)?;
        v.derived(&self.bias)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        path.scoped("A_log", |path| self.a_log.visit_mut(path, v))?;
        path.scoped("dt_bias", |path| self.dt_bias.visit_mut(path, v))?;
        let rate = self.a_log.value().astype(DType::F32)?.exp()?;
        self.rate = rate.flatten()?;
        self.bias = self.dt_bias.value().astype(DType::F32)?;
        Ok(())
    }
}
