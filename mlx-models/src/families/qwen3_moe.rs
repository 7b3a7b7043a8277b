//! Qwen 3 with a mixture of experts (arXiv:2505.09388) in most layers.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::{Bits, Source};
use crate::decoders::pre_norm::Decoder;
use crate::families::qwen3;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 151_936,
    hidden: 2048,
    intermediate: 6144,
    layers: 24,
    kv_heads: Some(4),
    max_positions: 32_768,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 768,
    n_experts: 128,
    top_k: 8,
    norm_topk_prob: None,
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = qwen3::config(c, &DEFAULTS)?;
    // Unlike in the dense models, all layers have the window, or none has it.
    let used = c.or("use_sliding_window", false)?;
    let window = keys::window(c, Some(4096))?.filter(|_| used);
    c.ignore(&["max_window_layers"]);
    config.layers.fill(keys::kind(window));
    let experts = keys::experts(c, config.hidden, &EXPERTS)?;
    keys::sparse_layers(c, experts, &mut config.feed_forward)?;
    Decoder::new(&config)
}

/// Published files have one tensor for each expert and projection. In the model and in MLX's files
/// they are stacked.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(Rules::from([Rule::stack(
        "*.mlp.experts.#.*",
        "*.mlp.switch_mlp.*",
    )]))
}

/// The router keeps more bits: small differences of its scores change which experts are chosen.
pub(crate) const BITS: &[(&str, Bits)] = &[("*.mlp.gate", Bits::EightUnlessMixed)];
