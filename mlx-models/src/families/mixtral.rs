//! Mixtral (arXiv:2401.04088): Mistral with experts in every layer.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    intermediate: 14_336,
    kv_heads: Some(8),
    max_positions: 131_072,
    norm_eps: 1e-5,
    theta: 1_000_000.0,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 14_336,
    n_experts: 8,
    top_k: 2,
    norm_topk_prob: Some(true),
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    // The noise on the router is for training only.
    c.ignore(&["router_jitter_noise"]);
    let window = keys::window(c, None)?;
    config.layers.fill(keys::kind(window));
    let experts = keys::experts(c, config.hidden, &EXPERTS)?;
    config.feed_forward.fill(MlpConfig::Experts(experts));
    Decoder::new(&config)
}

/// Published files have numbers for the matrices of an expert. MLX's files have names for them, and
/// stacked experts at the same path.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(Rules::from([
        Rule::rename("*.block_sparse_moe.*", "*.mlp.*").written(),
        Rule::rename("*.experts.#.w1.*", "*.experts.#.gate_proj.*"),
        Rule::rename("*.experts.#.w2.*", "*.experts.#.down_proj.*"),
        Rule::rename("*.experts.#.w3.*", "*.experts.#.up_proj.*"),
        Rule::stack("*.mlp.experts.#.*", "*.mlp.switch_mlp.*"),
    ]))
}
