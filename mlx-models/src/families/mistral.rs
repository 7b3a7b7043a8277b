//! Mistral (arXiv:2310.06825): Llama with a sliding window on every layer.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
pub(crate) const DEFAULTS: Defaults = Defaults {
    intermediate: 14_336,
    kv_heads: Some(8),
    max_positions: 131_072,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    let window = keys::window(c, Some(4096))?;
    // transformers does not read `layer_types` in this family.
    config.layers = vec![keys::kind(window); config.layers.len()];
    Decoder::new(&config)
}
