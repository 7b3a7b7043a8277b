//! SmolLM 3: Llama with some layers without a rope.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 128_256,
    hidden: 2048,
    layers: 36,
    heads: 16,
    kv_heads: Some(4),
    max_positions: 32_768,
    theta: 2_000_000.0,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    keys::mlp_bias(c, &mut config)?;
    let n = config.layers.len();
    let has_rope = keys::has_rope(c, n, false)?;
    for (rope, has_rope) in config.ropes.iter_mut().zip(&has_rope) {
        *rope = rope.take().filter(|_| *has_rope);
    }
    let window = keys::window(c, None)?;
    let used = c.or("use_sliding_window", false)? && window.is_some();
    // Some files have this key of another family. transformers does not read it in this family.
    c.ignore(&["max_window_layers"]);
    config.layers = keys::layer_kinds(c, n, window, |layer| used && !has_rope[layer])?;
    Decoder::new(&config)
}
