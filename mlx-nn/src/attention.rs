//! Attention of one layer: projections, q/k norm, rope, and the cache's `attend`.

use mlx_core::{Array, DType, Result, fast};

use crate::attend::Keys;
use crate::linear::Linear;
use crate::module::Param;
use crate::norm::RmsNorm;
use crate::normed::Input;
use crate::rope::Rope;
use crate::step::{Attend, Step};

mod alibi;
mod heads;
mod qk_norm;

pub use alibi::Alibi;
use heads::split_gate;
pub use heads::{merge_heads, split_heads};
use qk_norm::HeadNorm;
pub use qk_norm::{QkKind, QkNorm, QkPlace};

/// Sizes and options of an [`Attention`].
#[derive(Clone, Debug)]
pub struct AttentionConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Query heads.
    pub heads: i32,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: i32,
    /// Features of a head.
    pub head_dim: i32,
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
}

impl AttentionConfig {
    /// Projections of these sizes, scores divided by the root of the head size, and no other options.
    pub fn plain(hidden: i32, heads: i32, kv_heads: i32, head_dim: i32) -> Self {
        Self {
            hidden,
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
            qkv_bias: false,
            out_bias: false,
            qk_norm: None,
            clip: None,
            softcap: None,
            growth: None,
            alibi: None,
            output_gate: false,
            sinks: false,
            source: KvSource::Own,
            shared: false,
            chunk: None,
            value_norm: None,
            sub_norm: None,
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
    q_norm: Option<HeadNorm>,
    k_norm: Option<HeadNorm>,
    attn_sub_norm: Option<RmsNorm>,
    sinks: Option<Param>,
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
    scale: f32,
    softcap: Option<f32>,
    output_gate: bool,
}

crate::module!(Attention { q_proj, k_proj, v_proj, o_proj, q_norm, k_norm, attn_sub_norm, sinks }
               plain { rope, norm_place, unweighted, value_norm, shared, chunk, clip, growth, alibi, head_dim, scale, softcap, output_gate });

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
        let norm_place = config.qk_norm.map_or(QkPlace::Heads, |norm| norm.place);
        let is_unweighted = |norm: &QkNorm| norm.place == QkPlace::RotatedUnweighted;
        let rope = rope.into();
        let unweighted = config
            .qk_norm
            .filter(|norm| is_unweighted(norm) && rope.is_some());
        let unweighted = unweighted.map(|norm| norm.eps);
        let grows = |growth: &Growth| !growth.unrotated || rope.is_none();
        let growth = config.growth.filter(grows);
        let norm = |heads: i32| {
            let weighted = config.qk_norm.filter(|norm| !is_unweighted(norm));
            let norm = weighted.map(|norm| HeadNorm::empty(&norm, heads, head_dim));
            norm.transpose()
        };
        let queries = if config.output_gate { 2 } else { 1 };
        let own = |is_own: bool| {
            let linear = is_own.then(|| Linear::empty(hidden, kv_heads * head_dim, qkv_bias));
            linear.transpose()
        };
        let has_keys = config.source != KvSource::Earlier;
        Ok(Self {
            q_proj: Linear::empty(hidden, heads * head_dim * queries, qkv_bias)?,
            k_proj: own(has_keys)?,
            v_proj: own(config.source == KvSource::Own)?,
            o_proj: Linear::empty(heads * head_dim, hidden, config.out_bias)?,
            q_norm: norm(heads)?,
            k_norm: match has_keys {
                true => norm(kv_heads)?,
                false => None,
            },
            attn_sub_norm: config
                .sub_norm
                .map(|eps| RmsNorm::empty(heads * head_dim, eps))
                .transpose()?,
            sinks: if config.sinks {
                Some(Param::empty(&[heads])?)
            } else {
                None
            },
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
            scale: config.scale,
            softcap: config.softcap,
            output_gate: config.output_gate,
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
        let (q, kv) = self.projections(x.into())?;
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
            Some((k, v)) => {
                let k = self.prepared(k, self.k_norm.as_ref())?;
                let k = self.keys(&k, self.k_norm.as_ref(), &positions, step)?;
                let mut v = split_heads(&self.clipped(v)?, dim)?;
                if let Some(eps) = self.value_norm {
                    v = fast::rms_norm(&v, None, eps)?;
                }
                match (self.shared, self.chunk) {
                    (true, _) => step.attend_and_share(layer, q, k, &v, &options)?,
                    (false, Some(chunk)) => {
                        step.attend_chunked(layer, chunk, q, k, &v, &options)?
                    }
                    // The cache computes the heads of queries and keys in one operation.
                    (false, None) => step.attend(layer, q, k, &v, &options)?,
                }
            }
            None => step.attend_to_shared(layer, &q.heads()?, &options)?,
        };
        let mut y = merge_heads(&y)?;
        if let Some(gate) = gate {
            y = y.multiply(gate.sigmoid()?)?;
        }
        if let Some(norm) = &self.attn_sub_norm {
            y = norm.forward(&y)?;
        }
        self.o_proj.forward(&y)
    }

    /// The projections of queries, and of keys and values unless they come from an earlier layer: `[1, T, H * D]`.
    fn projections(&self, x: Input<'_>) -> Result<(Array, Option<(Array, Array)>)> {
        Ok(match (&self.k_proj, &self.v_proj) {
            (Some(k_proj), Some(v_proj)) => {
                let [q, k, v] = Linear::forward_all([&self.q_proj, k_proj, v_proj], x)?;
                (q, Some((k, v)))
            }
            (Some(k_proj), None) => {
                let [q, k] = Linear::forward_all([&self.q_proj, k_proj], x)?;
                (q, Some((k.clone(), k)))
            }
            (None, _) => (self.q_proj.forward(x)?, None),
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
