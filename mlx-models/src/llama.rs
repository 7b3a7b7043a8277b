//! Llama 1 to 3.3 (arXiv:2407.21783) and models of the same structure.

use mlx_core::Result;

use crate::config::Config;
use crate::decoder::{Decoder, DecoderConfig};
use crate::family::{self, Defaults};

pub(crate) fn load(c: &Config) -> Result<Decoder> {
    Decoder::new(&config(c)?)
}

pub(crate) fn config(c: &Config) -> Result<DecoderConfig> {
    let mut config = family::decoder(c, &Defaults::LLAMA)?;
    family::attention_bias(c, &mut config)?;
    family::mlp_bias(c, &mut config)?;
    Ok(config)
}
