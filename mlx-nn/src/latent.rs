//! Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, §2.1): keys and values of all heads are projections of
//! one compressed vector for each position. Only that vector and a rotated part of the key are cached.
//!
//! A step with a cache attends in the absorbed form: `q · (K c) = (Kᵀ q) · c` and
//! `Σ w (V c) = V (Σ w c)`, where `c` is the compressed vector. The keys and values of heads are
//! then never computed. A step without a cache expands them.

use mlx_core::ops::{concat, create};
use mlx_core::{Array, DType, Error, ErrorKind, Result, fast};

use crate::attention::{Growth, HeadGate, merge_heads, split_heads};
use crate::experts::ExpertsLinear;
use crate::linear::Linear;
use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::norm::RmsNorm;
use crate::normed::{Input, Normed};
use crate::rope::{Rope, RopeConfig};
use crate::step::{Attend, Step};

mod indexer;
mod shard;

pub use indexer::IndexConfig;
use indexer::Indexer;
pub(crate) use indexer::{best, products};

/// Sizes and options of a [`LatentAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Query heads.
    pub heads: i32,
    /// Features of the compressed queries, if they are compressed.
    pub query_rank: Option<i32>,
    /// Features of the compressed keys and values.
    pub rank: i32,
    /// Features of a head's query and key that are not rotated.
    pub plain_dim: i32,
    /// Features of a query that are rotated, or 0; all heads share one rotated part of the key.
    pub rope_dim: i32,
    /// Features of a head's value.
    pub value_dim: i32,
    /// The factor of the scores.
    pub scale: f32,
    /// Epsilon of the norms of compressed vectors.
    pub eps: f32,
    /// Bias on the projections from and to the token's features, except for uncompressed queries.
    pub bias: bool,
    /// Compressed keys and values are multiplied by this after their norm (LongCat Flash, arXiv:2509.01322, §2.2).
    pub latent_scale: Option<f32>,
    /// A gate on the output, computed from the layer's input.
    pub gate: Option<HeadGate>,
    /// Queries are scaled by a factor that grows with their positions.
    pub growth: Option<Growth>,
    /// Whether the checkpoint has the projection from compressed vectors as two stacks of matrices (mlx-lm's `embed_q`
    /// and `unembed_out`), and not as one matrix.
    pub split: bool,
    /// Sinks: a learned score for each head, which takes part in the softmax and adds no value.
    pub sinks: bool,
    /// Queries see only the positions that an indexer chooses. The indexer's keys are a second state of the layer.
    pub index: Option<IndexConfig>,
}

impl LatentConfig {
    /// The features that are cached for each position.
    pub fn kept_dim(&self) -> i32 {
        self.rank + self.rope_dim
    }
}

/// Multi-head latent attention. Fields are named as in published checkpoints.
#[derive(Clone, Debug)]
pub struct LatentAttention {
    q_proj: Option<Linear>,
    q_a_proj: Option<Linear>,
    q_a_layernorm: Option<RmsNorm>,
    q_b_proj: Option<Linear>,
    kv_a_proj_with_mqa: Linear,
    kv_a_layernorm: RmsNorm,
    kv_b_proj: Option<Joint>,
    embed_q: Option<ExpertsLinear>,
    unembed_out: Option<ExpertsLinear>,
    o_proj: Linear,
    g_proj: Option<Linear>,
    sinks: Option<Param>,
    indexer: Option<Indexer>,
    rope: Option<Rope>,
    /// I32 `[H]`: the number of each head.
    numbers: Array,
    config: LatentConfig,
}

crate::module!(LatentAttention { q_proj, q_a_proj, q_a_layernorm, q_b_proj, kv_a_proj_with_mqa, kv_a_layernorm, kv_b_proj,
                                 embed_q, unembed_out, o_proj, g_proj, sinks, indexer } plain { rope, numbers, config });

impl LatentAttention {
    /// Attention without values. Without a rope, positions have no effect on the scores.
    ///
    /// # Errors
    /// No memory for a handle, or an indexer without compressed queries.
    pub fn empty(config: LatentConfig, rope: Option<&RopeConfig>) -> Result<Self> {
        let indexer = config.index.map(|index| {
            let Some(query_rank) = config.query_rank else {
                let message = "an indexer needs compressed queries";
                return Err(Error::new(ErrorKind::Unsupported, message));
            };
            let rope = rope.map(|rope| {
                let own = RopeConfig {
                    interleaved: index.interleaved,
                    ..rope.clone()
                };
                let dim = if index.rotates_end {
                    own.dims
                } else {
                    index.dim
                };
                Rope::new(&own, dim)
            });
            Indexer::empty(index, config.hidden, query_rank, rope.transpose()?)
        });
        let rope = rope.map(|rope| Rope::new(rope, config.rope_dim));
        let LatentConfig {
            hidden,
            heads,
            rank,
            plain_dim,
            rope_dim,
            value_dim,
            eps,
            bias,
            ..
        } = config;
        let queries = heads * (plain_dim + rope_dim);
        let only = |wanted: bool, linear: Result<Linear>| match wanted {
            true => linear.map(Some),
            false => Ok(None),
        };
        let stack = |inputs, outputs| match config.split {
            true => ExpertsLinear::empty(heads, inputs, outputs).map(Some),
            false => Ok(None),
        };
        let compressed = config.query_rank;
        let query_rank = compressed.unwrap_or(0);
        Ok(Self {
            q_proj: only(compressed.is_none(), Linear::empty(hidden, queries, false))?,
            q_a_proj: only(
                compressed.is_some(),
                Linear::empty(hidden, query_rank, bias),
            )?,
            q_a_layernorm: compressed
                .map(|rank| RmsNorm::empty(rank, eps))
                .transpose()?,
            q_b_proj: only(
                compressed.is_some(),
                Linear::empty(query_rank, queries, false),
            )?,
            kv_a_proj_with_mqa: Linear::empty(hidden, rank + rope_dim, bias)?,
            kv_a_layernorm: RmsNorm::empty(rank, eps)?,
            kv_b_proj: match config.split {
                true => None,
                false => Some(Joint::empty(heads, rank, plain_dim, value_dim)?),
            },
            embed_q: stack(plain_dim, rank)?,
            unembed_out: stack(rank, value_dim)?,
            o_proj: Linear::empty(heads * value_dim, hidden, bias)?,
            g_proj: match config.gate {
                Some(gate) => Some(gate.projection(hidden, heads, value_dim)?),
                None => None,
            },
            sinks: match config.sinks {
                true => Some(Param::empty(&[heads])?.never_narrowed()),
                false => None,
            },
            indexer: indexer.transpose()?,
            rope: rope.transpose()?,
            numbers: create::arange(0.0, f64::from(heads), 1.0, DType::I32)?,
            config,
        })
    }

    /// The same attention without an indexer of its own: queries see the positions that the last indexer before it
    /// chose.
    #[must_use]
    pub fn sharing_index(mut self) -> Self {
        self.indexer = None;
        self
    }

    /// `x: [1, T, E] -> [1, T, E]`, reading and writing layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward<'x>(
        &self,
        x: impl Into<Input<'x>>,
        layer: usize,
        step: &mut Step,
    ) -> Result<Array> {
        let x = x.into();
        let compressed = self.compressed_queries(x)?;
        let compressed = compressed.as_ref().map_or(x, Input::from);
        if let Some(indexer) = &self.indexer {
            let selection = indexer.select(x, compressed, layer + 1, step)?;
            step.set_selection(selection);
        }
        self.attend(x, compressed, layer, step)
    }

    /// Compressed queries, if the query projection reads them. `[1, T, E] -> [1, T, ..]`
    ///
    /// # Errors
    /// The shapes do not fit.
    fn compressed_queries(&self, x: Input<'_>) -> Result<Option<Normed<'_>>> {
        match (&self.q_a_proj, &self.q_a_layernorm) {
            (Some(linear), Some(norm)) => Ok(Some(Normed::rms(linear.forward(x)?, norm))),
            _ => Ok(None),
        }
    }

    fn attend(
        &self,
        x: Input<'_>,
        compressed: Input<'_>,
        layer: usize,
        step: &mut Step,
    ) -> Result<Array> {
        let c = &self.config;
        let linear = self.q_proj.as_ref().or(self.q_b_proj.as_ref());
        let q = linear.expect("queries are projected").forward(compressed)?;
        let q = split_heads(&q, c.plain_dim + c.rope_dim)?;
        let plain = q.slice_axis(-1, 0, c.plain_dim)?;
        let q_rope = self.last_rotated(&q, step)?;
        let both = self.kv_a_proj_with_mqa.forward(x)?;
        let latents = both.slice_axis(-1, 0, c.rank)?;
        let latents = self.kv_a_layernorm.forward(&latents)?;
        let latents = match c.latent_scale {
            Some(scale) => latents.multiply(scale)?,
            None => latents,
        };
        let k_rope = self.last_rotated(&both.expand_dims(1)?, step)?;
        let selection = match c.index {
            Some(_) => step.selection().cloned(),
            None => None,
        };
        let selection = selection.as_ref();
        let options = Attend {
            scale: c.scale,
            softcap: None,
            sinks: self.sinks.as_ref().map(Param::get).transpose()?,
            alibi: None,
        };
        if let Some(joint) = self.kv_b_proj.as_ref().filter(|_| !step.stores()) {
            let [b, l, _] = latents.dims()?;
            let heads = split_heads(&joint.linear.forward(&latents)?, c.plain_dim + c.value_dim)?;
            let k = heads.slice_axis(-1, 0, c.plain_dim)?;
            let v = heads.slice_axis(-1, c.plain_dim, c.plain_dim + c.value_dim)?;
            let shape = [b, c.heads, l, c.rope_dim];
            let k_rope = k_rope.map(|k_rope| k_rope.broadcast_to(&shape));
            let k = with_last(k, k_rope.transpose()?)?;
            let q = self.grown(with_last(plain, q_rope)?, step)?;
            let y = step.attend_selected(layer, &q, &k, &v, selection, &options)?;
            return self.output(x, merge_heads(&y)?);
        }
        let q = self.by_head(Half::Keys, &plain.swapaxes(1, 2)?)?;
        let q = self.grown(with_last(q.swapaxes(1, 2)?, q_rope)?, step)?;
        let kept = with_last(latents.expand_dims(1)?, k_rope)?;
        let y = step.attend_latents(layer, &q, &kept, c.rank, selection, &options)?;
        let y = self.by_head(Half::Values, &y.swapaxes(1, 2)?)?;
        let [b, l, heads, value_dim] = y.dims()?;
        self.output(x, y.reshape(&[b, l, heads * value_dim])?)
    }

    /// The gate of the layer's input `x`, if there is one, and the output projection.
    fn output(&self, x: Input<'_>, y: Array) -> Result<Array> {
        let y = match (self.config.gate, &self.g_proj) {
            (Some(gate), Some(linear)) => gate.apply(&y, &linear.forward(x)?)?,
            _ => y,
        };
        self.o_proj.forward(&y)
    }

    /// Multiplies each head by its own matrix: `[1, T, H, in] -> [1, T, H, out]`
    fn by_head(&self, half: Half, x: &Array) -> Result<Array> {
        let [b, l, heads, _] = x.dims()?;
        let numbers = self.numbers.broadcast_to(&[b, l, heads])?;
        let x = x.expand_dims(-2)?;
        let split = match half {
            Half::Keys => &self.embed_q,
            Half::Values => &self.unembed_out,
        };
        let y = match (split, &self.kv_b_proj) {
            (Some(stack), _) => stack.forward(&x, &numbers)?,
            (None, Some(joint)) => {
                let [keys, values] = &joint.halves;
                let matrices = match half {
                    Half::Keys => keys,
                    Half::Values => values,
                };
                fast::experts_linear(&x, &matrices.astype(x.dtype())?, &numbers)?
            }
            (None, None) => unreachable!("the projection has one of both forms"),
        };
        y.squeeze(-2)
    }

    /// The last features of `[1, H, T, D]` that the rope rotates, if there are some.
    fn last_rotated(&self, x: &Array, step: &Step) -> Result<Option<Array>> {
        let n = self.config.rope_dim;
        if n == 0 {
            return Ok(None);
        }
        let x = x.slice_axis(-1, -n, i32::MAX)?;
        match &self.rope {
            Some(rope) => rope.forward(&x, step).map(Some),
            None => Ok(Some(x)),
        }
    }

    /// Queries `[1, H, T, D]`, scaled by their positions.
    fn grown(&self, q: Array, step: &Step) -> Result<Array> {
        match self.config.growth {
            Some(growth) => {
                let factors = growth.factors(step.positions())?;
                q.multiply(factors.astype(q.dtype())?)
            }
            None => Ok(q),
        }
    }
}

/// The features `x` and, if there are some, `last`.
fn with_last(x: Array, last: Option<Array>) -> Result<Array> {
    match last {
        Some(last) => concat(&[x, last], -1),
        None => Ok(x),
    }
}

/// The part of a head's matrix.
#[derive(Clone, Copy)]
enum Half {
    Keys,
    Values,
}

/// The projection from compressed vectors to keys and values of all heads: the key and then
/// the value of each head.
#[derive(Clone, Debug)]
struct Joint {
    linear: Linear,
    /// `[H, rank, plain]` and `[H, value, rank]`: its matrices for the absorbed form, including adapters. They are
    /// derived once, not for each token.
    halves: [Array; 2],
    heads: i32,
    rank: i32,
    plain_dim: i32,
    value_dim: i32,
}

impl Joint {
    fn empty(heads: i32, rank: i32, plain_dim: i32, value_dim: i32) -> Result<Self> {
        let nothing = || Array::scalar(0.0f32);
        Ok(Self {
            linear: Linear::empty(rank, heads * (plain_dim + value_dim), false)?,
            halves: [nothing()?, nothing()?],
            heads,
            rank,
            plain_dim,
            value_dim,
        })
    }

    fn derive(&mut self) -> Result<()> {
        if !self.linear.is_filled() {
            return Ok(());
        }
        let (plain, whole) = (self.plain_dim, self.plain_dim + self.value_dim);
        let matrices = self.linear.whole()?;
        let matrices = matrices.reshape(&[self.heads, whole, self.rank])?;
        let keys = matrices.slice_axis(1, 0, plain)?.swapaxes(-1, -2)?;
        let values = matrices.slice_axis(1, plain, whole)?;
        self.halves = [keys.contiguous()?, values.contiguous()?];
        Ok(())
    }
}

impl Module for Joint {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        // The absorbed form has no adapters by row.
        self.linear.walk(path, v, None)?;
        self.halves.iter().try_for_each(|half| v.derived(half))
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        self.linear.visit_mut(path, v)?;
        self.derive()
    }

    crate::known_type!();
}
