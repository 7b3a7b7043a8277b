//! Compressed blocks that one layer keeps and the layers after it see (DeepSeek V4.1).

use mlx_core::ops::concat;
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use super::{CompressedConfig, end_turned, scores, with_end};
use crate::attention::split_heads;
use crate::choice::best;
use crate::linear::Linear;
use crate::module::{Module, Path, Visit, VisitMut};
use crate::norm::RmsNorm;
use crate::normed::Input;
use crate::rope::Rope;
use crate::rounding::{four_bits, four_bits_finely};
use crate::step::Step;
use crate::step::blocks::{self, Blocks, nothing_like};

/// The part of a layer in sharing compressed blocks. A layer that neither keeps nor chooses sees the last choice among the
/// blocks that were kept last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SourcedBlocks {
    /// Positions of a block, at least 1. Only whole blocks are seen.
    pub size: i32,
    /// Whether the layer compresses and keeps blocks, for itself and those after it.
    pub keeps: bool,
    /// The layer's own choice of blocks.
    pub index: Option<SourcedIndex>,
}

/// Sizes of an indexer of shared blocks. It has keys of blocks if its layer keeps them, and else reads the last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcedIndex {
    /// Query heads.
    pub heads: i32,
    /// Features of a head, and of the key of a block.
    pub dim: i32,
    /// The number of blocks that a query sees.
    pub top: i32,
    /// Whether it makes or reads candidates.
    pub candidates: Candidates,
}

/// Groups of neighbouring blocks among which the indexers of later layers choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// All blocks are candidates.
    All,
    /// The layer makes candidates for those after it, and chooses among all blocks.
    Makes {
        /// Groups that stay: those with the best block, and always the last that has a seen block.
        groups: i32,
        /// Blocks of a group.
        size: i32,
    },
    /// The layer chooses among the candidates.
    Reads,
}

/// The compressor of a layer that keeps blocks, and its indexer.
#[derive(Clone, Debug)]
pub(super) struct Sourced {
    compressor: Option<Pooled>,
    indexer: Option<Chooser>,
    rope: Rope,
}

crate::module!(Sourced { compressor, indexer } plain { rope });

/// A block's vector is a sum of projections of its tokens, weighted for each feature by a softmax of gates over the tokens,
/// and normed. Blocks of one token have no gates.
#[derive(Clone, Debug)]
struct Pooled {
    kv_proj: Linear,
    gate_proj: Option<Linear>,
    kv_norm: RmsNorm,
    dim: i32,
    size: i32,
}

crate::module!(Pooled { kv_proj, gate_proj, kv_norm } plain { dim, size });

/// A projection whose rows are blocks and not tokens, so that it has no adapters by row.
#[derive(Clone, Debug)]
struct OfBlocks(Linear);

impl Module for OfBlocks {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        self.0.walk(path, v, None)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        self.0.visit_mut(path, v)
    }

    crate::known_type!();
}

/// The queries of an indexer, and its keys if its layer keeps blocks.
#[derive(Clone, Debug)]
struct Chooser {
    q_b_proj: Linear,
    weights_proj: Linear,
    k_proj: Option<OfBlocks>,
    k_norm: Option<RmsNorm>,
    config: SourcedIndex,
}

crate::module!(Chooser { q_b_proj, weights_proj, k_proj, k_norm } plain { config });

impl Sourced {
    pub(super) fn empty(
        blocks: SourcedBlocks,
        sizes: &CompressedConfig,
        rope: &Rope,
    ) -> Result<Self> {
        let (size, dim, eps) = (blocks.size, sizes.head_dim, sizes.eps);
        let fault = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        if size < 1 || sizes.blocks.is_some() {
            return fault(format!("shared blocks of {size} positions"));
        }
        if let Some(index) = blocks.index.filter(|index| index.dim < rope.dims()) {
            return fault(format!(
                "a rope of {} features in an indexer's heads of {}",
                rope.dims(),
                index.dim
            ));
        }
        let (hidden, keeps) = (sizes.hidden, blocks.keeps);
        let compressor = keeps.then(|| -> Result<Pooled> {
            let gate = (size > 1).then(|| Linear::empty(hidden, dim, false));
            Ok(Pooled {
                kv_proj: Linear::empty(hidden, dim, false)?,
                gate_proj: gate.transpose()?,
                kv_norm: RmsNorm::empty(dim, eps)?,
                dim,
                size,
            })
        });
        let indexer = blocks.index.map(|index| -> Result<Chooser> {
            let k_proj = keeps.then(|| Linear::empty(dim, index.dim, false).map(OfBlocks));
            let k_norm = keeps.then(|| RmsNorm::empty(index.dim, eps));
            Ok(Chooser {
                q_b_proj: Linear::empty(sizes.query_rank, index.heads * index.dim, false)?,
                weights_proj: Linear::empty(hidden, index.heads, false)?,
                k_proj: k_proj.transpose()?,
                k_norm: k_norm.transpose()?,
                config: index,
            })
        });
        Ok(Self {
            compressor: compressor.transpose()?,
            indexer: indexer.transpose()?,
            rope: rope.clone(),
        })
    }

    /// The vectors of all whole blocks, and which of them queries see; `None` if there is none. The states from `state` on
    /// keep vectors, and state `inputs` the inputs of blocks.
    pub(super) fn forward(
        &self,
        x: Input<'_>,
        latents: Input<'_>,
        (state, inputs): (usize, usize),
        step: &mut Step<'_>,
    ) -> Result<Option<(Array, Array)>> {
        if let Some(compressor) = &self.compressor {
            let completed = compressor.completed(x, inputs, step)?;
            let pooled = match &completed {
                Some(blocks) => Some(compressor.vectors(blocks)?),
                None => None,
            };
            let x = x.array()?;
            let turned = |vectors: &Array| match &completed {
                Some(blocks) => self.turned(vectors, blocks, compressor.size),
                None => Ok(vectors.clone()),
            };
            let vectors = match &pooled {
                Some(pooled) => Some(four_bits_finely(&turned(pooled)?)?.astype(x.dtype())?),
                None => None,
            };
            let nothing = nothing_like(x, compressor.dim)?;
            let size = compressor.size as usize;
            let kept = blocks::keep(step, state, vectors.as_ref(), &nothing, size)?;
            step.shared_blocks = blocks::SharedBlocks {
                vectors: kept,
                ..Default::default()
            };
            if let Some(indexer) = &self.indexer {
                let keys = match &pooled {
                    Some(pooled) => Some(four_bits(&turned(&indexer.keys(pooled)?)?)?),
                    None => None,
                };
                let keys = keys.map(|keys| keys.astype(DType::F32)).transpose()?;
                let nothing = nothing_like(x, indexer.config.dim)?.astype(DType::F32)?;
                let kept = blocks::keep(step, state + 1, keys.as_ref(), &nothing, size)?;
                step.shared_blocks.keys = kept.map(|(keys, _)| keys);
            }
        }
        let Some((vectors, seen)) = step.shared_blocks.vectors.clone() else {
            return Ok(None);
        };
        if let Some(indexer) = &self.indexer {
            let chosen = indexer.chosen(x, latents, &seen, &self.rope, step)?;
            step.shared_blocks.chosen = Some(chosen);
        }
        let chosen = step.shared_blocks.chosen.clone().unwrap_or(seen);
        Ok(Some((vectors, chosen)))
    }

    /// Vectors `[C, D]` whose ends are turned by the first positions of their blocks.
    fn turned(&self, vectors: &Array, blocks: &Blocks, size: i32) -> Result<Array> {
        let [count, dim] = vectors.dims()?;
        let firsts = blocks.numbers.multiply(size)?.expand_dims(0)?;
        let vectors = vectors.reshape(&[1, 1, count, dim])?;
        let turned = with_end(&vectors, self.rope.dims(), |end| self.rope.at(end, &firsts))?;
        turned.reshape(&[count, dim])
    }
}

impl Pooled {
    /// The inputs of the blocks that the step completes. State `last` keeps those of blocks that are not complete.
    fn completed(&self, x: Input<'_>, last: usize, step: &mut Step<'_>) -> Result<Option<Blocks>> {
        match &self.gate_proj {
            None => Ok(Some(blocks::singles(step, &self.kv_proj.forward(x)?)?)),
            Some(gate) => {
                let inputs = concat(&Linear::forward_all([&self.kv_proj, gate], x)?, -1)?;
                let size = self.size as usize;
                blocks::completed(step, last, &inputs, (size, size))
            }
        }
    }

    /// `[C, D]`, not turned.
    fn vectors(&self, blocks: &Blocks) -> Result<Array> {
        let inputs = &blocks.inputs;
        if self.gate_proj.is_none() {
            return self.kv_norm.forward(&inputs.squeeze(1)?);
        }
        let wide = inputs.astype(DType::F32)?;
        let values = wide.slice_axis(2, 0, self.dim)?;
        let gates = wide.slice_axis(2, self.dim, 2 * self.dim)?;
        let sums = values.multiply(gates.softmax(1)?)?.sum(1, false)?;
        self.kv_norm.forward(&sums.astype(inputs.dtype())?)
    }
}

impl Chooser {
    /// The keys of blocks from their vectors, which are not turned: `[C, D] -> [C, dim]`.
    fn keys(&self, pooled: &Array) -> Result<Array> {
        match (&self.k_proj, &self.k_norm) {
            (Some(proj), Some(norm)) => norm.forward(&proj.0.forward(pooled)?),
            _ => unreachable!("an indexer of a layer that keeps blocks has keys"),
        }
    }

    /// The blocks with the best scores among the candidates that queries may see, both Bool `[1, T, P]`.
    fn chosen(
        &self,
        x: Input<'_>,
        latents: Input<'_>,
        seen: &Array,
        rope: &Rope,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let SourcedIndex {
            dim,
            top,
            candidates,
            ..
        } = self.config;
        let n = seen.dim(-1)?;
        let groups = match candidates {
            Candidates::Makes { groups, size } => Some((groups, size)),
            Candidates::All | Candidates::Reads => None,
        };
        let groups = groups.filter(|(groups, size)| n > groups * size);
        if n <= top && groups.is_none() {
            return Ok(seen.clone());
        }
        let Some(keys) = step.shared_blocks.keys.clone() else {
            let message = "no layer before has keys of blocks";
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        let q = split_heads(&self.q_b_proj.forward(latents)?, dim)?;
        let q = four_bits(&end_turned(rope, &q, rope.dims(), step)?)?;
        let scores = scores(&q, &keys, &self.weights_proj.forward(x)?, step)?;
        let scores = scores.stop_gradient()?;
        if let Some((groups, size)) = groups {
            let found = candidate_blocks(&scores, seen, (groups, size))?;
            step.shared_blocks.candidates = Some(found);
        }
        if n <= top {
            return Ok(seen.clone());
        }
        match (&step.shared_blocks.candidates, candidates) {
            (Some(candidates), Candidates::Reads) => {
                best(&scores, &seen.logical_and(candidates)?, top)
            }
            _ => best(&scores, seen, top),
        }
    }
}

/// The blocks in the `groups` of `size` blocks with the best scores, and in the last group that has a seen block, all
/// `[1, T, P]`.
fn candidate_blocks(scores: &Array, seen: &Array, (groups, size): (i32, i32)) -> Result<Array> {
    let [_, tokens, n] = scores.dims()?;
    let scores = seen.select(scores, f32::NEG_INFINITY)?;
    let count = (n + size - 1) / size;
    let rest = Array::scalar(f32::NEG_INFINITY)?.broadcast_to(&[1, tokens, count * size - n])?;
    let scores = concat(&[scores, rest], -1)?.reshape(&[1, tokens, count, size])?;
    let scores = scores.max(-1, false)?;
    let is_seen = scores.greater(f32::NEG_INFINITY)?;
    // Seen groups are the first ones, so the last of them is that before which all others are.
    let before = is_seen.astype(DType::I32)?.sum(-1, true)?.subtract(1)?;
    let numbers = mlx_core::ops::create::arange(0.0, f64::from(count), 1.0, DType::I32)?;
    let pinned = numbers.equal(&before)?.select(f32::INFINITY, &scores)?;
    let kept = best(&pinned, &is_seen, groups)?.expand_dims(-1)?;
    let each = kept.broadcast_to(&[1, tokens, count, size])?;
    each.reshape(&[1, tokens, count * size])?
        .slice_axis(-1, 0, n)
}
