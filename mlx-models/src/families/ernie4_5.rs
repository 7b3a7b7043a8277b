//! ERNIE 4.5, dense: Llama with a rope that pairs neighbouring features, and one config key for all biases.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 103_424,
    hidden: 1024,
    intermediate: 3072,
    layers: 18,
    heads: 16,
    kv_heads: Some(2),
    head_dim: Some(128),
    max_positions: 131_072,
    norm_eps: 1e-5,
    theta: 500_000.0,
    interleaved: true,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    let bias = c.or("use_bias", false)?;
    (config.attention.qkv_bias, config.attention.out_bias) = (bias, bias);
    keys::set_mlp_bias(&mut config, bias);
    c.ignore(&["compression_ratio"]);
    Decoder::new(&config)
}
