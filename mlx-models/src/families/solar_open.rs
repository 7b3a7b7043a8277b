//! Solar Open: GLM 4.5's experts in every layer, without norms on q and k.

use mlx_core::Result;
use mlx_nn::Rules;

use crate::config::Source;
use crate::config::keys::{self, DeepSeekExperts, Defaults, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::config::rope::Dialect;
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 196_608,
    layers: 48,
    heads: 64,
    kv_heads: Some(8),
    head_dim: Some(128),
    max_positions: 131_072,
    norm_eps: 1e-5,
    theta: 1_000_000.0,
    rope: Some(Dialect::Partial(1.0)),
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 1280,
    n_experts: 128,
    top_k: 8,
    norm_topk_prob: None,
};

/// Keys of published files that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &["first_k_dense_replace", "intermediate_size", "use_qk_norm"];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.attention.qkv_bias = c.or("attention_bias", false)?;
    let experts = DeepSeekExperts::corrected(EXPERTS, true, 0);
    let experts = keys::routed_experts(c, config.hidden, &experts)?;
    config.feed_forward.fill(MlpConfig::Experts(experts));
    Decoder::new(&config)
}

pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(keys::deepseek_expert_names())
}
