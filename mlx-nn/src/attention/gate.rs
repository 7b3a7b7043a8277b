//! A gate on the output of attention that is computed from the layer's input.

use mlx_core::{Array, DType, Result};

use crate::linear::Linear;

/// The output of attention is multiplied by a function of a projection of the layer's input, before
/// the output projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadGate {
    /// Whether each feature of a head has a gate of its own. If not, a head has one.
    pub by_feature: bool,
    /// The function of the projection.
    pub function: GateFunction,
}

/// The function of a [`HeadGate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateFunction {
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// `ln(1 + exp(x))`, computed in F32.
    Softplus,
}

impl HeadGate {
    /// The projection of the layer's input, without values.
    pub(crate) fn projection(self, hidden: i32, heads: i32, value_dim: i32) -> Result<Linear> {
        let width = if self.by_feature { value_dim } else { 1 };
        Linear::empty(hidden, heads * width, false)
    }

    /// The output `[B, L, H * D]` with the gate whose projection is `x`, `[B, L, H]` or
    /// `[B, L, H * D]`.
    pub(crate) fn apply(self, y: &Array, x: &Array) -> Result<Array> {
        let gate = match self.function {
            GateFunction::Sigmoid => x.sigmoid()?,
            GateFunction::Softplus => {
                let wide = x.astype(DType::F32)?;
                wide.logaddexp(0.0)?.astype(x.dtype())?
            }
        };
        if self.by_feature {
            return y.multiply(gate);
        }
        let ([b, l, width], [.., heads]) = (y.dims()?, gate.dims::<3>()?);
        let by_head = y.reshape(&[b, l, heads, width / heads])?;
        let opened = by_head.multiply(gate.expand_dims(-1)?)?;
        opened.reshape(&[b, l, width])
    }
}
