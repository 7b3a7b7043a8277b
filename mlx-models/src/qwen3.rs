//! Qwen 3 (arXiv:2505.09388): norms on q and k, a head size of its own, no biases.

use mlx_core::Result;

use crate::config::Config;
use crate::decoder::{Decoder, DecoderConfig};
use crate::{family, qwen2};

pub(crate) fn load(c: &Config) -> Result<Decoder> {
    Decoder::new(&config(c)?)
}

pub(crate) fn config(c: &Config) -> Result<DecoderConfig> {
    let mut config = family::decoder(c, Some(128))?;
    let bias = c.or("attention_bias", false)?;
    config.qkv_bias = bias;
    config.out_bias = bias;
    config.qk_norm = true;
    config.layers = qwen2::windows(c, config.layers.len())?;
    Ok(config)
}
