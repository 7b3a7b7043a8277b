//! Qwen 3.5 and 3.6 with a mixture of experts and a shared expert in each layer.

use mlx_core::Result;
use mlx_nn::{ExpertsConfig, SharedExpert};

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::config::rope::Dialect;
use crate::config::{Config, Source};
use crate::families::qwen3_5::{self, Hybrid};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 248_320,
    hidden: 2048,
    intermediate: 512,
    layers: 40,
    heads: 16,
    kv_heads: Some(2),
    head_dim: Some(256),
    max_positions: 32_768,
    rope: Some(Dialect::Partial(0.25)),
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 512,
    n_experts: 256,
    top_k: 8,
    norm_topk_prob: Some(true),
};

pub(crate) fn load(source: &Source<'_>) -> Result<Hybrid> {
    let c = source.config;
    let mut config = qwen3_5::config(c, &DEFAULTS)?;
    // The weights of the chosen experts always sum to 1.
    c.ignore(&["norm_topk_prob"]);
    let experts = with_shared(c, keys::experts(c, config.hidden, &EXPERTS)?)?;
    config.feed_forward.fill(MlpConfig::Experts(experts));
    qwen3_5::hybrid(source, &config)
}

/// Adds a shared expert with a gate to the experts.
pub(crate) fn with_shared(c: &Config, experts: ExpertsConfig) -> Result<ExpertsConfig> {
    Ok(ExpertsConfig {
        shared: Some(SharedExpert {
            intermediate: c.size("shared_expert_intermediate_size", Some(512))?,
            bias: false,
            gate: true,
            clamp: None,
        }),
        ..experts
    })
}
