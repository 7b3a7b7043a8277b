//! Trinity (AFMoE): four norms a layer, a gate on every feature of attention's output, rope only in layers with windows,
//! and experts that sigmoids with a correction choose.

use mlx_core::Result;
use mlx_nn::{Correction, GateFunction, HeadGate, QkNorm, Routing, Rule, Rules, Scoring};

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::decoders::pre_and_post_norm::PreAndPostNorm;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 200_192,
    hidden: 2048,
    intermediate: 6144,
    heads: 16,
    head_dim: Some(128),
    max_positions: 16_384,
    norm_eps: 1e-5,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 1408,
    n_experts: 64,
    top_k: 6,
    norm_topk_prob: Some(true),
};

/// Keys of published files that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &[
    "load_balance_coeff",
    "n_group",
    "num_expert_groups",
    "num_limited_groups",
    "output_router_logits",
    "route_norm",
    "topk_group",
    "use_grouped_mm",
];

pub(crate) fn load(source: &Source<'_>) -> Result<PreAndPostNorm> {
    let c = source.config;
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    config.attention.gate = Some(HeadGate {
        by_feature: true,
        function: GateFunction::Sigmoid,
    });
    if c.or("mup_enabled", false)? {
        config.scales.embedding = Some((config.hidden as f32).sqrt());
    }
    let window = keys::window(c, Some(1024))?;
    let every = c.size("global_attn_every_n_layers", Some(4))? as usize;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |layer| (layer + 1) % every != 0)?;
    keys::rope_on_windows(&mut config);
    match c.or("score_func", "sigmoid".to_owned())?.as_str() {
        "sigmoid" => {}
        other => {
            return Err(c.unsupported(format!(
                "score_func {other:?} is not supported; known: sigmoid"
            )));
        }
    }
    let mut experts = keys::experts(c, config.hidden, &EXPERTS)?;
    experts.routing = Routing {
        scoring: Scoring::Sigmoid,
        correction: Correction::Vector,
        scale: Some(c.positive("route_scale", Some(1.0))? as f32),
        ..experts.routing
    };
    experts.shared = keys::shared_expert(&experts, c.size("num_shared_experts", Some(2))?);
    let dense: usize = c.or("num_dense_layers", 1)?;
    for mlp in config.feed_forward.iter_mut().skip(dense) {
        *mlp = MlpConfig::Experts(experts);
    }
    PreAndPostNorm::new(&config)
}

/// The names of published files. Those of MLX differ in the experts, which are stacked.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    let gate_up = [
        ("*.mlp.switch_mlp.gate_proj.weight", 1),
        ("*.mlp.switch_mlp.up_proj.weight", 1),
    ];
    Ok(Rules::from([
        Rule::rename("*.self_attn.gate_proj.*", "*.self_attn.g_proj.*").written(),
        Rule::rename("*.pre_mlp_layernorm.*", "*.pre_feedforward_layernorm.*").written(),
        Rule::rename("*.post_mlp_layernorm.*", "*.post_feedforward_layernorm.*").written(),
        Rule::rename("*.mlp.router.gate.*", "*.mlp.gate.*").written(),
        Rule::rename("*.mlp.expert_bias", "*.mlp.e_score_correction_bias").written(),
        Rule::rename("*.mlp.shared_experts.*", "*.mlp.shared_expert.*").written(),
        Rule::stack("*.mlp.experts.#.*", "*.mlp.experts.*"),
        Rule::split("*.mlp.experts.gate_up_proj", 1, gate_up),
        Rule::rename("*.mlp.experts.down_proj", "*.mlp.experts.down_proj.weight"),
        Rule::rename("*.mlp.experts.*", "*.mlp.switch_mlp.*").written(),
    ]))
}
