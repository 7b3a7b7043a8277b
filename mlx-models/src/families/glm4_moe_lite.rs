//! GLM 4.7 Flash: latent attention with large heads, experts of DeepSeek's kind, dense layers by `mlp_layer_types`.

use mlx_core::Result;
use mlx_nn::Rules;

use crate::config::Source;
use crate::config::keys::{self, DeepSeekExperts, Defaults, ExpertsDefaults, LatentDefaults};
use crate::config::rope::Dialect;
use crate::families::deepseek_v3;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 154_880,
    hidden: 2048,
    intermediate: 10_240,
    layers: 47,
    heads: 20,
    max_positions: 202_752,
    norm_eps: 1e-5,
    rope: Some(Dialect::Partial(1.0)),
    ..Defaults::LLAMA
};

const SIZES: LatentDefaults = LatentDefaults {
    query_rank: 768,
    rank: 512,
    plain_dim: 192,
    rope_dim: 64,
    value_dim: 256,
};

const EXPERTS: DeepSeekExperts = DeepSeekExperts {
    scale: 1.8,
    ..DeepSeekExperts::corrected(
        ExpertsDefaults {
            intermediate_key: "moe_intermediate_size",
            intermediate: 1536,
            n_experts: 64,
            top_k: 4,
            norm_topk_prob: None,
        },
        true,
        0,
    )
};

pub(crate) fn load(source: &Source<'_>) -> Result<deepseek_v3::WithHeads> {
    let c = source.config;
    let defaults = deepseek_v3::interleaved(c, &DEFAULTS)?;
    let mut config = keys::latent(source, &defaults, &SIZES)?;
    // Published files have these keys, but transformers does not read them.
    c.ignore(&["first_k_dense_replace", "topk_method"]);
    keys::deepseek_experts_by_types(c, &mut config, &EXPERTS, 1)?;
    deepseek_v3::with_heads(source, &config)
}

pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    deepseek_v3::names_with_heads(source.config, DEFAULTS.layers)
}
