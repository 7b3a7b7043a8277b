//! Qwen 3 VL (arXiv:2511.21631), the text tower: Qwen 3. Rotary sections for images change nothing for texts.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::Defaults;
use crate::decoders::pre_norm::Decoder;
use crate::families::qwen3;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 151_936,
    intermediate: 22_016,
    kv_heads: Some(32),
    head_dim: Some(128),
    max_positions: 128_000,
    theta: 500_000.0,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(&["sliding_window", "use_sliding_window", "max_window_layers"]);
    Decoder::new(&qwen3::config(c, &DEFAULTS)?)
}
