//! Llama 1 to 3.3 (arXiv:2407.21783) and models of the same structure.

use mlx_core::Result;

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    Decoder::new(&config(c)?)
}

pub(crate) fn config(c: &Config) -> Result<DecoderConfig> {
    let mut config = keys::decoder(c, &Defaults::LLAMA)?;
    keys::attention_bias(c, &mut config)?;
    keys::mlp_bias(c, &mut config)?;
    Ok(config)
}
