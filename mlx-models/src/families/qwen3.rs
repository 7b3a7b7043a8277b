//! Qwen 3 (arXiv:2505.09388): norms on q and k, a head size of its own, no biases.

use mlx_core::Result;
use mlx_nn::QkNorm;

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::families::qwen2;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 151_936,
    intermediate: 22_016,
    kv_heads: Some(32),
    head_dim: Some(128),
    max_positions: 32_768,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = config(c, &DEFAULTS)?;
    config.layers = qwen2::windows(c, config.layers.len())?;
    Decoder::new(&config)
}

/// A decoder with norms on q and k, without windows.
pub(crate) fn config(c: &Config, defaults: &Defaults) -> Result<DecoderConfig> {
    let mut config = keys::decoder(c, defaults)?;
    keys::attention_bias(c, &mut config)?;
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    Ok(config)
}
