//! [`Recurrence`]: the layer that mixes tokens in place of attention.

use mlx_core::{Array, Result};

use crate::Module;
use crate::cache::LayerKind;
use crate::delta::{DeltaConfig, GatedDeltaNet};
use crate::delta_channels::{ChannelDelta, ChannelDeltaConfig};
use crate::mamba::{Mamba, MambaConfig};
use crate::projected_scan::{ProjectedScan, ProjectedScanConfig};
use crate::selective::{SelectiveConfig, SelectiveScan};
use crate::short_conv::{ShortConv, ShortConvConfig};
use crate::step::Step;

/// Sizes and options of a [`Recurrence`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RecurrenceConfig {
    /// A gated delta rule.
    Delta(DeltaConfig),
    /// A gated delta rule in which each channel has a decay of its own.
    Channels(ChannelDeltaConfig),
    /// A scan of Mamba 2.
    Mamba(MambaConfig),
    /// A scan of Mamba 2 whose steps, keys and queries are projected from its values.
    Projected(ProjectedScanConfig),
    /// A scan of the first Mamba.
    Selective(SelectiveConfig),
    /// A short convolution.
    ShortConv(ShortConvConfig),
}

impl RecurrenceConfig {
    /// The layer's state of a row.
    pub fn kind(&self) -> LayerKind {
        match self {
            Self::Delta(config) => config.kind(),
            Self::Channels(config) => config.kind(),
            Self::Mamba(config) => config.kind(),
            Self::Projected(config) => config.kind(),
            Self::Selective(config) => config.kind(),
            Self::ShortConv(config) => config.kind(),
        }
    }
}

/// A layer that mixes tokens by a state of a fixed size.
#[derive(Clone, Debug, Module)]
pub enum Recurrence {
    /// A gated delta rule.
    Delta(Box<GatedDeltaNet>),
    /// A gated delta rule in which each channel has a decay of its own.
    Channels(Box<ChannelDelta>),
    /// A scan of Mamba 2.
    Mamba(Box<Mamba>),
    /// A scan of Mamba 2 whose steps, keys and queries are projected from its values.
    Projected(Box<ProjectedScan>),
    /// A scan of the first Mamba.
    Selective(Box<SelectiveScan>),
    /// A short convolution.
    ShortConv(Box<ShortConv>),
}

impl Recurrence {
    /// A layer without values.
    ///
    /// # Errors
    /// The sizes do not fit each other.
    pub fn empty(config: RecurrenceConfig) -> Result<Self> {
        Ok(match config {
            RecurrenceConfig::Delta(config) => Self::Delta(Box::new(GatedDeltaNet::empty(config)?)),
            RecurrenceConfig::Channels(config) => {
                Self::Channels(Box::new(ChannelDelta::empty(config)?))
            }
            RecurrenceConfig::Mamba(config) => Self::Mamba(Box::new(Mamba::empty(config)?)),
            RecurrenceConfig::Projected(config) => {
                Self::Projected(Box::new(ProjectedScan::empty(config)?))
            }
            RecurrenceConfig::Selective(config) => {
                Self::Selective(Box::new(SelectiveScan::empty(config)?))
            }
            RecurrenceConfig::ShortConv(config) => {
                Self::ShortConv(Box::new(ShortConv::empty(config)?))
            }
        })
    }

    /// `x: [1, T, E] -> [1, T, E]`, reading and writing layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        match self {
            Self::Delta(delta) => delta.forward(x, layer, step),
            Self::Channels(delta) => delta.forward(x, layer, step),
            Self::Mamba(mamba) => mamba.forward(x, layer, step),
            Self::Projected(scan) => scan.forward(x, layer, step),
            Self::Selective(scan) => scan.forward(x, layer, step),
            Self::ShortConv(conv) => conv.forward(x, layer, step),
        }
    }
}
