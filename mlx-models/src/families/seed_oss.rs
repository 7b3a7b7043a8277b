//! Seed-OSS: Llama with biases on q, k and v only.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 155_136,
    intermediate: 27_648,
    layers: 64,
    heads: 80,
    kv_heads: Some(8),
    head_dim: Some(128),
    max_positions: 524_288,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.attention.qkv_bias = c.or("attention_bias", true)?;
    config.attention.out_bias = c.or("attention_out_bias", false)?;
    keys::mlp_bias(c, &mut config)?;
    c.ignore(&["residual_dropout"]);
    Decoder::new(&config)
}
