//! [`GatedDeltaNet`]: a linear attention with the gated delta rule (Yang et al., arXiv:2412.06464).

use std::ops::Range;

use mlx_core::fast::RaggedDelta;
use mlx_core::{Array, DType, Error, ErrorKind, Result, ops::concat};

use crate::Module;
use crate::activation::Activation;
use crate::cache::{LayerKind, RecurrentShape, StatePart};
use crate::conv::{CausalConv, JointConv};
use crate::decay::Decay;
use crate::linear::Linear;
use crate::norm::RmsNorm;
use crate::shard::{Heads, Ranks, Shard};
use crate::step::Step;

/// Sizes of a [`GatedDeltaNet`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Heads of queries and keys.
    pub key_heads: i32,
    /// Heads of values; a multiple of `key_heads`.
    pub value_heads: i32,
    /// Features of a query or key.
    pub key_dim: i32,
    /// Features of a value.
    pub value_dim: i32,
    /// Taps of the convolution, at least 2.
    pub taps: i32,
    /// The activation after the convolution.
    pub activation: Activation,
    /// Epsilon of the output's norm.
    pub norm_eps: f32,
    /// The activation of the gate by which the normed output is multiplied.
    pub output_gate: Activation,
    /// The largest `β` of the rule: 1, or 2 with negative eigenvalues of the state.
    pub most: f32,
    /// Whether queries, keys and values have a projection and a convolution each (OLMo Hybrid), not one for all.
    pub apart: bool,
}

/// Parts of the layer state.
pub(crate) const CONV: usize = 0;
pub(crate) const DELTA: usize = 1;

impl DeltaConfig {
    fn keys(&self) -> i32 {
        self.key_heads * self.key_dim
    }

    fn values(&self) -> i32 {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> i32 {
        2 * self.keys() + self.values()
    }

    /// The state of a row: the last inputs of the convolution, and a matrix in F32 for each value head.
    pub fn kind(&self) -> LayerKind {
        let shape = RecurrentShape::new(&[
            StatePart::Window {
                name: "conv",
                len: self.taps - 1,
                width: self.channels(),
            },
            StatePart::Carry {
                name: "delta",
                shape: [self.value_heads, self.value_dim, self.key_dim],
                dtype: DType::F32,
            },
        ]);
        LayerKind::Recurrent(shape.with_slots())
    }

    pub(crate) fn check(&self) -> Result<()> {
        let Self {
            key_heads,
            value_heads,
            taps,
            ..
        } = *self;
        if key_heads < 1 || value_heads < 1 || value_heads % key_heads != 0 {
            let message =
                format!("{value_heads} value heads are not a multiple of {key_heads} key heads");
            return Err(Error::new(ErrorKind::Shape, message));
        }
        if taps < 2 {
            let message = format!("the convolution needs at least 2 taps, given {taps}");
            return Err(Error::new(ErrorKind::Shape, message));
        }
        Ok(())
    }
}

/// A recurrent layer, used in place of attention.
///
/// Projections, a causal convolution of queries, keys and values, the gated delta rule, a gated norm, and a projection
/// back. The projections' rows are flat: `in_proj_qkv` is queries, keys and values, each head by head. A layer has either
/// this projection and `conv1d`, or `q_proj`, `k_proj`, `v_proj`, `q_conv1d`, `k_conv1d` and `v_conv1d`.
#[derive(Clone, Debug, Module)]
pub struct GatedDeltaNet {
    in_proj_qkv: Option<Linear>,
    q_proj: Option<Linear>,
    k_proj: Option<Linear>,
    v_proj: Option<Linear>,
    in_proj_z: Linear,
    in_proj_b: Linear,
    in_proj_a: Linear,
    conv1d: Option<CausalConv>,
    #[module(flat)]
    convs: Option<JointConv>,
    #[module(flat)]
    decay: Decay,
    norm: RmsNorm,
    out_proj: Linear,
    #[module(skip)]
    config: DeltaConfig,
}

impl GatedDeltaNet {
    /// A layer without values.
    ///
    /// # Errors
    /// Value heads are not a multiple of key heads, or there are fewer than 2 taps.
    pub fn empty(config: DeltaConfig) -> Result<Self> {
        config.check()?;
        let (hidden, heads) = (config.hidden, config.value_heads);
        let own = |wanted: bool, features| {
            let linear = wanted.then(|| Linear::empty(hidden, features, false));
            linear.transpose()
        };
        Ok(Self {
            in_proj_qkv: own(!config.apart, config.channels())?,
            q_proj: own(config.apart, config.keys())?,
            k_proj: own(config.apart, config.keys())?,
            v_proj: own(config.apart, config.values())?,
            in_proj_z: Linear::empty(hidden, config.values(), false)?,
            in_proj_b: Linear::empty(hidden, heads, false)?,
            in_proj_a: Linear::empty(hidden, heads, false)?,
            conv1d: match config.apart {
                true => None,
                false => Some(CausalConv::empty(
                    config.channels(),
                    config.taps,
                    false,
                    Some(config.activation),
                )?),
            },
            convs: match config.apart {
                true => {
                    let (keys, values) = (config.keys(), config.values());
                    let parts = [("q_conv1d", keys), ("k_conv1d", keys), ("v_conv1d", values)];
                    Some(JointConv::empty(&parts, config.taps, config.activation)?)
                }
                false => None,
            },
            decay: Decay::empty(&[heads], heads)?,
            norm: RmsNorm::empty(config.value_dim, config.norm_eps)?,
            out_proj: Linear::empty(config.values(), hidden, false)?,
            config,
        })
    }

    /// `x: [1, T, E] -> [1, T, E]`, reading and writing layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let [qkv, z, b, a] = self.projections(x)?;
        let qkv = match (&self.conv1d, &self.convs) {
            (Some(conv), _) => conv.forward(&qkv, layer, CONV, step)?,
            (None, Some(convs)) => convs.forward(&qkv, layer, CONV, step)?,
            (None, None) => unreachable!("a layer has one of them"),
        };
        let y = step.gated_delta(
            layer,
            DELTA,
            &RaggedDelta {
                qkv: &qkv,
                a: &a,
                b: &b,
                rate: self.decay.rate(),
                bias: self.decay.bias(),
                key_heads: self.config.key_heads,
                key_dim: self.config.key_dim,
                most: self.config.most,
                bound: self.decay.bound(),
            },
        )?;
        let [rows, tokens, width] = y.dims()?;
        let heads = [rows, tokens, self.config.value_heads, self.config.value_dim];
        let normed = self.norm.forward(&y.reshape(&heads)?)?;
        // The norm's weight may be F32 in a model of 16 bits.
        let normed = normed.astype(x.dtype())?;
        let gated = self
            .config
            .output_gate
            .gated(&z.reshape(&heads)?, &normed)?;
        self.out_proj
            .forward(&gated.reshape(&[rows, tokens, width])?)
    }

    /// Queries, keys and values in one array, the output's gate, and the inputs of `β` and the decay.
    fn projections(&self, x: &Array) -> Result<[Array; 4]> {
        let (z, b, a) = (&self.in_proj_z, &self.in_proj_b, &self.in_proj_a);
        match (&self.in_proj_qkv, &self.q_proj, &self.k_proj, &self.v_proj) {
            (Some(qkv), ..) => Linear::forward_all([qkv, z, b, a], x),
            (None, Some(q), Some(k), Some(v)) => {
                let [q, k, v, z, b, a] = Linear::forward_all([q, k, v, z, b, a], x)?;
                Ok([concat(&[q, k, v], -1)?, z, b, a])
            }
            _ => unreachable!("a layer has one projection or three"),
        }
    }
}

impl Shard for GatedDeltaNet {
    fn heads(&self) -> Option<Heads> {
        Some(Heads {
            many: self.config.value_heads,
            few: self.config.key_heads,
            copies: true,
        })
    }

    fn state(&self) -> Option<LayerKind> {
        Some(self.config.kind())
    }

    fn shard(&mut self, ranks: Ranks, _unit: i32) -> Result<()> {
        let config = self.config;
        let (own, shared) = (
            ranks.share(config.value_heads),
            ranks.share_of_few(config.key_heads),
        );
        let from =
            |base: i32, of: &Range<i32>, dim: i32| base + of.start * dim..base + of.end * dim;
        let (key_dim, value_dim) = (config.key_dim, config.value_dim);
        let channels = [
            from(0, &shared, key_dim),
            from(config.keys(), &shared, key_dim),
            from(2 * config.keys(), &own, value_dim),
        ];
        let values = [from(0, &own, value_dim)];
        let heads = std::slice::from_ref(&own);
        if let Some(joined) = &mut self.in_proj_qkv {
            joined.keep_outputs(&channels)?;
        }
        let keys = [from(0, &shared, key_dim)];
        for linear in [&mut self.q_proj, &mut self.k_proj].into_iter().flatten() {
            linear.keep_outputs(&keys)?;
        }
        if let Some(linear) = &mut self.v_proj {
            linear.keep_outputs(&values)?;
        }
        self.in_proj_z.keep_outputs(&values)?;
        self.in_proj_b.keep_outputs(heads)?;
        self.in_proj_a.keep_outputs(heads)?;
        if let Some(conv) = &mut self.conv1d {
            conv.keep(&channels)?;
        }
        if let Some(convs) = &mut self.convs {
            convs.keep(&[keys[0].clone(), keys[0].clone(), values[0].clone()])?;
        }
        self.decay.keep(&own)?;
        self.out_proj.keep_inputs(&values, ranks)?;
        self.config.key_heads = shared.end - shared.start;
        self.config.value_heads = own.end - own.start;
        Ok(())
    }
}
