//! [`ChannelDelta`]: a gated delta rule with a decay for each channel of a key (Kimi Delta Attention,
//! arXiv:2510.26692).

use mlx_core::{Array, Result, fast::RaggedDelta, ops::concat};

use crate::activation::Activation;
use crate::cache::LayerKind;
use crate::conv::JointConv;
use crate::decay::Decay;
use crate::delta::{CONV, DELTA, DeltaConfig};
use crate::linear::Linear;
use crate::norm::RmsNorm;
use crate::shard::{Heads, Ranks, Shard};
use crate::step::Step;

/// Sizes of a [`ChannelDelta`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChannelDeltaConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Heads of queries, keys and values.
    pub heads: i32,
    /// Features of a query, key or value, and those between the two projections of a gate.
    pub head_dim: i32,
    /// Taps of the convolution, at least 2.
    pub taps: i32,
    /// The activation after the convolution.
    pub activation: Activation,
    /// Epsilon of the output's norm.
    pub norm_eps: f32,
    /// Whether the decays and the gate are the outputs of one projection each (Ling 3), not of two.
    pub full: bool,
    /// Whether the rates of decays are `[heads]` in files, not `[1, 1, heads, 1]`.
    pub flat_rates: bool,
    /// The lower bound of the logarithm of a decay, which is then computed by a sigmoid.
    pub bound: Option<f32>,
}

impl ChannelDeltaConfig {
    /// The rule with its sizes.
    fn delta(&self) -> DeltaConfig {
        DeltaConfig {
            hidden: self.hidden,
            key_heads: self.heads,
            value_heads: self.heads,
            key_dim: self.head_dim,
            value_dim: self.head_dim,
            taps: self.taps,
            activation: self.activation,
            norm_eps: self.norm_eps,
            output_gate: Activation::Silu,
            most: 1.0,
            apart: true,
        }
    }

    /// The state of a row: the last inputs of the convolution, and a matrix in F32 for each head.
    pub fn kind(&self) -> LayerKind {
        self.delta().kind()
    }
}

/// A recurrent layer, used in place of attention: projections, a causal convolution of queries,
/// keys and values, the gated delta rule, a norm, a gate, and a projection back. The decays (`f`)
/// and the gate (`g`) are the outputs of two projections each, with few features between the two.
#[derive(Clone, Debug)]
pub struct ChannelDelta {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    f_proj: Option<Linear>,
    f_a_proj: Option<Linear>,
    f_b_proj: Option<Linear>,
    b_proj: Linear,
    g_proj: Option<Linear>,
    g_a_proj: Option<Linear>,
    g_b_proj: Option<Linear>,
    convs: JointConv,
    decay: Decay,
    o_norm: RmsNorm,
    o_proj: Linear,
    config: ChannelDeltaConfig,
}

crate::module!(ChannelDelta { q_proj, k_proj, v_proj, f_proj, f_a_proj, f_b_proj, b_proj, g_proj, g_a_proj, g_b_proj, o_norm,
                              o_proj }
               flat { convs, decay } plain { config });

/// The names of the convolutions of queries, keys and values.
const CONVS: [&str; 3] = ["q_conv.conv", "k_conv.conv", "v_conv.conv"];

impl ChannelDelta {
    /// A layer without values.
    ///
    /// # Errors
    /// There are fewer than 2 taps.
    pub fn empty(config: ChannelDeltaConfig) -> Result<Self> {
        config.delta().check()?;
        let ChannelDeltaConfig {
            hidden,
            heads,
            head_dim,
            ..
        } = config;
        let width = heads * head_dim;
        let linear = |inputs, outputs| Linear::empty(inputs, outputs, false);
        let only =
            |wanted: bool, inputs, outputs| wanted.then(|| linear(inputs, outputs)).transpose();
        let (full, low) = (config.full, !config.full);
        let decay = match config.flat_rates {
            true => Decay::empty(&[heads], width)?,
            false => Decay::empty(&[1, 1, heads, 1], width)?,
        };
        Ok(Self {
            q_proj: linear(hidden, width)?,
            k_proj: linear(hidden, width)?,
            v_proj: linear(hidden, width)?,
            f_proj: only(full, hidden, width)?,
            f_a_proj: only(low, hidden, head_dim)?,
            f_b_proj: only(low, head_dim, width)?,
            b_proj: linear(hidden, heads)?,
            g_proj: only(full, hidden, width)?,
            g_a_proj: only(low, hidden, head_dim)?,
            g_b_proj: only(low, head_dim, width)?,
            convs: JointConv::empty(
                &CONVS.map(|name| (name, width)),
                config.taps,
                config.activation,
            )?,
            decay: decay.bounded(config.bound),
            o_norm: RmsNorm::empty(head_dim, config.norm_eps)?,
            o_proj: linear(width, hidden)?,
            config,
        })
    }

    /// `x: [1, T, E] -> [1, T, E]`, reading and writing layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let projections = [
            &self.q_proj,
            &self.k_proj,
            &self.v_proj,
            first(&self.f_proj, &self.f_a_proj),
            &self.b_proj,
            first(&self.g_proj, &self.g_a_proj),
        ];
        let [q, k, v, f, b, g] = Linear::forward_all(projections, x)?;
        let inputs = concat(&[q, k, v], -1)?;
        let qkv = self.convs.forward(&inputs, layer, CONV, step)?;
        let f = second(&self.f_b_proj, f)?;
        let y = step.gated_delta(
            layer,
            DELTA,
            &RaggedDelta {
                qkv: &qkv,
                a: &f,
                b: &b,
                rate: self.decay.rate(),
                bias: self.decay.bias(),
                key_heads: self.config.heads,
                key_dim: self.config.head_dim,
                most: 1.0,
                bound: self.decay.bound(),
            },
        )?;
        let [rows, tokens, width] = y.dims()?;
        let heads = [rows, tokens, self.config.heads, self.config.head_dim];
        let normed = self.o_norm.forward(&y.reshape(&heads)?)?;
        // The norm's weight may be F32 in a model of 16 bits.
        let normed = normed.astype(x.dtype())?.reshape(&[rows, tokens, width])?;
        let gate = second(&self.g_b_proj, g)?.sigmoid()?;
        self.o_proj.forward(&normed.multiply(gate)?)
    }
}

impl Shard for ChannelDelta {
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
        let (own, dim) = (ranks.share(self.config.heads), self.config.head_dim);
        let features = own.start * dim..own.end * dim;
        let rows = std::slice::from_ref(&features);
        let second = [
            &mut self.f_proj,
            &mut self.f_b_proj,
            &mut self.g_proj,
            &mut self.g_b_proj,
        ];
        let first = [&mut self.q_proj, &mut self.k_proj, &mut self.v_proj];
        for linear in first.into_iter().chain(second.into_iter().flatten()) {
            linear.keep_outputs(rows)?;
        }
        self.b_proj.keep_outputs(std::slice::from_ref(&own))?;
        let parts = [features.clone(), features.clone(), features.clone()];
        self.convs.keep(&parts)?;
        self.decay.keep(&own)?;
        self.o_proj.keep_inputs(rows, ranks)?;
        self.config.heads = own.end - own.start;
        Ok(())
    }
}

/// The projection that reads the layer's input.
fn first<'a>(whole: &'a Option<Linear>, low: &'a Option<Linear>) -> &'a Linear {
    let linear = whole.as_ref().or(low.as_ref());
    linear.expect("a gate has one projection or two")
}

/// The output of the second projection, if there are two.
fn second(low: &Option<Linear>, x: Array) -> Result<Array> {
    match low {
        Some(linear) => linear.forward(&x),
        None => Ok(x),
    }
}
