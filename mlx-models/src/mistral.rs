//! Mistral (arXiv:2310.06825): Llama with a sliding window on every layer.

use mlx_core::Result;

use crate::config::Config;
use crate::decoder::Decoder;
use crate::family::{self, Defaults};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    intermediate: 14_336,
    kv_heads: Some(8),
    max_positions: 131_072,
    ..Defaults::LLAMA
};

pub(crate) fn load(c: &Config) -> Result<Decoder> {
    let mut config = family::decoder(c, &DEFAULTS)?;
    let window = family::window(c, Some(4096))?;
    // transformers does not read layer_types here.
    config.layers = vec![family::kind(window); config.layers.len()];
    Decoder::new(&config)
}
