//! Phi 3.5 MoE: layer norms, experts of SparseMixer in all layers, LongRoPE whose factors are always the short ones.

use mlx_core::Result;
use mlx_nn::{NormKind, Routing, Rules, Scoring};

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::config::rope::Dialect;
use crate::decoders::pre_norm::Decoder;
use crate::families::mixtral;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 32_064,
    intermediate: 6400,
    kv_heads: Some(8),
    max_positions: 131_072,
    norm_eps: 1e-5,
    theta: 1_000_000.0,
    rope: Some(Dialect::PhiMoe),
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 6400,
    n_experts: 16,
    top_k: 2,
    norm_topk_prob: Some(false),
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.norm.kind = NormKind::layer(true);
    keys::attention_bias(c, &mut config)?;
    config.head.bias = c.or("lm_head_bias", false)?;
    let window = keys::window(c, None)?;
    config.layers.fill(keys::kind(window));
    // Each token uses two experts, whatever the value of `num_experts_per_tok`. The noise on inputs
    // is for training only.
    c.ignore(&[
        "num_experts_per_tok",
        "input_jitter_noise",
        "hidden_dropout",
    ]);
    let mut experts = keys::experts_of(c, config.hidden, &EXPERTS, EXPERTS.top_k)?;
    let noise: f32 = c.or("router_jitter_noise", 0.01)?;
    experts.routing = Routing {
        scoring: Scoring::Mixer { noise },
        ..experts.routing
    };
    config.feed_forward.fill(MlpConfig::Experts(experts));
    Decoder::new(&config)
}

pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    mixtral::names(source)
}
