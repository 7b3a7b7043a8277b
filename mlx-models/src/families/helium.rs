//! Helium 1: Llama with a rope that pairs neighbouring features.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 48_000,
    hidden: 2560,
    intermediate: 7040,
    layers: 24,
    heads: 20,
    kv_heads: Some(20),
    head_dim: Some(128),
    max_positions: 4096,
    norm_eps: 1e-8,
    theta: 100_000.0,
    interleaved: true,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.attention.qkv_bias = c.or("attention_bias", false)?;
    keys::mlp_bias(c, &mut config)?;
    Decoder::new(&config)
}
