//! Kolibri 1: four norms a layer, norms on q and k, windows with a rope and full layers without
//! one. Experts are chosen by corrected scores and weighted by their sigmoids.

use mlx_core::Result;
use mlx_nn::{Correction, ExpertsConfig, QkNorm, Routing, Rule, Rules, Scoring, SharedExpert};

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::decoders::pre_and_post_norm::PreAndPostNorm;
use crate::families::glm4;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 128_000,
    hidden: 2560,
    layers: 50,
    heads: 48,
    kv_heads: Some(4),
    head_dim: Some(128),
    max_positions: 262_144,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 512,
    n_experts: 384,
    top_k: 6,
    norm_topk_prob: None,
};

pub(crate) fn load(source: &Source<'_>) -> Result<PreAndPostNorm> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    let window = keys::window(c, Some(513))?;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |layer| (layer + 1) % 5 != 0)?;
    if window.is_some() {
        keys::rope_on_windows(&mut config);
    }
    let experts = keys::experts(c, config.hidden, &EXPERTS)?;
    let experts = ExpertsConfig {
        routing: Routing {
            scoring: Scoring::SigmoidOfChosen,
            correction: Correction::Vector,
            ..experts.routing
        },
        shared: Some(SharedExpert {
            intermediate: c.size("shared_expert_intermediate_size", Some(512))?,
            bias: false,
            gate: false,
            clamp: None,
        }),
        ..experts
    };
    config.feed_forward.fill(MlpConfig::Experts(experts));
    PreAndPostNorm::new(&config)
}

/// Published files have one tensor for each expert and projection, and other names than
/// transformers for some parts.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    let published = Rules::from([
        Rule::rename(
            "*.moe.router.expert_bias",
            "*.mlp.gate.e_score_correction_bias",
        ),
        Rule::rename("*.post_attn_norm.*", "*.post_self_attn_layernorm.*"),
        Rule::rename("*.post_ffn_norm.*", "*.post_mlp_layernorm.*"),
    ]);
    Ok(published
        .and(&Rules::from(glm4::norm_names()))
        .and(&keys::deepseek_expert_names()))
}
