//! Gates whose inputs are bounded.

use std::ops::Range;

use mlx_core::{Array, DType, Error, ErrorKind, Result};

use crate::activation::Activation;
use crate::rounding::{ROUNDED_BLOCK, eight_bits};
use crate::shard::Ranks;

/// The gate `a * (up + shift)`, where `|up| <= limit`. By default `a = gate * sigmoid(alpha * gate)`
/// with `gate <= limit` (gpt-oss, arXiv:2508.10925); with `bounds_result` the bound is that of `a`
/// instead of that of `gate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClampedGate {
    /// The factor in the sigmoid.
    pub alpha: f32,
    /// The upper bound of the gate, and of the absolute value of `up`.
    pub limit: f32,
    /// The number that is added to `up`.
    pub shift: f32,
    /// Whether the bound is one of the activation's result (Step 3.5), not of its input.
    pub bounds_result: bool,
    /// The function of the bounded gate in place of `gate * sigmoid(alpha * gate)`.
    pub activation: Option<Activation>,
    /// Whether the inputs of all projections are rounded to 8 bits, and the features inside are F32 before that (DeepSeek
    /// V4.1). The weights of experts then multiply the features inside.
    pub rounds: bool,
}

impl ClampedGate {
    /// The features that are divided over ranks together, where `unit` are without rounding.
    pub(crate) fn unit(self, unit: i32) -> i32 {
        match self.rounds && unit % ROUNDED_BLOCK != 0 {
            true => unit * ROUNDED_BLOCK,
            false => unit,
        }
    }

    /// Refuses a rank's share of features that are rounded together with those of another rank.
    pub(crate) fn check_share(self, share: &Range<i32>, ranks: Ranks) -> Result<()> {
        let is_whole = |at: i32| at % ROUNDED_BLOCK == 0;
        if !self.rounds || is_whole(share.start) && is_whole(share.end) {
            return Ok(());
        }
        let message = format!(
            "{} ranks cannot share features of which {ROUNDED_BLOCK} are rounded together: this rank would have {share:?}",
            ranks.size()
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// `x`, rounded if inputs are.
    pub(crate) fn input(self, x: &Array) -> Result<Array> {
        match self.rounds {
            true => eight_bits(x),
            false => Ok(x.clone()),
        }
    }

    /// The input of the last projection: `[..] -> [..]`. `weights` are those of experts, of the same rank, if they multiply
    /// the features inside.
    pub(crate) fn inside(self, gate: &Array, up: &Array, weights: Option<&Array>) -> Result<Array> {
        if !self.rounds {
            return self.gated(gate, up);
        }
        let mut inner = self.gated(&gate.astype(DType::F32)?, &up.astype(DType::F32)?)?;
        if let Some(weights) = weights {
            inner = inner.multiply(weights)?;
        }
        eight_bits(&inner.astype(up.dtype())?)
    }

    /// `[..] -> [..]`
    pub(crate) fn gated(self, gate: &Array, up: &Array) -> Result<Array> {
        let gate = match self.bounds_result {
            true => gate.clone(),
            false => gate.minimum(self.limit)?,
        };
        let mut up = up.maximum(-self.limit)?.minimum(self.limit)?;
        if self.shift != 0.0 {
            up = up.add(self.shift)?;
        }
        let mut opened = match self.activation {
            Some(activation) => activation.forward(&gate)?,
            None if self.alpha == 1.0 => gate.multiply(gate.sigmoid()?)?,
            None => gate.multiply(gate.multiply(self.alpha)?.sigmoid()?)?,
        };
        if self.bounds_result {
            opened = opened.minimum(self.limit)?;
        }
        opened.multiply(up)
    }
}
