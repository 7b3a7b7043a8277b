//! Norms on queries and keys.

use std::ops::Range;

use mlx_core::{Array, Error, ErrorKind, Result};

use crate::Module;
use crate::norm::{LayerNorm, NormByHead, RmsNorm};
use crate::shard::Spread;

/// The norms on q and k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// Epsilon.
    pub eps: f32,
    /// A number that is added to the stored weight.
    pub offset: f32,
    /// The formula.
    pub kind: QkKind,
    /// The vectors that are normed, and when.
    pub place: QkPlace,
}

impl QkNorm {
    /// Each head goes through an RMS norm, before rope.
    pub const fn heads(eps: f32, offset: f32) -> Self {
        Self {
            eps,
            offset,
            kind: QkKind::Rms,
            place: QkPlace::Heads,
        }
    }
}

/// The formula of a norm on q and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkKind {
    /// An RMS norm.
    Rms,
    /// A layer norm with a bias. All heads share its weight.
    Layer,
    /// An RMS norm. Each head has a weight of its own.
    RmsByHead,
    /// A layer norm without a bias. Each head has a weight of its own.
    LayerByHead {
        /// The files have one tensor a head, `norms.0.weight`, and not one matrix.
        split: bool,
    },
}

/// The place of a norm on q and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkPlace {
    /// Each head, before rope.
    Heads,
    /// The whole projection, before rope.
    Projection,
    /// Each head, after rope.
    Rotated,
    /// Each head, after rope, without a weight; only in layers that have a rope.
    RotatedUnweighted,
    /// Each head, before rope, without a weight.
    HeadsUnweighted,
}

/// The norm on the heads of q or k.
#[derive(Clone, Debug, Module)]
pub(super) enum HeadNorm {
    Rms(RmsNorm),
    Layer(LayerNorm),
    ByHead(NormByHead),
}

impl HeadNorm {
    /// A norm without values.
    pub(super) fn empty(norm: &QkNorm, heads: i32, head_dim: i32) -> Result<Self> {
        let size = match norm.place {
            QkPlace::Projection => heads * head_dim,
            _ => head_dim,
        };
        Ok(match norm.kind {
            QkKind::Rms => Self::Rms(RmsNorm::with_offset(size, norm.eps, norm.offset)?),
            QkKind::Layer => {
                Self::Layer(LayerNorm::with_offset(size, norm.eps, true, norm.offset)?)
            }
            QkKind::RmsByHead => Self::ByHead(NormByHead::rms(heads, head_dim, norm.eps)?),
            QkKind::LayerByHead { split } => {
                Self::ByHead(NormByHead::empty(heads, head_dim, norm.eps, split)?)
            }
        })
    }

    /// Leaves the norms of some heads. `spread` tells where the other features are, for a norm over all of them.
    pub(super) fn keep(
        &mut self,
        heads: Range<i32>,
        head_dim: i32,
        spread: Option<Spread>,
    ) -> Result<()> {
        match (self, spread) {
            (Self::Rms(norm), Some(_)) => {
                norm.keep(heads.start * head_dim..heads.end * head_dim, spread)
            }
            (Self::ByHead(norm), None) => norm.keep(heads),
            // All heads share the weight.
            (Self::Rms(_) | Self::Layer(_), None) => Ok(()),
            (Self::Layer(_) | Self::ByHead(_), Some(_)) => {
                let message =
                    "a layer norm over the features of all heads cannot be divided among ranks";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }

    pub(super) fn rms(&self) -> Option<&RmsNorm> {
        match self {
            Self::Rms(norm) => Some(norm),
            Self::Layer(_) | Self::ByHead(_) => None,
        }
    }

    /// `[1, H, T, D]`, or a projection `[1, T, H * D]` if the norm sees all of it: the same shape.
    pub(super) fn forward(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Rms(norm) => norm.forward(x),
            Self::Layer(norm) => norm.rounded_once(x),
            Self::ByHead(norm) => norm.forward(x),
        }
    }
}
