//! GLM 4.5 to 4.7: experts of DeepSeek's kind, rope on half of each head, norms on q and k in the largest.

use mlx_core::Result;
use mlx_nn::{QkNorm, Rules};

use crate::config::Source;
use crate::config::keys::{self, DeepSeekExperts, Defaults, ExpertsDefaults};
use crate::config::rope::Dialect;
use crate::families::deepseek_v3;

/// transformers' defaults for keys that a config leaves out.
pub(crate) const DEFAULTS: Defaults = Defaults {
    vocab: 151_552,
    intermediate: 10_944,
    layers: 46,
    heads: 96,
    kv_heads: Some(8),
    max_positions: 131_072,
    norm_eps: 1e-5,
    rope: Some(Dialect::Partial(0.5)),
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 1408,
    n_experts: 128,
    top_k: 8,
    norm_topk_prob: None,
};

pub(crate) fn load(source: &Source<'_>) -> Result<deepseek_v3::WithHeads> {
    with_bias(source, &DEFAULTS, false)
}

/// The decoder of a config. `bias` is the default of `attention_bias`.
pub(crate) fn with_bias(
    source: &Source<'_>,
    defaults: &Defaults,
    bias: bool,
) -> Result<deepseek_v3::WithHeads> {
    let c = source.config;
    let mut config = keys::decoder(c, defaults)?;
    config.attention.qkv_bias = c.or("attention_bias", bias)?;
    if c.or("use_qk_norm", false)? {
        config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    }
    keys::deepseek_experts(
        c,
        &mut config,
        &DeepSeekExperts::corrected(EXPERTS, true, 1),
    )?;
    deepseek_v3::with_heads(source, &config)
}

pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    deepseek_v3::names_with_heads(source.config, DEFAULTS.layers)
}
