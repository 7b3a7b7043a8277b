//! Qwen3-Next: the predecessor of Qwen 3.5, with fused projections in its recurrent layers.

use mlx_core::Result;
use mlx_nn::{ExpertsConfig, Routing, Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::rope::Dialect;
use crate::families::qwen3_5::{self, Hybrid};
use crate::families::qwen3_5_moe::with_shared;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 151_936,
    hidden: 2048,
    intermediate: 5632,
    layers: 48,
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
    n_experts: 512,
    top_k: 10,
    norm_topk_prob: None,
};

pub(crate) fn load(source: &Source<'_>) -> Result<Hybrid> {
    let c = source.config;
    let mut config = qwen3_5::config(c, &DEFAULTS)?;
    let experts = ExpertsConfig {
        routing: Routing::softmax(c.or("norm_topk_prob", true)?),
        ..keys::experts(c, config.hidden, &EXPERTS)?
    };
    keys::sparse_layers(c, with_shared(c, experts)?, &mut config.feed_forward)?;
    qwen3_5::hybrid(source, &config)
}

/// The names of Qwen 3.5. The rows of the fused projections are stored key head by key head. For
/// each key head, `in_proj_qkvz` has the query, the key, and the values and output gates of its
/// value heads; `in_proj_ba` has the two other gates of these value heads. Files of MLX have the
/// same form.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let config = qwen3_5::config(source.config, &DEFAULTS)?;
    let delta = qwen3_5::delta(source.config, config.hidden, config.norm.eps)?;
    let part = |name: &str| format!("*.linear_attn.{name}.*");
    let serves = delta.value_heads / delta.key_heads;
    let (keys, values) = (delta.key_dim, serves * delta.value_dim);
    let [q, k, v, z, qkv] = ["q", "k", "v", "in_proj_z", "in_proj_qkv"].map(part);
    let parts = [(&*q, keys), (&*k, keys), (&*v, values), (&*z, values)];
    let whole = [
        (&*q, delta.key_heads * keys),
        (&*k, delta.key_heads * keys),
        (&*v, delta.key_heads * values),
    ];
    let [a, b] = ["in_proj_a", "in_proj_b"].map(part);
    let gates = [(&*b, serves), (&*a, serves)];
    let fused = Rules::from([
        Rule::split(&part("in_proj_qkvz"), delta.key_heads, parts).written(),
        Rule::join(whole, 1, &qkv).written(),
        Rule::split(&part("in_proj_ba"), delta.key_heads, gates).written(),
    ]);
    Ok(fused.and(&qwen3_5::names(source)?))
}
