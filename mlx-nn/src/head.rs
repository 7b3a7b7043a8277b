//! [`Head`]: the output head of a language model, for the whole vocabulary or a slice of it at a time.

use mlx_core::{Array, Error, ErrorKind, Result, fast};

use crate::embedding::Embedding;
use crate::linear::Linear;
use crate::lora::{Layout, Lora};
use crate::module::{Module, Param, Path, VisitMut};
use crate::shard::RankJoin;
use crate::weight::Weight;

/// The matrix of a head.
#[derive(Clone, Copy, Debug)]
pub enum HeadMatrix<'a> {
    /// A layer of its own.
    Own(&'a Linear),
    /// The embedding's.
    Tied(&'a Embedding),
    /// None: the checkpoint has no head.
    Absent,
}

/// The output head of a model: hidden states to logits. It borrows parts of the model.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The matrix.
    pub matrix: HeadMatrix<'a>,
    /// Logits are multiplied by this (Granite, Cohere).
    pub scale: Option<f32>,
    /// Logits go through `cap * tanh(logits / cap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// Bool `[V]`: the tokens whose logits are minus infinity (Phi 3 small).
    pub excluded: Option<&'a Array>,
}

impl<'a> Head<'a> {
    /// The head of the model's output layer, or of its embedding if it has none.
    pub fn of(layer: Option<&'a Linear>, embedding: &'a Embedding, softcap: Option<f32>) -> Self {
        Self {
            matrix: layer.map_or(HeadMatrix::Tied(embedding), HeadMatrix::Own),
            scale: None,
            softcap,
            excluded: None,
        }
    }

    /// The head of a model without one, which computes no logits.
    pub const fn absent() -> Self {
        Self {
            matrix: HeadMatrix::Absent,
            scale: None,
            softcap: None,
            excluded: None,
        }
    }

    /// Whether the model has no head.
    pub const fn is_absent(&self) -> bool {
        matches!(self.matrix, HeadMatrix::Absent)
    }

    /// Checks that there is a head.
    ///
    /// # Errors
    /// The model has none.
    pub fn check(&self) -> Result<()> {
        match self.is_absent() {
            true => no_head(),
            false => Ok(()),
        }
    }

    /// The head whose logits of these tokens, Bool `[V]`, are minus infinity.
    #[must_use]
    pub fn without(self, excluded: Option<&'a Array>) -> Self {
        Self { excluded, ..self }
    }

    /// The head with a factor for the logits, which is applied before the soft cap.
    #[must_use]
    pub fn scaled(self, scale: Option<f32>) -> Self {
        Self { scale, ..self }
    }

    /// `[.., E] -> [.., V]`
    ///
    /// # Errors
    /// The shapes do not fit, or there is no head.
    pub fn forward(&self, hidden: &Array) -> Result<Array> {
        let logits = match self.matrix {
            HeadMatrix::Own(layer) => layer.forward(hidden)?,
            HeadMatrix::Tied(embedding) => embedding.as_linear(hidden)?,
            HeadMatrix::Absent => return no_head(),
        };
        finished(logits, self.scale, self.softcap, self.excluded)
    }

    /// The logits of the first `tokens` tokens of the vocabulary: `[.., E] -> [.., tokens]`
    ///
    /// # Errors
    /// The vocabulary has fewer tokens, the shapes do not fit, or there is no head.
    pub fn first(&self, tokens: i32, hidden: &Array) -> Result<Array> {
        let head = self.owned()?;
        match head.layer.joint {
            RankJoin::Alone => head.slice(0, tokens)?.forward(hidden),
            // A rank has some of the tokens only.
            _ => head.forward(hidden)?.slice_axis(-1, 0, tokens),
        }
    }

    /// A head that owns its layer. It shares the arrays, and the same parameters are trainable.
    pub(crate) fn owned(&self) -> Result<OwnedHead> {
        Ok(OwnedHead {
            layer: match self.matrix {
                HeadMatrix::Own(layer) => layer.clone(),
                // The adapter keeps the layout of an embedding's adapter.
                HeadMatrix::Tied(embedding) => Linear {
                    weight: embedding.weight().clone(),
                    bias: None,
                    rounds: false,
                    joint: embedding.joint,
                    lora: embedding.lora.clone(),
                    by_row: embedding.by_row.clone(),
                },
                HeadMatrix::Absent => return no_head(),
            },
            scale: self.scale,
            softcap: self.softcap,
            excluded: self.excluded.cloned(),
        })
    }
}

fn no_head<T>() -> Result<T> {
    let message = "the model has no output head (lm_head.weight), so it computes no logits";
    Err(Error::new(ErrorKind::Unsupported, message))
}

fn finished(
    logits: Array,
    scale: Option<f32>,
    softcap: Option<f32>,
    excluded: Option<&Array>,
) -> Result<Array> {
    let logits = match scale {
        Some(scale) => logits.multiply(scale)?,
        None => logits,
    };
    let logits = match softcap {
        Some(cap) => fast::soft_cap(&logits, cap)?,
        None => logits,
    };
    match excluded {
        Some(excluded) => excluded.select(f32::NEG_INFINITY, &logits),
        None => Ok(logits),
    }
}

/// A head, or a slice of one.
#[derive(Clone, Debug)]
pub(crate) struct OwnedHead {
    layer: Linear,
    scale: Option<f32>,
    softcap: Option<f32>,
    excluded: Option<Array>,
}

impl OwnedHead {
    /// The size of its vocabulary.
    pub(crate) fn vocab(&self) -> i32 {
        self.layer.weight().shape()[0]
    }

    /// `[.., E] -> [.., V]`
    pub(crate) fn forward(&self, hidden: &Array) -> Result<Array> {
        let logits = self.layer.forward(hidden)?;
        finished(logits, self.scale, self.softcap, self.excluded.as_ref())
    }

    /// The part for the tokens `from .. to`.
    pub(crate) fn slice(&self, from: i32, to: i32) -> Result<Self> {
        Ok(Self {
            layer: self.layer.slice(from, to)?,
            scale: self.scale,
            softcap: self.softcap,
            excluded: match &self.excluded {
                Some(excluded) => Some(excluded.slice_axis(0, from, to)?),
                None => None,
            },
        })
    }

    /// How the gradients of a parameter in the slices are combined. `None`: all slices share the
    /// parameter, and the gradients are added. An axis: the gradients are concatenated along it.
    pub(crate) fn axis_of(&self, name: &str) -> Option<i32> {
        let tied = self.layer.lora().map(|lora| lora.layout) == Some(Layout::Embedding);
        match name {
            "lora_a" if !tied => None,
            "lora_b" => (!tied).then_some(1),
            _ => Some(0),
        }
    }

    /// Names and values of the trainable parameters, in order.
    pub(crate) fn trainable(&self) -> Result<(Vec<String>, Vec<Array>)> {
        let all = crate::trainable::trainable(&self.layer)?;
        Ok(all.into_iter().unzip())
    }

    /// This head with other values for the trainable parameters, in the same order.
    pub(crate) fn with(&self, values: &[Array]) -> Result<Self> {
        struct Set<'a>(std::slice::Iter<'a, Array>);
        impl VisitMut for Set<'_> {
            fn param(&mut self, _path: &Path, param: &mut Param) -> Result<()> {
                if param.trainable
                    && let Some(value) = self.0.next()
                {
                    param.set(value.clone());
                }
                Ok(())
            }
        }
        let mut head = self.clone();
        let mut visitor = Set(values.iter());
        head.layer.visit_mut(&mut Path::default(), &mut visitor)?;
        Ok(head)
    }
}

fn slice(param: &Param, axis: i32, from: i32, to: i32) -> Result<Param> {
    let mut part = Param::fixed(param.value().slice_axis(axis, from, to)?);
    part.trainable = param.trainable;
    Ok(part)
}

impl Linear {
    /// The layer that computes the outputs `from .. to` of this one.
    fn slice(&self, from: i32, to: i32) -> Result<Self> {
        if self.joint != RankJoin::Alone {
            let message = "a slice of a layer whose outputs several ranks share";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let part = |param: &Param| slice(param, 0, from, to);
        let weight = match &self.weight {
            Weight::Dense(weight) => Weight::Dense(part(weight)?),
            Weight::Quantized {
                packed,
                scales,
                biases,
                factor,
                residues,
                scheme,
            } => Weight::Quantized {
                packed: part(packed)?,
                scales: part(scales)?,
                biases: biases.as_ref().map(part).transpose()?,
                factor: factor.as_deref().map(part).transpose()?.map(Box::new),
                residues: residues.as_deref().map(part).transpose()?.map(Box::new),
                scheme: *scheme,
            },
        };
        let lora = self.lora().map(|lora| -> Result<_> {
            let (a, b) = match lora.layout {
                Layout::Embedding => (part(&lora.lora_a)?, lora.lora_b.clone()),
                _ => (lora.lora_a.clone(), slice(&lora.lora_b, 1, from, to)?),
            };
            Ok(Box::new(Lora {
                lora_a: a,
                lora_b: b,
                m: lora.m.as_ref().map(part).transpose()?,
                ..lora.clone()
            }))
        });
        Ok(Self {
            weight,
            bias: self.bias.as_ref().map(part).transpose()?,
            rounds: self.rounds,
            joint: RankJoin::Alone,
            lora: lora.transpose()?,
            by_row: self.by_row.slice(from, to)?,
        })
    }
}
