//! Youtu-LLM: latent attention of DeepSeek-V3 beside dense MLPs.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults, LatentDefaults};
use crate::decoders::pre_norm::Decoder;
use crate::families::deepseek_v3;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 128_256,
    hidden: 2048,
    intermediate: 6144,
    heads: 16,
    max_positions: 131_072,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    // Keys of published files that transformers ignores.
    c.ignore(&[
        "embedding_initializer_range",
        "mlp_bias",
        "rope_traditional",
    ]);
    let defaults = deepseek_v3::interleaved(c, &DEFAULTS)?;
    Decoder::new(&keys::latent(source, &defaults, &LatentDefaults::DEEPSEEK)?)
}
