//! dots.llm1 (arXiv:2506.05767): experts of DeepSeek's kind, norms on q and k, an optional sliding window on the upper
//! layers.

use mlx_core::Result;
use mlx_nn::{QkNorm, Rules};

use crate::config::Source;
use crate::config::keys::{self, DeepSeekExperts, Defaults, ExpertsDefaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 152_064,
    hidden: 4608,
    intermediate: 10_944,
    layers: 62,
    kv_heads: Some(32),
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 1408,
    n_experts: 128,
    top_k: 6,
    norm_topk_prob: None,
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    let window = keys::window(c, Some(4096))?;
    let first: usize = c.or("max_window_layers", 62)?;
    let n = config.layers.len();
    let sliding = |layer: usize| window.is_some() && layer >= first;
    config.layers = keys::layer_kinds(c, n, window, sliding)?;
    // Keys of published files that transformers does not read.
    c.ignore(&[
        "ep_size",
        "moe_layer_freq",
        "scoring_func",
        "topk_method",
        "use_sliding_window",
    ]);
    keys::deepseek_experts(
        c,
        &mut config,
        &DeepSeekExperts::corrected(EXPERTS, false, 0),
    )?;
    Decoder::new(&config)
}

pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(keys::deepseek_expert_names())
}
