//! [`Decay`]: the decay parameters of a linear attention's state.

use mlx_core::{Array, DType, Result};

use crate::init::Initial;
use crate::module::{Module, Param, Path, Visit, VisitMut};

/// The parameters `A_log`, one number for each head, and `dt_bias`. `A_log` is never narrowed to 16
/// bits.
#[derive(Clone, Debug)]
pub(crate) struct Decay {
    a_log: Param,
    dt_bias: Param,
    /// `exp(a_log)` and `dt_bias`, F32.
    rate: Array,
    bias: Array,
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
        })
    }

    /// `exp(A_log)`, F32.
    pub(crate) fn rate(&self) -> &Array {
        &self.rate
    }

    /// `dt_bias`, F32.
    pub(crate) fn bias(&self) -> &Array {
        &self.bias
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
