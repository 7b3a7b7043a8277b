//! Norms on queries and keys.

use mlx_core::{Array, Result};

use crate::Module;
use crate::norm::{LayerNorm, LayerNormByHead, RmsNorm};

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
    ByHead(LayerNormByHead),
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
            QkKind::LayerByHead { split } => {
                Self::ByHead(LayerNormByHead::empty(heads, head_dim, norm.eps, split)?)
            }
        })
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
            Self::Layer(norm) => norm.forward(x),
            Self::ByHead(norm) => norm.forward(x),
        }
    }
}
