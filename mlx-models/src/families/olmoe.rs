//! OLMoE (arXiv:2409.02060): experts in every layer, norms over all heads of q and k at once.

use mlx_core::Result;

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::families::olmo2;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 50_304,
    hidden: 2048,
    intermediate: 2048,
    layers: 16,
    heads: 16,
    max_positions: 4096,
    norm_eps: 1e-5,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 2048,
    n_experts: 64,
    top_k: 8,
    norm_topk_prob: None,
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = olmo2::config(c, &DEFAULTS)?;
    config.attention.qkv_clip = clip(c)?;
    let experts = keys::experts(c, config.hidden, &EXPERTS)?;
    config.feed_forward.fill(MlpConfig::Experts(experts));
    Decoder::new(&config)
}

/// The bound to which queries, keys and values are clipped, if the config has one.
///
/// # Errors
/// `clip_qkv` is not a positive number.
pub(crate) fn clip(c: &Config) -> Result<Option<f32>> {
    match c.value("clip_qkv") {
        Some(_) => Ok(Some(c.positive("clip_qkv", None)? as f32)),
        None => Ok(None),
    }
}
