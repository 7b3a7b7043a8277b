//! IQuest-Coder V1: Llama with its own sizes.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 76_800,
    hidden: 5120,
    intermediate: 27_648,
    layers: 80,
    heads: 40,
    kv_heads: Some(8),
    head_dim: Some(128),
    max_positions: 131_072,
    norm_eps: 1e-5,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    // transformers refuses these keys too. No published file has them.
    if c.value("clip_qkv").is_some() {
        return Err(c.unsupported("clip_qkv of iquestcoder is not supported"));
    }
    if c.or("use_sliding_window", false)? {
        return Err(c.unsupported("use_sliding_window of iquestcoder is not supported"));
    }
    c.ignore(&["sliding_window", "max_window_layers"]);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    keys::mlp_bias(c, &mut config)?;
    Decoder::new(&config)
}
