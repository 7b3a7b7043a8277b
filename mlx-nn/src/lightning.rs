//! [`Lightning`]: a linear attention whose heads decay at fixed rates (Qin et al., arXiv:2401.04658).

use mlx_core::fast::RaggedScan;
use mlx_core::ops::{concat, create::zeros};
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use crate::activation::Activation;
use crate::attention::{merge_heads, slopes, split_heads};
use crate::cache::{LayerKind, RecurrentShape, StatePart};
use crate::linear::Linear;
use crate::norm::RmsNorm;
use crate::rope::Rope;
use crate::shard::{Heads, Ranks, Shard, Spread};
use crate::step::Step;

/// Sizes of a [`Lightning`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LightningConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Heads.
    pub heads: i32,
    /// Features of a head.
    pub head_dim: i32,
    /// The activation of values, keys and queries, if they have one.
    pub activation: Option<Activation>,
    /// Epsilon of the output's norm.
    pub norm_eps: f32,
    /// The output's features are normed in this number of groups, which divides the number of heads.
    pub groups: i32,
    /// Bias on values, keys and queries.
    pub bias: bool,
    /// The epsilon of the norms of each head of queries and keys, if there are such norms.
    pub qk_norm: Option<f32>,
    /// Whether outputs are divided by the root of the head size.
    pub scaled: bool,
    /// Whether heads decay by the slopes of ALiBi, which differ if the number of heads is no power of two.
    pub slopes: bool,
}

impl LightningConfig {
    /// The layer's state of a row: an F32 matrix for each head.
    pub fn kind(&self) -> LayerKind {
        let state = StatePart::Carry {
            name: "kv",
            shape: [self.heads, self.head_dim, self.head_dim],
            dtype: DType::F32,
        };
        LayerKind::Recurrent(RecurrentShape::new(&[state]).with_slots())
    }
}

/// `out(sigmoid(gate(x)) * norm(y))`, where `y` is the product of the queries with the decaying sum of `value keyᵀ`.
///
/// `in_proj` gives values, keys and queries, each head by head.
#[derive(Clone, Debug)]
pub struct Lightning {
    in_proj: Linear,
    output_gate: Linear,
    norm: RmsNorm,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    out_proj: Linear,
    rope: Option<Rope>,
    /// F32 `[heads]`: the state of head h decays by `exp(-rate[h])` at each token.
    rate: Array,
    none: Array,
    config: LightningConfig,
}

crate::module!(Lightning { in_proj, output_gate, norm, q_norm, k_norm, out_proj } plain { rope, rate, none, config });

impl Lightning {
    /// A layer without values. Head h of n decays at `depth / 2^(8 (h + 1) / n)`, or by `slopes`.
    ///
    /// # Errors
    /// The number of heads is not a multiple of the groups.
    pub fn empty(config: LightningConfig, depth: f32) -> Result<Self> {
        let LightningConfig {
            hidden,
            heads,
            head_dim,
            ..
        } = config;
        if config.groups < 1 || heads % config.groups != 0 {
            let message = format!(
                "{heads} heads are not a multiple of {} groups",
                config.groups
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let width = heads * head_dim;
        let rates: Vec<f32> = match config.slopes {
            true => slopes(heads),
            false => {
                let rate = |head: i32| (-8.0 * (head + 1) as f32 / heads as f32).exp2();
                (0..heads).map(rate).collect()
            }
        };
        let rates: Vec<f32> = rates.into_iter().map(|rate| depth * rate).collect();
        let norm = || {
            let norm = config.qk_norm.map(|eps| RmsNorm::empty(head_dim, eps));
            norm.transpose()
        };
        Ok(Self {
            in_proj: Linear::empty(hidden, 3 * width, config.bias)?,
            output_gate: Linear::empty(hidden, width, false)?,
            norm: RmsNorm::empty(width, config.norm_eps)?,
            q_norm: norm()?,
            k_norm: norm()?,
            rope: None,
            out_proj: Linear::empty(width, hidden, false)?,
            rate: Array::from_slice(&rates, &[heads])?,
            none: zeros(&[heads], DType::F32)?,
            config,
        })
    }

    /// The layer with queries and keys that are rotated after their norms.
    #[must_use]
    pub fn with_rope(self, rope: Option<Rope>) -> Self {
        Self { rope, ..self }
    }

    /// Values, keys and queries as the recurrence reads them: `[1, T, 3 H D]`, the same shape.
    fn prepared(&self, vkq: Array, step: &Step<'_>) -> Result<Array> {
        let vkq = match self.config.activation {
            Some(activation) => activation.forward(&vkq)?,
            None => vkq,
        };
        if self.rope.is_none() && self.q_norm.is_none() {
            return Ok(vkq);
        }
        let (dim, width) = (self.config.head_dim, vkq.dim(-1)? / 3);
        let part = |at: i32| vkq.slice_axis(-1, at * width, (at + 1) * width);
        let turned = |x: &Array, norm: Option<&RmsNorm>| -> Result<Array> {
            merge_heads(&match (&self.rope, norm) {
                (Some(rope), norm) => rope.heads(x, dim, norm, step.positions(), step)?,
                (None, Some(norm)) => norm.forward(&split_heads(x, dim)?)?,
                (None, None) => split_heads(x, dim)?,
            })
        };
        let k = turned(&part(1)?, self.k_norm.as_ref())?;
        let q = turned(&part(2)?, self.q_norm.as_ref())?;
        concat(&[part(0)?, k, q], -1)
    }

    /// `x: [1, T, E] -> [1, T, E]`, reading and writing layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let [one, tokens, _] = x.dims()?;
        let [vkq, gate] = Linear::forward_all([&self.in_proj, &self.output_gate], x)?;
        let heads = self.config.heads;
        let vkq = self.prepared(vkq, step)?;
        let mut y = step.scan(
            layer,
            0,
            &RaggedScan {
                x: &vkq,
                // The limits make each time step 1.
                dt: &zeros(&[one, tokens, heads], x.dtype())?,
                rate: &self.rate,
                bias: &self.none,
                skip: &self.none,
                groups: heads,
                key_dim: self.config.head_dim,
                limits: (1.0, 1.0),
            },
        )?;
        if self.config.scaled {
            y = y.multiply((self.config.head_dim as f32).powf(-0.5))?;
        }
        let normed = self.norm.by_group(&y, self.config.groups)?;
        self.out_proj.forward(&normed.multiply(gate.sigmoid()?)?)
    }
}

impl Shard for Lightning {
    fn heads(&self) -> Option<Heads> {
        Some(Heads {
            many: self.config.heads,
            few: match self.config.groups {
                1 => self.config.heads,
                groups => groups,
            },
            copies: false,
        })
    }

    fn state(&self) -> Option<LayerKind> {
        Some(self.config.kind())
    }

    fn shard(&mut self, ranks: Ranks, _unit: i32) -> Result<()> {
        let LightningConfig {
            heads, head_dim, ..
        } = self.config;
        let (own, whole) = (ranks.share(heads), heads * head_dim);
        let part = |at: i32| at * whole + own.start * head_dim..at * whole + own.end * head_dim;
        self.in_proj.keep_outputs(&[part(0), part(1), part(2)])?;
        self.output_gate.keep_outputs(&[part(0)])?;
        let spread = Spread {
            ranks,
            whole,
            copies: 1,
        };
        let groups = self.config.groups;
        self.norm.keep(part(0), (groups == 1).then_some(spread))?;
        self.out_proj.keep_inputs(&[part(0)], ranks)?;
        let heads = |array: &Array| array.slice_axis(0, own.start, own.end)?.contiguous();
        self.rate = heads(&self.rate)?;
        self.none = heads(&self.none)?;
        if groups > 1 {
            let own = ranks.share_of_few(groups);
            self.config.groups = own.end - own.start;
        }
        self.config.heads = own.end - own.start;
        Ok(())
    }
}
