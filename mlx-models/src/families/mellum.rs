//! Mellum 2: Qwen 3's experts, with windows and a rope for each kind of layer.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::decoders::pre_norm::Decoder;
use crate::families::{qwen3, qwen3_moe};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 98_304,
    hidden: 2304,
    intermediate: 7168,
    layers: 28,
    kv_heads: Some(4),
    head_dim: Some(128),
    max_positions: 131_072,
    rope: None,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 896,
    n_experts: 64,
    top_k: 8,
    norm_topk_prob: None,
};

/// Keys of the head for multi-token prediction, which is not loaded.
const HEAD: &[&str] = &[
    "mtp_layer_types",
    "mtp_mlp_layer_types",
    "num_mtp_layers",
    "num_nextn_predict_layers",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(HEAD);
    let mut config = qwen3::config(c, &DEFAULTS)?;
    let window = keys::window(c, Some(1024))?;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |_| false)?;
    let (positions, full, windows) = (DEFAULTS.max_positions, 500_000.0, 10_000.0);
    keys::ropes_by_kind(c, &mut config, positions, ("", full), ("", windows))?;
    let mut experts = keys::experts(c, config.hidden, &EXPERTS)?;
    experts.routing.norm_topk_prob = c.or("norm_topk_prob", true)?;
    keys::experts_by_types(c, &mut config, experts, |_| true)?;
    Decoder::new(&config)
}

/// Published files have one tensor for each expert and projection, and may have a head for multi-token prediction.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let head = Rule::drop("mtp.*", "a head for multi-token prediction");
    Ok(Rules::from([head]).and(&qwen3_moe::names(source)?))
}
