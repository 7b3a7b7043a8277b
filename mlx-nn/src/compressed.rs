//! Attention over the last positions and over compressed blocks of all positions (DeepSeek V4): one vector of a position
//! or a block is the key of all heads and their value.

use mlx_core::ops::{concat, create};
use mlx_core::{Array, DType, Error, ErrorKind, Result, fast};

use crate::attend::Attend;
use crate::attention::split_heads;
use crate::cache::LayerKind;
use crate::choice::{best, products};
use crate::experts::ExpertsLinear;
use crate::linear::Linear;
use crate::module::Param;
use crate::norm::RmsNorm;
use crate::normed::{Input, Normed};
use crate::rope::{Rope, RopeConfig};
use crate::rounding::{ROUNDED_BLOCK, eight_bits};
use crate::shard::{Cut, Heads, Ranks, Shard};
use crate::step::{Step, blocks};

mod compressor;
mod sourced;

use compressor::Compressor;
use sourced::Sourced;
pub use sourced::{Candidates, SourcedBlocks, SourcedIndex};

/// Sizes and options of a [`CompressedAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompressedConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Query heads.
    pub heads: i32,
    /// Features of a head, and of the vector of a position.
    pub head_dim: i32,
    /// Features of the compressed queries.
    pub query_rank: i32,
    /// Groups of heads that share a projection of their outputs.
    pub groups: i32,
    /// Features to which the outputs of a group are projected.
    pub group_rank: i32,
    /// The last positions that a query sees, with its own; at least 2.
    pub window: i32,
    /// Epsilon of all norms.
    pub eps: f32,
    /// Blocks of positions that queries also see.
    pub blocks: Option<BlocksConfig>,
    /// Blocks that some layers compress and the layers after them see. Not together with `blocks`.
    pub sourced: Option<SourcedBlocks>,
    /// Inputs of projections, queries and kept vectors are rounded to few bits, and queries have no norm by head
    /// (DeepSeek V4.1).
    pub rounds: bool,
}

/// How blocks of positions are compressed, and which of them queries see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlocksConfig {
    /// Positions of a block, at least 2. Only whole blocks are seen.
    pub size: i32,
    /// The indexer that chooses blocks. Its blocks, and those of the attention, also depend on the block before. `None`:
    /// all blocks are seen, and each depends on its own positions only.
    pub index: Option<BlocksIndex>,
}

/// Sizes of the indexer of compressed blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlocksIndex {
    /// Query heads.
    pub heads: i32,
    /// Features of a head, and of the key of a block.
    pub dim: i32,
    /// The number of blocks that a query sees.
    pub top: i32,
}

impl BlocksConfig {
    /// The positions on which a block depends.
    fn reach(&self) -> i32 {
        match self.index {
            Some(_) => 2 * self.size,
            None => self.size,
        }
    }
}

impl CompressedConfig {
    /// The states of a layer: the vectors of blocks and the indexer's keys of blocks, each at the last position of its
    /// block; the last positions; and the inputs of blocks that are not complete.
    pub fn states(&self) -> Vec<LayerKind> {
        let last = |window: i32, width: i32| LayerKind::LatentWindow {
            window: window as usize,
            width,
        };
        let near = last(self.window, self.head_dim);
        if let Some(blocks) = self.blocks {
            let inputs = |dim: i32| last(blocks.reach(), 2 * dim * blocks.reach() / blocks.size);
            let own = inputs(self.head_dim);
            return match blocks.index {
                None => vec![LayerKind::Latent, near, own],
                Some(index) => {
                    let (vectors, keys) = (LayerKind::Latent, LayerKind::Latent);
                    vec![vectors, keys, near, own, inputs(index.dim)]
                }
            };
        }
        let Some(blocks) = self.sourced.filter(|blocks| blocks.keeps) else {
            return vec![near];
        };
        let index = blocks.index.map(|_| LayerKind::Latent);
        let inputs = (blocks.size > 1).then(|| last(blocks.size, 2 * self.head_dim));
        let states = [Some(LayerKind::Latent), index, Some(near), inputs];
        states.into_iter().flatten().collect()
    }

    /// The place of the last positions among the [states](Self::states), which those of inputs follow.
    fn near(&self) -> usize {
        let states = self.states();
        let vectors = states
            .iter()
            .take_while(|kind| matches!(kind, LayerKind::Latent));
        vectors.count()
    }
}

/// Attention over the last positions and over compressed blocks. Fields are named as transformers names them.
#[derive(Clone, Debug)]
pub struct CompressedAttention {
    q_a_proj: Linear,
    q_a_norm: RmsNorm,
    q_b_proj: Linear,
    kv_proj: Linear,
    kv_norm: RmsNorm,
    o_a_proj: ExpertsLinear,
    o_b_proj: Linear,
    sinks: Param,
    compressor: Option<BlocksOf>,
    sourced: Option<Sourced>,
    rope: Rope,
    back: Rope,
    rope_dim: i32,
    config: CompressedConfig,
}

crate::module!(CompressedAttention { q_a_proj, q_a_norm, q_b_proj, kv_proj, kv_norm, o_a_proj, o_b_proj, sinks, compressor }
               flat { sourced } plain { rope, back, rope_dim, config });

/// The compressor of an attention, and its indexer.
#[derive(Clone, Debug)]
struct BlocksOf {
    own: Compressor,
    indexer: Option<Indexer>,
}

crate::module!(BlocksOf { indexer } flat { own });

/// The compressor of an indexer, and its queries.
#[derive(Clone, Debug)]
struct Indexer {
    own: Compressor,
    q_b_proj: Linear,
    weights_proj: Linear,
    config: BlocksIndex,
}

crate::module!(Indexer { q_b_proj, weights_proj } flat { own } plain { config });

impl CompressedAttention {
    /// Attention without values. The rope turns the last `rope.dims` features of a head.
    ///
    /// # Errors
    /// Heads do not divide into groups, or the rope's settings are invalid or change with the length of a text.
    pub fn empty(config: CompressedConfig, rope: &RopeConfig) -> Result<Self> {
        let CompressedConfig {
            hidden,
            heads,
            head_dim,
            query_rank,
            groups,
            group_rank,
            eps,
            ..
        } = config;
        let fault = |message: String| Error::new(ErrorKind::Invalid, message);
        if groups < 1 || heads % groups != 0 {
            return Err(fault(format!(
                "{heads} heads do not divide into {groups} groups"
            )));
        }
        if rope.dims > head_dim || config.window < 2 {
            return Err(fault(format!(
                "a rope of {} features, and a window of {} positions, for heads of {head_dim} features",
                rope.dims, config.window
            )));
        }
        let back = RopeConfig {
            reversed: !rope.reversed,
            ..rope.clone()
        };
        let turning = Rope::new(rope, rope.dims)?;
        if turning.switches_after().or(turning.grows_after()).is_some() {
            let message =
                "a rope that changes with the length is not supported over compressed blocks";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let compressor = |dim: i32, blocks: &BlocksConfig| {
            Compressor::empty(
                hidden,
                dim,
                (blocks.size, blocks.reach()),
                eps,
                turning.clone(),
            )
        };
        let blocks = config.blocks.map(|blocks| -> Result<BlocksOf> {
            if blocks.size < 2 {
                return Err(fault(format!("blocks of {} positions", blocks.size)));
            }
            let indexer = blocks.index.map(|index| -> Result<Indexer> {
                if index.dim < rope.dims {
                    return Err(fault(format!(
                        "a rope of {} features in an indexer's heads of {}",
                        rope.dims, index.dim
                    )));
                }
                Ok(Indexer {
                    own: compressor(index.dim, &blocks)?,
                    q_b_proj: Linear::empty(query_rank, index.heads * index.dim, false)?,
                    weights_proj: Linear::empty(hidden, index.heads, false)?,
                    config: index,
                })
            });
            Ok(BlocksOf {
                own: compressor(head_dim, &blocks)?,
                indexer: indexer.transpose()?,
            })
        });
        Ok(Self {
            q_a_proj: Linear::empty(hidden, query_rank, false)?,
            q_a_norm: RmsNorm::empty(query_rank, eps)?,
            q_b_proj: Linear::empty(query_rank, heads * head_dim, false)?,
            kv_proj: Linear::empty(hidden, head_dim, false)?,
            kv_norm: RmsNorm::empty(head_dim, eps)?,
            o_a_proj: ExpertsLinear::empty(groups, heads / groups * head_dim, group_rank)?,
            o_b_proj: Linear::empty(groups * group_rank, hidden, false)?,
            sinks: Param::empty(&[heads])?.never_narrowed(),
            compressor: blocks.transpose()?,
            sourced: match config.sourced {
                Some(blocks) => Some(Sourced::empty(blocks, &config, &turning)?),
                None => None,
            },
            back: Rope::new(&back, rope.dims)?,
            rope: turning,
            rope_dim: rope.dims,
            config,
        })
    }

    /// `x: [1, T, E] -> [1, T, E]`, reading and writing the [states](CompressedConfig::states) from `state` on.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward<'x>(
        &self,
        x: impl Into<Input<'x>>,
        state: usize,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let (x, c) = (x.into(), &self.config);
        let rounded = match c.rounds {
            true => Some(eight_bits(x.array()?)?),
            false => None,
        };
        let input = rounded.as_ref().map_or(x, Input::from);
        let [latents, k] = Linear::forward_all([&self.q_a_proj, &self.kv_proj], input)?;
        let latents = Normed::rms(latents, &self.q_a_norm);
        let rounded = match c.rounds {
            true => Some(eight_bits(latents.array()?)?),
            false => None,
        };
        let latents = rounded.as_ref().map_or(Input::from(&latents), Input::from);
        let mut q = split_heads(&self.q_b_proj.forward(latents)?, c.head_dim)?;
        if !c.rounds {
            q = fast::rms_norm(&q, None, c.eps)?;
        }
        let q = end_turned(&self.rope, &q, self.rope_dim, step)?;
        let k = self.kv_norm.forward(&k)?.expand_dims(1)?;
        let mut k = end_turned(&self.rope, &k, self.rope_dim, step)?.squeeze(1)?;
        if c.rounds {
            k = eight_bits(&k)?;
        }
        let near = state + c.near();
        let of_blocks = match (&self.compressor, &self.sourced) {
            (Some(blocks), _) => blocks.forward(x, latents, (state, near + 1), step)?,
            (None, Some(blocks)) => blocks.forward(x, latents, (state, near + 1), step)?,
            (None, None) => None,
        };
        let options = Attend {
            scale: (c.head_dim as f32).powf(-0.5),
            softcap: None,
            sinks: Some(self.sinks.get()?),
            alibi: None,
        };
        let y = blocks::attend(step, (near, c.window), &q, &k, of_blocks.as_ref(), &options)?;
        // Values were turned with the keys.
        let y = end_turned(&self.back, &y, self.rope_dim, step)?;
        self.output(&y)
    }

    /// The output projections of heads `[1, H, T, D]`: `[1, T, E]`.
    fn output(&self, y: &Array) -> Result<Array> {
        let CompressedConfig {
            groups, group_rank, ..
        } = self.config;
        let [_, heads, tokens, dim] = y.dims()?;
        let grouped = y.squeeze(0)?.swapaxes(0, 1)?;
        let grouped = grouped.reshape(&[tokens, groups, 1, heads / groups * dim])?;
        let numbers = create::arange(0.0, f64::from(groups), 1.0, DType::I32)?;
        let numbers = numbers.broadcast_to(&[tokens, groups])?;
        let y = self.o_a_proj.forward(&grouped, &numbers)?;
        let mut y = y.reshape(&[1, tokens, groups * group_rank])?;
        if self.config.rounds {
            y = eight_bits(&y)?;
        }
        self.o_b_proj.forward(&y)
    }
}

impl Shard for CompressedAttention {
    fn heads(&self) -> Option<Heads> {
        Some(Heads {
            many: self.config.heads,
            few: self.config.groups,
            copies: false,
        })
    }

    /// Each rank has whole groups of heads. The vectors of positions and blocks, and the indexer, are on every rank.
    fn shard(&mut self, ranks: Ranks, _unit: i32) -> Result<()> {
        let CompressedConfig {
            heads,
            head_dim,
            groups,
            group_rank,
            ..
        } = self.config;
        let (own, of_groups) = (ranks.share(heads), ranks.share(groups));
        if self.config.rounds && group_rank % ROUNDED_BLOCK != 0 {
            let message = format!(
                "{} ranks cannot share groups of {group_rank} features, of which {ROUNDED_BLOCK} are rounded together",
                ranks.size()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let queries = own.start * head_dim..own.end * head_dim;
        self.q_b_proj.keep_outputs(std::slice::from_ref(&queries))?;
        self.config.heads = own.end - own.start;
        self.sinks
            .cut(Cut::new(self.sinks.shape(), 0, vec![own])?)?;
        let inputs = of_groups.start * group_rank..of_groups.end * group_rank;
        self.o_b_proj
            .keep_inputs(std::slice::from_ref(&inputs), ranks)?;
        self.config.groups = of_groups.end - of_groups.start;
        self.o_a_proj.keep(0, of_groups)
    }
}

impl BlocksOf {
    /// The vectors of all whole blocks, and which of them queries see; `None` if there is none. The states from `state` on
    /// keep vectors, and those from `inputs` on the inputs of blocks.
    fn forward(
        &self,
        x: Input<'_>,
        latents: Input<'_>,
        (state, inputs): (usize, usize),
        step: &mut Step<'_>,
    ) -> Result<Option<(Array, Array)>> {
        let vectors = self.own.forward(x, (state, None), inputs, step)?;
        let Some(indexer) = &self.indexer else {
            return Ok(vectors);
        };
        let keys = indexer
            .own
            .forward(x, (state + 1, Some(DType::F32)), inputs + 1, step)?;
        let (Some((vectors, seen)), Some((keys, _))) = (vectors, keys) else {
            return Ok(None);
        };
        let seen = indexer.chosen(x, latents, &keys, seen, step)?;
        Ok(Some((vectors, seen)))
    }
}

impl Indexer {
    /// The blocks with the best scores among those that queries may see, both Bool `[1, T, P]`.
    fn chosen(
        &self,
        x: Input<'_>,
        latents: Input<'_>,
        keys: &Array,
        seen: Array,
        step: &Step<'_>,
    ) -> Result<Array> {
        let BlocksIndex { dim, top, .. } = self.config;
        if keys.dim(1)? <= top {
            return Ok(seen);
        }
        let q = split_heads(&self.q_b_proj.forward(latents)?, dim)?;
        let q = end_turned(self.own.rope(), &q, self.own.rope().dims(), step)?;
        let scores = scores(&q, keys, &self.weights_proj.forward(x)?, step)?;
        best(&scores, &seen, top)?.stop_gradient()
    }
}

/// The scores F32 `[1, T, P]` of keys `[B, P, D]` for queries `[1, H, T, D]`: sums over heads by `weights [1, T, H]`.
fn scores(q: &Array, keys: &Array, weights: &Array, step: &Step<'_>) -> Result<Array> {
    let [_, heads, _, dim] = q.dims()?;
    let weights = weights
        .astype(DType::F32)?
        .multiply((heads as f32).powf(-0.5))?;
    let weights = weights.squeeze(0)?.expand_dims(-1)?;
    let scores = products(&q.astype(DType::F32)?, keys, step)?; // [T, H, P]
    let scores = scores.maximum(0.0)?.multiply((dim as f32).powf(-0.5))?;
    scores.multiply(&weights)?.sum(1, false)?.expand_dims(0)
}

/// Heads `[1, H, T, D]` of the step's tokens, whose last `dims` features are turned.
fn end_turned(rope: &Rope, x: &Array, dims: i32, step: &Step<'_>) -> Result<Array> {
    with_end(x, dims, |end| rope.forward(end, step))
}

/// `x [.., D]` with other last `dims` features.
fn with_end(x: &Array, dims: i32, of: impl Fn(&Array) -> Result<Array>) -> Result<Array> {
    let whole = x.dim(-1)?;
    let end = of(&x.slice_axis(-1, whole - dims, whole)?)?;
    match whole == dims {
        true => Ok(end),
        false => concat(&[x.slice_axis(-1, 0, whole - dims)?, end], -1),
    }
}
