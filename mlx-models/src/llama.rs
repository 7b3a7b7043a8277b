//! Llama 1 to 3.3 (arXiv:2407.21783) and what is built like it.

use mlx_core::Result;

use crate::config::Config;
use crate::decoder::{Decoder, DecoderConfig, MlpConfig};
use crate::family;

pub(crate) fn load(c: &Config) -> Result<Decoder> {
    Decoder::new(&config(c)?)
}

fn config(c: &Config) -> Result<DecoderConfig> {
    let mut config = family::decoder(c, None)?;
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
