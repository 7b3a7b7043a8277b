//! The feed-forward part of a layer.

use mlx_core::{Array, Result};

use crate::Module;
use crate::activation::{Activation, Xielu};
use crate::experts::{ClampedGate, ExpertsMlp};
use crate::linear::Linear;
use crate::norm::RmsNorm;
use crate::normed::Input;
use crate::shard::{Heads, Ranks, Shard, Spread};

/// `down(activation(gate(x)) * up(x))` (Shazeer, arXiv:2002.05202).
#[derive(Clone, Debug)]
pub struct GatedMlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    ffn_sub_norm: Option<RmsNorm>,
    activation: Activation,
    multipliers: Option<[f32; 2]>,
    clamp: Option<ClampedGate>,
    cutoff: Option<f32>,
    /// The features inside, if they are spread over ranks.
    spread: Option<Spread>,
}

crate::module!(GatedMlp { gate_proj, up_proj, down_proj, ffn_sub_norm }
               plain { activation, multipliers, clamp, cutoff, spread });

impl GatedMlp {
    /// An MLP over `hidden` features through `intermediate` ones, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(
        hidden: i32,
        intermediate: i32,
        bias: bool,
        activation: Activation,
    ) -> Result<Self> {
        Ok(Self {
            gate_proj: Linear::empty(hidden, intermediate, bias)?,
            up_proj: Linear::empty(hidden, intermediate, bias)?,
            down_proj: Linear::empty(intermediate, hidden, bias)?,
            ffn_sub_norm: None,
            activation,
            multipliers: None,
            clamp: None,
            cutoff: None,
            spread: None,
        })
    }

    /// The MLP with an RMS norm of this epsilon before its last projection.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn with_sub_norm(self, eps: Option<f32>) -> Result<Self> {
        let intermediate = self.down_proj.weight().shape()[1];
        let ffn_sub_norm = eps
            .map(|eps| RmsNorm::empty(intermediate, eps))
            .transpose()?;
        Ok(Self {
            ffn_sub_norm,
            ..self
        })
    }

    /// The MLP with a factor for the input of the activation, and a factor for the output.
    #[must_use]
    pub fn with_multipliers(self, multipliers: Option<[f32; 2]>) -> Self {
        Self {
            multipliers,
            ..self
        }
    }

    /// The MLP with a gate that replaces the activation's.
    #[must_use]
    pub fn with_clamp(self, clamp: Option<ClampedGate>) -> Self {
        Self { clamp, ..self }
    }

    /// The MLP with gates of which most become zero: only the parts of a token's gates above their mean by so many of their
    /// standard deviations stay (Gemma 3n).
    #[must_use]
    pub fn with_cutoff(self, cutoff: Option<f32>) -> Self {
        Self { cutoff, ..self }
    }

    /// The gates above the cutoff, less the cutoff.
    fn cut_off(&self, gate: &Array, cutoff: f32) -> Result<Array> {
        let [mean, deviation] = match self.spread {
            Some(spread) => spread.moments(gate)?,
            None => [gate.mean(-1, true)?, gate.std(-1, true)?],
        };
        let least = deviation.multiply(cutoff)?.add(&mean)?;
        gate.subtract(&least)?.maximum(0.0)
    }

    /// `[.., E] -> [.., E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward<'a>(&self, x: impl Into<Input<'a>>) -> Result<Array> {
        let x = x.into();
        if let Some(cutoff) = self.cutoff {
            let [gate, up] = Linear::forward_all([&self.gate_proj, &self.up_proj], x)?;
            let gate = self.cut_off(&gate, cutoff)?;
            return self.down_proj.forward(&self.activation.gated(&gate, &up)?);
        }
        if let Some(clamp) = self.clamp {
            let rounded = match clamp.rounds {
                true => Some(clamp.input(x.array()?)?),
                false => None,
            };
            let x = rounded.as_ref().map_or(x, Input::from);
            let [gate, up] = Linear::forward_all([&self.gate_proj, &self.up_proj], x)?;
            return self.down_proj.forward(&clamp.inside(&gate, &up, None)?);
        }
        if let Some([inside, outside]) = self.multipliers {
            let [gate, up] = Linear::forward_all([&self.gate_proj, &self.up_proj], x)?;
            let inner = self.activation.gated(&gate.multiply(inside)?, &up)?;
            return self.down_proj.forward(&inner)?.multiply(outside);
        }
        let inner = match self.activation.gate() {
            Some(gate) => self.gate_proj.gated(&self.up_proj, gate, x)?,
            None => {
                let [gate, up] = Linear::forward_all([&self.gate_proj, &self.up_proj], x)?;
                self.activation.gated(&gate, &up)?
            }
        };
        let inner = match &self.ffn_sub_norm {
            Some(norm) => norm.forward(&inner)?,
            None => inner,
        };
        self.down_proj.forward(&inner)
    }
}

impl Shard for GatedMlp {
    fn heads(&self) -> Option<Heads> {
        None
    }

    fn shard(&mut self, ranks: Ranks, unit: i32) -> Result<()> {
        let whole = self.down_proj.weight().shape()[1];
        let unit = self.clamp.map_or(unit, |clamp| clamp.unit(unit));
        let share = ranks.share_of_blocks(whole, unit);
        if let Some(clamp) = self.clamp {
            clamp.check_share(&share, ranks)?;
        }
        let own = std::slice::from_ref(&share);
        self.gate_proj.keep_outputs(own)?;
        self.up_proj.keep_outputs(own)?;
        self.down_proj.keep_inputs(own, ranks)?;
        let spread = Spread {
            ranks,
            whole,
            copies: 1,
        };
        self.spread = Some(spread);
        match &mut self.ffn_sub_norm {
            Some(norm) => norm.keep(share, Some(spread)),
            None => Ok(()),
        }
    }
}

/// `down(activation(up(x)))`
#[derive(Clone, Debug)]
pub struct PlainMlp {
    up_proj: Linear,
    down_proj: Linear,
    act_fn: Option<Xielu>,
    activation: Activation,
    /// The gate of neighbouring outputs of `up_proj`.
    pairs: Option<ClampedGate>,
}

crate::module!(PlainMlp { up_proj, down_proj, act_fn } plain { activation, pairs });

impl PlainMlp {
    /// An MLP over `hidden` features through `intermediate` ones, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(
        hidden: i32,
        intermediate: i32,
        bias: bool,
        activation: Activation,
    ) -> Result<Self> {
        Ok(Self {
            up_proj: Linear::empty(hidden, intermediate, bias)?,
            down_proj: Linear::empty(intermediate, hidden, bias)?,
            act_fn: None,
            activation,
            pairs: None,
        })
    }

    /// An MLP in which outputs of the first projection alternate: gate, what the gate multiplies, gate, and so on (Phi 3
    /// small). It has twice `intermediate` outputs.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn paired(hidden: i32, intermediate: i32, bias: bool, gate: ClampedGate) -> Result<Self> {
        Ok(Self {
            up_proj: Linear::empty(hidden, 2 * intermediate, bias)?,
            pairs: Some(gate),
            ..Self::empty(hidden, intermediate, bias, Activation::Silu)?
        })
    }

    /// The MLP with an activation that has parameters.
    #[must_use]
    pub fn with_xielu(self, act_fn: Option<Xielu>) -> Self {
        Self { act_fn, ..self }
    }

    /// `[.., E] -> [.., E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward<'a>(&self, x: impl Into<Input<'a>>) -> Result<Array> {
        let up = self.up_proj.forward(x)?;
        let inner = match (&self.act_fn, self.pairs) {
            (_, Some(gate)) => {
                let [b, l, width] = up.dims()?;
                let pairs = up.reshape(&[b, l, width / 2, 2])?;
                let part = |at| pairs.slice_axis(-1, at, at + 1)?.squeeze(-1);
                gate.gated(&part(0)?, &part(1)?)?
            }
            (Some(xielu), None) => xielu.forward(&up)?,
            (None, None) => self.activation.at_once(&up)?,
        };
        self.down_proj.forward(&inner)
    }
}

impl Shard for PlainMlp {
    fn heads(&self) -> Option<Heads> {
        None
    }

    fn shard(&mut self, ranks: Ranks, unit: i32) -> Result<()> {
        let share = ranks.share_of_blocks(self.down_proj.weight().shape()[1], unit);
        let each = if self.pairs.is_some() { 2 } else { 1 };
        let outputs = share.start * each..share.end * each;
        self.up_proj.keep_outputs(std::slice::from_ref(&outputs))?;
        self.down_proj
            .keep_inputs(std::slice::from_ref(&share), ranks)
    }
}

/// The feed-forward half of a layer.
#[derive(Clone, Debug, Module)]
pub enum FeedForward {
    /// One gated MLP for every token.
    Dense(Box<GatedMlp>),
    /// One MLP without a gate for every token.
    Plain(Box<PlainMlp>),
    /// A router and experts.
    Experts(Box<ExpertsMlp>),
}

impl FeedForward {
    /// `[1, T, E] -> [1, T, E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward<'a>(&self, x: impl Into<Input<'a>>) -> Result<Array> {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Plain(mlp) => mlp.forward(x),
            Self::Experts(experts) => experts.forward(x),
        }
    }

    /// Leaves this rank's part of an MLP.
    pub(crate) fn shard(&mut self, ranks: Ranks, unit: i32) -> Result<()> {
        match self {
            Self::Dense(mlp) => mlp.shard(ranks, unit),
            Self::Plain(mlp) => mlp.shard(ranks, unit),
            Self::Experts(experts) => experts.shard(ranks, unit),
        }
    }
}
