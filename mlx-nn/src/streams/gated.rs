//! [`GatedStreams`]: streams that blocks read by a gate for every feature.

use mlx_core::{Array, DType, Result};

use super::{StreamWeights, StreamsConfig};
use crate::linear::Linear;
use crate::norm::RmsNorm;

/// What a block reads of the streams, and how its output is added to them (Qwen 4). With x' the streams, each normed by
/// itself, and n their number, a block reads the mean over streams of `sigmoid(up(silu(down(x') / n))) * x'`, and its
/// output is added to each stream times `2 * sigmoid(inject(x') / n)`. Fields are named as in published checkpoints.
#[derive(Clone, Debug)]
pub struct GatedStreams {
    /// Over the features of one stream; each has weights of its own.
    hc_norm: RmsNorm,
    input_mix_weight_down: Linear,
    input_mix_weight_up: Linear,
    block_inject_weight: Option<Linear>,
    config: StreamsConfig,
}

crate::module!(GatedStreams { hc_norm, input_mix_weight_down, input_mix_weight_up, block_inject_weight } plain { config });

impl GatedStreams {
    /// Gates without values. Only `hidden`, `streams`, `norm_eps` and `magnitude` of the config count. `rank`: the
    /// features between the two projections. `writes`: whether a block's output is added to the streams.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(config: StreamsConfig, rank: i32, writes: bool) -> Result<Self> {
        let all = config.streams * config.hidden;
        Ok(Self {
            hc_norm: RmsNorm::empty(all, config.norm_eps)?,
            input_mix_weight_down: Linear::empty(all, rank, false)?,
            input_mix_weight_up: Linear::empty(rank, all, false)?,
            block_inject_weight: match writes {
                true => Some(Linear::empty(all, config.streams, false)?),
                false => None,
            },
            config,
        })
    }

    /// The block's input `[1, T, E]` from the streams `[1, T, n E]`, and the weights by which its output is added to
    /// them; `None` if it is not added.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn read(&self, x: &Array) -> Result<(Array, Option<StreamWeights>)> {
        let c = self.config;
        let n = c.streams as f32;
        let normed = self.hc_norm.by_group(x, c.streams)?;
        let (down, inject) = match &self.block_inject_weight {
            Some(inject) => {
                let both = [&self.input_mix_weight_down, inject];
                let [down, inject] = Linear::forward_all(both, &normed)?;
                (down, Some(inject.astype(DType::F32)?))
            }
            None => (self.input_mix_weight_down.forward(&normed)?, None),
        };
        let opened = down.divide(n)?.silu()?;
        let gates = self.input_mix_weight_up.forward(&opened)?.sigmoid()?;
        let read = c.mean(&gates.multiply(&normed)?)?;
        let weights = match inject {
            Some(inject) => Some(StreamWeights {
                post: inject.divide(n)?.sigmoid()?.multiply(c.magnitude)?,
                mixed: None,
                config: c,
            }),
            None => None,
        };
        Ok((read, weights))
    }
}
