//! Scaled dot-product attention with the options of all architectures.

use mlx_core::fast;
use mlx_core::{Array, DType, Result};

use crate::attention::Alibi;

mod paged;

pub(crate) use paged::{
    Paged, Seen, attend_to_pages, attend_to_tokens, keep_in_pages, store_in_pages,
};

/// Options of attention that an architecture sets.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// The factor of the scores.
    pub scale: f32,
    /// `cap * tanh(scores / cap)`, before the mask (Gemma 2, arXiv:2408.00118).
    pub softcap: Option<f32>,
    /// `[H]`: for each query head, a score that takes part in the softmax and adds no value.
    pub sinks: Option<&'a Array>,
    /// ALiBi: a bias of scores by the positions of keys. Only in layers that keep all positions.
    pub alibi: Option<&'a Alibi>,
}

/// The keys of a step, or its queries.
#[derive(Clone, Debug)]
pub enum Keys<'a> {
    /// Heads `[1, K, T, D]`.
    Heads(Array),
    /// The projection that becomes heads. If the back end has a kernel for it, the heads are written straight into the
    /// cache.
    Projection(fast::Projection<'a>),
}

impl Keys<'_> {
    /// Whether a transform traces the heads or what they are made from.
    pub(crate) fn is_traced(&self) -> bool {
        match self {
            Self::Heads(heads) => heads.is_traced(),
            Self::Projection(projection) => projection.x.is_traced(),
        }
    }

    /// The heads, `[1, K, T, D]`.
    pub(crate) fn heads(&self) -> Result<Array> {
        match self {
            Self::Heads(heads) => Ok(heads.clone()),
            Self::Projection(projection) => fast::heads(projection),
        }
    }

    /// `[1, K, T, D]`
    pub(crate) fn shape(&self) -> Result<[i32; 4]> {
        match self {
            Self::Heads(heads) => heads.dims(),
            Self::Projection(projection) => {
                let ([b, l, width], d) = (projection.x.dims()?, projection.head_dim);
                Ok([b, width / d.max(1), l, d])
            }
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::Heads(heads) => heads.dtype(),
            Self::Projection(projection) => projection.x.dtype(),
        }
    }
}

impl From<&Array> for Keys<'_> {
    fn from(heads: &Array) -> Self {
        Self::Heads(heads.clone())
    }
}
