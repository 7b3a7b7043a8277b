//! [`Lightning`]: a linear attention whose heads decay at fixed rates (Qin et al., arXiv:2401.04658).

use mlx_core::fast::RaggedScan;
use mlx_core::ops::create::zeros;
use mlx_core::{Array, DType, Result};

use crate::activation::Activation;
use crate::cache::{LayerKind, RecurrentShape, StatePart};
use crate::linear::Linear;
use crate::norm::RmsNorm;
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
    /// The activation of values, keys and queries.
    pub activation: Activation,
    /// Epsilon of the output's norm.
    pub norm_eps: f32,
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
    out_proj: Linear,
    /// F32 `[heads]`: the state of head h decays by `exp(-rate[h])` at each token.
    rate: Array,
    none: Array,
    config: LightningConfig,
}

crate::module!(Lightning { in_proj, output_gate, norm, out_proj } plain { rate, none, config });

impl Lightning {
    /// A layer without values. Head h of n decays at `depth / 2^(8 (h + 1) / n)`.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(config: LightningConfig, depth: f32) -> Result<Self> {
        let LightningConfig {
            hidden,
            heads,
            head_dim,
            ..
        } = config;
        let width = heads * head_dim;
        let rate = |head: i32| depth * (-8.0 * (head + 1) as f32 / heads as f32).exp2();
        let rates: Vec<f32> = (0..heads).map(rate).collect();
        Ok(Self {
            in_proj: Linear::empty(hidden, 3 * width, false)?,
            output_gate: Linear::empty(hidden, width, false)?,
            norm: RmsNorm::empty(width, config.norm_eps)?,
            out_proj: Linear::empty(width, hidden, false)?,
            rate: Array::from_slice(&rates, &[heads])?,
            none: zeros(&[heads], DType::F32)?,
            config,
        })
    }

    /// `x: [1, T, E] -> [1, T, E]`, reading and writing layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let [one, tokens, _] = x.dims()?;
        let [vkq, gate] = Linear::forward_all([&self.in_proj, &self.output_gate], x)?;
        let heads = self.config.heads;
        let y = step.scan(
            layer,
            0,
            &RaggedScan {
                x: &self.config.activation.forward(&vkq)?,
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
        let normed = self.norm.forward(&y)?;
        self.out_proj.forward(&normed.multiply(gate.sigmoid()?)?)
    }
}

impl Shard for Lightning {
    fn heads(&self) -> Option<Heads> {
        Some(Heads {
            many: self.config.heads,
            few: self.config.heads,
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
        self.norm.keep(part(0), Some(spread))?;
        self.out_proj.keep_inputs(&[part(0)], ranks)?;
        let heads = |array: &Array| array.slice_axis(0, own.start, own.end)?.contiguous();
        self.rate = heads(&self.rate)?;
        self.none = heads(&self.none)?;
        self.config.heads = own.end - own.start;
        Ok(())
    }
}
