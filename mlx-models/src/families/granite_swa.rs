//! Granite 4.1 with windows: Granite with sinks in every layer, a window on three of four, and a
//! rope base for each layer.

use mlx_core::Result;

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::families::granite;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 100_352,
    hidden: 2560,
    intermediate: 8192,
    layers: 24,
    heads: 20,
    kv_heads: Some(4),
    max_positions: 8192,
    norm_eps: 1e-5,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = config(c, &DEFAULTS)?;
    keys::mlp_bias(c, &mut config)?;
    Decoder::new(&config)
}

/// The decoder of a config, with what the Granite families with windows have in common.
pub(crate) fn config(c: &Config, defaults: &Defaults) -> Result<DecoderConfig> {
    let mut config = keys::decoder(c, defaults)?;
    keys::attention_bias(c, &mut config)?;
    granite::multipliers(c, &mut config)?;
    config.attention.sinks = true;
    let window = keys::window(c, Some(128))?;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |layer| !layer.is_multiple_of(4))?;
    keys::rope_bases(c, &mut config)?;
    Ok(config)
}
