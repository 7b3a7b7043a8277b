//! [`ShortConv`]: a convolution over a few tokens, between two gates (LFM2).

use mlx_core::{Array, Result};

use crate::cache::{LayerKind, RecurrentShape, StatePart};
use crate::conv::CausalConv;
use crate::linear::Linear;
use crate::shard::{Heads, Ranks, Shard};
use crate::step::Step;

/// Sizes of a [`ShortConv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConvConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Taps of the convolution, at least 2.
    pub taps: i32,
    /// Bias on the convolution and both projections.
    pub bias: bool,
}

impl ShortConvConfig {
    /// The state of a row: the last inputs of the convolution.
    pub fn kind(&self) -> LayerKind {
        let window = StatePart::Window {
            name: "conv",
            len: self.taps - 1,
            width: self.hidden,
        };
        LayerKind::Recurrent(RecurrentShape::new(&[window]).with_slots())
    }
}

/// `out(c * conv(b * x))`, where `b`, `c` and `x` are the three parts of the output of `in_proj`,
/// in this order.
#[derive(Clone, Debug)]
pub struct ShortConv {
    conv: CausalConv,
    in_proj: Linear,
    out_proj: Linear,
    config: ShortConvConfig,
    /// The channels that this rank has.
    channels: i32,
}

crate::module!(ShortConv { conv, in_proj, out_proj } plain { config, channels });

impl ShortConv {
    /// A layer without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(config: ShortConvConfig) -> Result<Self> {
        let ShortConvConfig { hidden, taps, bias } = config;
        Ok(Self {
            conv: CausalConv::empty(hidden, taps, bias, None)?,
            in_proj: Linear::empty(hidden, 3 * hidden, bias)?,
            out_proj: Linear::empty(hidden, hidden, bias)?,
            channels: hidden,
            config,
        })
    }

    /// `x: [1, T, E] -> [1, T, E]`, reading and writing layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let parts = self.in_proj.forward(x)?;
        let hidden = parts.dim(-1)? / 3;
        let part = |at: i32| parts.slice_axis(-1, at * hidden, (at + 1) * hidden);
        let inputs = part(0)?.multiply(part(2)?)?;
        let mixed = self.conv.forward(&inputs, layer, 0, step)?;
        self.out_proj.forward(&part(1)?.multiply(&mixed)?)
    }
}

impl Shard for ShortConv {
    fn heads(&self) -> Option<Heads> {
        Some(Heads {
            many: self.channels,
            few: self.channels,
            copies: false,
        })
    }

    fn state(&self) -> Option<LayerKind> {
        let own = ShortConvConfig {
            hidden: self.channels,
            ..self.config
        };
        Some(own.kind())
    }

    fn shard(&mut self, ranks: Ranks, _unit: i32) -> Result<()> {
        let hidden = self.config.hidden;
        let own = ranks.share(hidden);
        let part = |at: i32| at * hidden + own.start..at * hidden + own.end;
        self.in_proj.keep_outputs(&[part(0), part(1), part(2)])?;
        self.conv.keep(&[part(0)])?;
        self.out_proj.keep_inputs(&[part(0)], ranks)?;
        self.channels = own.end - own.start;
        Ok(())
    }
}
