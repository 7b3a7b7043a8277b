//! Jais 2: layer norms with biases, an MLP without a gate whose activation is a squared ReLU,
//! biases everywhere.

use mlx_core::Result;
use mlx_nn::NormKind;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 150_272,
    hidden: 3328,
    intermediate: 26_624,
    heads: 26,
    max_positions: 8192,
    norm_eps_key: "layer_norm_eps",
    norm_eps: 1e-5,
    activation: "relu2",
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.norm.kind = NormKind::layer(true);
    let bias = c.or("attention_bias", true)?;
    config.attention.qkv_bias = bias;
    config.attention.out_bias = bias;
    keys::ungated(&mut config);
    let bias = c.or("mlp_bias", true)?;
    keys::set_mlp_bias(&mut config, bias);
    Decoder::new(&config)
}
