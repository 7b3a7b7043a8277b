//! Qwen 1.5 and 2 with experts (arXiv:2407.10671): biases on q, k and v, and a shared expert.

use mlx_core::Result;
use mlx_nn::{ExpertsConfig, SharedExpert};

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::rope::shared_by_layers;
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 151_936,
    hidden: 2048,
    intermediate: 5632,
    layers: 24,
    heads: 16,
    kv_heads: Some(16),
    max_positions: 32_768,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 1408,
    n_experts: 60,
    top_k: 4,
    norm_topk_prob: None,
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    shared_by_layers(c)?;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.attention.qkv_bias = c.or("qkv_bias", true)?;
    let used = c.or("use_sliding_window", false)?;
    // transformers 5 writes 0 if the window is not used.
    c.ignore(&["sliding_window"]);
    let window = match used {
        true => keys::window(c, Some(4096))?,
        false => None,
    };
    let below: usize = c.or("max_window_layers", 28)?;
    let n = config.layers.len();
    let sliding = |layer: usize| window.is_some() && layer.is_multiple_of(2) && layer < below;
    config.layers = keys::layer_kinds(c, n, window, sliding)?;
    let experts = ExpertsConfig {
        shared: Some(SharedExpert {
            intermediate: c.size("shared_expert_intermediate_size", Some(5632))?,
            bias: false,
            gate: true,
            clamp: None,
        }),
        ..keys::experts(c, config.hidden, &EXPERTS)?
    };
    keys::sparse_layers(c, experts, &mut config.feed_forward)?;
    Decoder::new(&config)
}
