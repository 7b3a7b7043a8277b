//! Attention of one layer: projections, q/k norm, rope, and the cache's `attend`.

use mlx_core::{Array, DType, Error, ErrorKind, Result, fast};

use crate::attend::Keys;
use crate::linear::Linear;
use crate::module::Param;
use crate::norm::RmsNorm;
use crate::normed::Input;
use crate::rope::Rope;
use crate::step::{Attend, Step};

mod alibi;
mod blocks;
mod gate;
mod heads;
mod indexer;
mod kv_taps;
mod pattern;
mod qk_norm;
mod shard;

pub use alibi::Alibi;
pub(crate) use alibi::slopes;
pub use blocks::BlockChoice;
use blocks::BlockChooser;
pub use gate::{GateFunction, HeadGate};
use heads::split_gate;
pub use heads::{merge_heads, split_heads};
pub use indexer::BlockIndexConfig;
use indexer::BlockIndexer;
use kv_taps::KvTaps;
pub use kv_taps::kv_taps_kind;
pub use pattern::BlockPattern;
use pattern::HeadPattern;
use qk_norm::HeadNorm;
pub use qk_norm::{QkKind, QkNorm, QkPlace};

/// Sizes and options of an [`Attention`].
#[derive(Clone, Debug)]
pub struct AttentionConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Features of the output, if they are not as many as those of a token.
    pub output: Option<i32>,
    /// Query heads.
    pub heads: i32,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: i32,
    /// Features of a head.
    pub head_dim: i32,
    /// Features of a head of v, if they are not those of q and k.
    pub value_dim: Option<i32>,
    /// Values are multiplied by this.
    pub value_scale: Option<f32>,
    /// The factor of the scores.
    pub scale: f32,
    /// Bias on q, k and v.
    pub qkv_bias: bool,
    /// Bias on the output projection.
    pub out_bias: bool,
    /// Norms on q and k, if there are any.
    pub qk_norm: Option<QkNorm>,
    /// q, k and v are clamped to `-clip ..= clip` (OLMo).
    pub clip: Option<f32>,
    /// `cap * tanh(scores / cap)`
    pub softcap: Option<f32>,
    /// Queries are scaled by a factor that grows with their positions.
    pub growth: Option<Growth>,
    /// ALiBi (Press et al., arXiv:2108.12409), whose bias is multiplied by this factor.
    pub alibi: Option<f32>,
    /// `q_proj` also has a gate for each output feature of a head. The output is multiplied by the gate's sigmoid. The
    /// layout of a head is `[query | gate]`.
    pub output_gate: bool,
    /// A gate on the output, computed from the layer's input by a projection of its own.
    pub gate: Option<HeadGate>,
    /// One learned score for each query head that takes part in the softmax and adds no value.
    pub sinks: bool,
    /// The source of keys and values.
    pub source: KvSource,
    /// Later layers also read this layer's keys and values.
    pub shared: bool,
    /// Tokens see only the tokens of their own chunk of this many positions.
    pub chunk: Option<usize>,
    /// The epsilon of an RMS norm, without a weight, of each head of v.
    pub value_norm: Option<f32>,
    /// The epsilon of an RMS norm over the outputs of all heads, before the output projection.
    pub sub_norm: Option<f32>,
    /// Queries see only the positions that an indexer chooses. The indexer's keys are a second state of the layer. Not
    /// with keys of an earlier layer, `shared` or `chunk`.
    pub index: Option<BlockIndexConfig>,
}

impl AttentionConfig {
    /// Projections of these sizes, scores divided by the root of the head size, and no other options.
    pub fn plain(hidden: i32, heads: i32, kv_heads: i32, head_dim: i32) -> Self {
        Self {
            hidden,
            output: None,
            heads,
            kv_heads,
            head_dim,
            value_dim: None,
            value_scale: None,
            scale: (head_dim as f32).powf(-0.5),
            qkv_bias: false,
            out_bias: false,
            qk_norm: None,
            clip: None,
            softcap: None,
            growth: None,
            alibi: None,
            output_gate: false,
            gate: None,
            sinks: false,
            source: KvSource::Own,
            shared: false,
            chunk: None,
            value_norm: None,
            sub_norm: None,
            index: None,
        }
    }
}

/// The source of an attention's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// A projection for each.
    Own,
    /// One projection for both: values are keys before norm and rope.
    Alike,
    /// The keys and values of an earlier layer, whose config has `shared`.
    Earlier,
}

/// Queries are multiplied by `1 + beta * ln(1 + floor((position + shift) / period))` (Llama 4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// The factor of the logarithm.
    pub beta: f32,
    /// The number of successive positions that have the same factor.
    pub period: f32,
    /// The number that is added to positions before the division.
    pub shift: f32,
    /// Whether only the queries of layers without rope are scaled.
    pub unrotated: bool,
}

impl Growth {
    /// The factors of the queries at `positions [1, T]`: `[1, 1, T, 1]`, F32.
    pub(crate) fn factors(self, positions: &Array) -> Result<Array> {
        let positions = positions.astype(DType::F32)?.reshape(&[1, 1, -1, 1])?;
        let periods = positions.add(self.shift)?.divide(self.period)?.floor()?;
        periods.add(1.0)?.log()?.multiply(self.beta)?.add(1.0)
    }
}

/// Grouped-query attention (Ainslie et al., arXiv:2305.13245).
///
/// ```
/// use mlx_core::{DType, Result, ones};
/// use mlx_nn::{Attention, AttentionConfig, CacheOptions, LayerKind, ModelCache};
/// use mlx_nn::{Rope, RopeConfig, RopeScaling, init::initialise};
///
/// # fn main() -> Result<()> {
/// let rope = RopeConfig {
///     base: 10_000.0,
///     dims: 8,
///     interleaved: false,
///     reversed: false,
///     scaling: RopeScaling::Default,
/// };
/// // 4 query heads of 8, which share 2 heads of keys and values.
/// let config = AttentionConfig::plain(32, 4, 2, 8);
/// let mut attention = Attention::empty(&config, Rope::new(&rope, 8)?)?;
/// initialise(&mut attention, 7, 0.02)?;
/// let mut cache = ModelCache::new(&[LayerKind::Full], 1, CacheOptions::default());
/// let mut step = cache.begin(&[3])?;
/// let y = attention.forward(&ones([1, 3, 32], DType::F32)?, 0, &mut step)?;
/// step.commit_all()?;
/// assert_eq!(y.shape(), [1, 3, 32]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Attention {
    q_proj: Linear,
    k_proj: Option<Linear>,
    v_proj: Option<Linear>,
    o_proj: Linear,
    g_proj: Option<Linear>,
    q_norm: Option<HeadNorm>,
    k_norm: Option<HeadNorm>,
    attn_sub_norm: Option<RmsNorm>,
    sinks: Option<Param>,
    indexer: Option<BlockIndexer>,
    chooser: Option<BlockChooser>,
    kv_taps: Option<KvTaps>,
    pattern: Option<HeadPattern>,
    rope: Option<Rope>,
    norm_place: QkPlace,
    unweighted: Option<f32>,
    value_norm: Option<f32>,
    shared: bool,
    chunk: Option<usize>,
    clip: Option<f32>,
    growth: Option<Growth>,
    alibi: Option<Alibi>,
    head_dim: i32,
    value_dim: i32,
    value_scale: Option<f32>,
    scale: f32,
    softcap: Option<f32>,
    output_gate: bool,
    gate: Option<HeadGate>,
}

crate::module!(Attention { q_proj, k_proj, v_proj, o_proj, g_proj, q_norm, k_norm, attn_sub_norm, sinks, indexer, chooser }
               flat { kv_taps }
               plain { pattern, rope, norm_place, unweighted, value_norm, shared, chunk, clip, growth, alibi, head_dim, value_dim, value_scale,
                       scale, softcap, output_gate, gate });

impl Attention {
    /// Attention without values. Without a rope, positions have no effect on the scores.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(config: &AttentionConfig, rope: impl Into<Option<Rope>>) -> Result<Self> {
        let &AttentionConfig {
            hidden,
            heads,
            kv_heads,
            head_dim,
            qkv_bias,
            ..
        } = config;
        let value_dim = config.value_dim.unwrap_or(head_dim);
        let norm_place = config.qk_norm.map_or(QkPlace::Heads, |norm| norm.place);
        let is_unweighted = |norm: &QkNorm| {
            matches!(
                norm.place,
                QkPlace::RotatedUnweighted | QkPlace::HeadsUnweighted
            )
        };
        let rope = rope.into();
        let has_place = |norm: &QkNorm| rope.is_some() || norm.place == QkPlace::HeadsUnweighted;
        let unweighted = config
            .qk_norm
            .filter(|norm| is_unweighted(norm) && has_place(norm));
        let unweighted = unweighted.map(|norm| norm.eps);
        let grows = |growth: &Growth| !growth.unrotated || rope.is_none();
        let growth = config.growth.filter(grows);
        let norm = |heads: i32| {
            let weighted = config.qk_norm.filter(|norm| !is_unweighted(norm));
            let norm = weighted.map(|norm| HeadNorm::empty(&norm, heads, head_dim));
            norm.transpose()
        };
        let queries = if config.output_gate { 2 } else { 1 };
        let own = |is_own: bool, dim: i32| {
            let linear = is_own.then(|| Linear::empty(hidden, kv_heads * dim, qkv_bias));
            linear.transpose()
        };
        let has_keys = config.source != KvSource::Earlier;
        Ok(Self {
            q_proj: Linear::empty(hidden, heads * head_dim * queries, qkv_bias)?,
            k_proj: own(has_keys, head_dim)?,
            v_proj: own(config.source == KvSource::Own, value_dim)?,
            o_proj: Linear::empty(
                heads * value_dim,
                config.output.unwrap_or(hidden),
                config.out_bias,
            )?,
            g_proj: match config.gate {
                Some(gate) => Some(gate.projection(hidden, heads, value_dim)?),
                None => None,
            },
            q_norm: norm(heads)?,
            k_norm: match has_keys {
                true => norm(kv_heads)?,
                false => None,
            },
            attn_sub_norm: config
                .sub_norm
                .map(|eps| RmsNorm::empty(heads * value_dim, eps))
                .transpose()?,
            sinks: if config.sinks {
                Some(Param::empty(&[heads])?)
            } else {
                None
            },
            indexer: match config.index {
                Some(index) => Some(BlockIndexer::empty(index, hidden, rope.clone())?),
                None => None,
            },
            chooser: None,
            kv_taps: None,
            pattern: None,
            rope,
            norm_place,
            unweighted,
            value_norm: config.value_norm,
            shared: config.shared,
            chunk: config.chunk,
            clip: config.clip,
            growth,
            alibi: match config.alibi {
                Some(factor) => Some(Alibi::new(heads, factor)?),
                None => None,
            },
            head_dim,
            value_dim,
            value_scale: config.value_scale,
            scale: config.scale,
            softcap: config.softcap,
            output_gate: config.output_gate,
            gate: config.gate,
        })
    }

    /// The attention with queries that see only the blocks of positions that `pattern` gives their heads.
    ///
    /// # Errors
    /// A size is less than 1.
    pub fn with_pattern(self, pattern: BlockPattern) -> Result<Self> {
        let pattern = HeadPattern::new(pattern, self.query_heads())?;
        Ok(Self {
            pattern: Some(pattern),
            ..self
        })
    }

    /// The attention with keys and values that are mixed with those of the token before, by two taps a head. The ones
    /// before a step are a second state of the layer, of the kind [`kv_taps_kind`].
    ///
    /// # Errors
    /// The attention has no keys and values of its own, or a second state.
    pub fn with_kv_taps(self) -> Result<Self> {
        let has_state = self.indexer.is_some() || self.chooser.is_some();
        if has_state || self.k_proj.is_none() || self.v_proj.is_none() {
            let message = "taps of keys and values in an attention that has none of its own, or a second state";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let taps = KvTaps::empty(self.kv_heads(), self.head_dim, self.value_dim)?;
        Ok(Self {
            kv_taps: Some(taps),
            ..self
        })
    }

    /// `x: [1, T, E] -> [1, T, E]`, reading and writing layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit, or an earlier layer has not shared its keys and values in this step.
    pub fn forward<'x>(
        &self,
        x: impl Into<Input<'x>>,
        layer: usize,
        step: &mut Step,
    ) -> Result<Array> {
        let x = x.into();
        let selection = match (&self.indexer, &self.chooser, &self.pattern) {
            (Some(indexer), ..) => indexer.select(x, layer + 1, step)?,
            (None, Some(chooser), _) => chooser.select(x, layer + 1, step)?,
            (None, None, Some(pattern)) => pattern.select(layer, step)?,
            (None, None, None) => None,
        };
        let (q, kv, opening) = self.projections(x)?;
        let (positions, dim) = (step.positions().clone(), self.head_dim);
        let (q, gate) = match self.output_gate {
            true => split_gate(&q, dim).map(|(q, gate)| (q, Some(gate)))?,
            false => (q, None),
        };
        let q = self.prepared(q, self.q_norm.as_ref())?;
        let mut q = self.keys(&q, self.q_norm.as_ref(), &positions, step)?;
        if let Some(growth) = self.growth {
            let heads = q.heads()?;
            let factors = growth.factors(&positions)?;
            q = Keys::Heads(heads.multiply(factors.astype(heads.dtype())?)?);
        }
        let options = Attend {
            scale: self.scale,
            softcap: self.softcap,
            sinks: self.sinks.as_ref().map(Param::get).transpose()?,
            alibi: self.alibi.as_ref(),
        };
        let y = match kv {
            Some(kv) => {
                let (k, v) = match &self.kv_taps {
                    Some(taps) => taps.forward(&kv, layer + 1, step)?,
                    None => kv,
                };
                let k = self.prepared(k, self.k_norm.as_ref())?;
                let k = self.keys(&k, self.k_norm.as_ref(), &positions, step)?;
                let mut v = split_heads(&self.clipped(v)?, self.value_dim)?;
                if let Some(scale) = self.value_scale {
                    v = v.multiply(scale)?;
                }
                if let Some(eps) = self.value_norm {
                    v = fast::rms_norm(&v, None, eps)?;
                }
                match (self.shared, self.chunk) {
                    _ if selection.is_some() => {
                        step.attend_selected(layer, q, k, &v, selection.as_ref(), &options)?
                    }
                    (true, _) => step.attend_and_share(layer, q, k, &v, &options)?,
                    (false, Some(chunk)) => {
                        step.attend_chunked(layer, chunk, q, k, &v, &options)?
                    }
                    // The cache computes the heads of queries and keys in one operation.
                    (false, None) => {
                        step.attend_selected(layer, q, k, &v, selection.as_ref(), &options)?
                    }
                }
            }
            None => step.attend_to_shared(layer, &q.heads()?, &options)?,
        };
        let mut y = merge_heads(&y)?;
        if let Some(gate) = gate {
            y = y.multiply(gate.sigmoid()?)?;
        }
        if let (Some(gate), Some(opening)) = (self.gate, opening) {
            y = gate.apply(&y, &opening)?;
        }
        if let Some(norm) = &self.attn_sub_norm {
            y = norm.forward(&y)?;
        }
        self.o_proj.forward(&y)
    }

    /// The projections of queries, of keys and values unless they come from an earlier layer, and of the gate:
    /// `[1, T, H * D]`.
    #[expect(clippy::type_complexity)]
    fn projections(&self, x: Input<'_>) -> Result<(Array, Option<(Array, Array)>, Option<Array>)> {
        let gate = |x| self.g_proj.as_ref().map(|gate| gate.forward(x)).transpose();
        Ok(match (&self.k_proj, &self.v_proj, &self.g_proj) {
            (Some(k_proj), Some(v_proj), Some(g_proj)) => {
                let [q, k, v, gate] =
                    Linear::forward_all([&self.q_proj, k_proj, v_proj, g_proj], x)?;
                (q, Some((k, v)), Some(gate))
            }
            (Some(k_proj), Some(v_proj), None) => {
                let [q, k, v] = Linear::forward_all([&self.q_proj, k_proj, v_proj], x)?;
                (q, Some((k, v)), None)
            }
            (Some(k_proj), None, _) => {
                let [q, k] = Linear::forward_all([&self.q_proj, k_proj], x)?;
                (q, Some((k.clone(), k)), gate(x)?)
            }
            (None, ..) => (self.q_proj.forward(x)?, None, gate(x)?),
        })
    }

    fn clipped(&self, x: Array) -> Result<Array> {
        match self.clip {
            Some(clip) => x.maximum(-clip)?.minimum(clip),
            None => Ok(x),
        }
    }

    /// A projection of queries or keys, normed if the norm is over the whole projection, and clipped.
    fn prepared(&self, x: Array, norm: Option<&HeadNorm>) -> Result<Array> {
        match norm {
            Some(norm) if self.norm_place == QkPlace::Projection => self.clipped(norm.forward(&x)?),
            _ => self.clipped(x),
        }
    }

    /// The heads of queries or keys, normed and rotated, or the projection that the cache makes them from.
    fn keys<'a>(
        &'a self,
        x: &'a Array,
        norm: Option<&'a HeadNorm>,
        positions: &'a Array,
        step: &Step,
    ) -> Result<Keys<'a>> {
        let before = norm.filter(|_| self.norm_place == QkPlace::Heads);
        let after = norm.filter(|_| self.norm_place == QkPlace::Rotated);
        if let (Some(eps), QkPlace::HeadsUnweighted) = (self.unweighted, self.norm_place) {
            let heads = fast::rms_norm(&split_heads(x, self.head_dim)?, None, eps)?;
            return Ok(Keys::Heads(match &self.rope {
                Some(rope) => rope.forward(&heads, step)?,
                None => heads,
            }));
        }
        let normed = |heads: Array| match (after, self.unweighted) {
            (Some(norm), _) => norm.forward(&heads),
            (None, Some(eps)) => fast::rms_norm(&heads, None, eps),
            (None, None) => Ok(heads),
        };
        let Some(rope) = &self.rope else {
            let heads = split_heads(x, self.head_dim)?;
            let heads = match before {
                Some(norm) => norm.forward(&heads)?,
                None => heads,
            };
            return normed(heads).map(Keys::Heads);
        };
        let keys = match before {
            None | Some(HeadNorm::Rms(_)) => {
                let rms = before.and_then(HeadNorm::rms);
                rope.keys(x, self.head_dim, rms, positions, step)?
            }
            Some(norm) => {
                let heads = norm.forward(&split_heads(x, self.head_dim)?)?;
                Keys::Heads(rope.forward(&heads, step)?)
            }
        };
        match after.is_some() || self.unweighted.is_some() {
            true => normed(keys.heads()?).map(Keys::Heads),
            false => Ok(keys),
        }
    }
}
