//! Llama 1 to 3.3 (arXiv:2407.21783) and what is built like it.

use mlx_core::Result;

use crate::config::Config;
use crate::config::rope::Dialect;
use crate::decoder::{Decoder, DecoderConfig, MlpConfig};
use crate::family::{self, Defaults};

/// What transformers assumes about absent keys.
const DEFAULTS: Defaults = Defaults {
    vocab: 32_000,
    hidden: 4096,
    intermediate: 11_008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    max_positions: 2048,
    norm_eps: 1e-6,
    rope: Dialect::Plain,
};

pub(crate) fn load(c: &Config) -> Result<Decoder> {
    Decoder::new(&config(c)?)
}

fn config(c: &Config) -> Result<DecoderConfig> {
    let mut config = family::decoder(c, &DEFAULTS)?;
    let bias = c.or("attention_bias", false)?;
    config.qkv_bias = bias;
    config.out_bias = bias;
    let mlp_bias = c.or("mlp_bias", false)?;
    for mlp in &mut config.mlps {
        if let MlpConfig::Dense { bias, .. } = mlp {
            *bias = mlp_bias;
        }
    }
    Ok(config)
}
