//! Hunyuan 3: experts that sigmoids with a correction choose, after a dense layer, and norms on q and k.

use mlx_core::Result;
use mlx_nn::{Correction, QkNorm, Routing, Rule, Rules, Scoring, SharedExpert};

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::decoders::pre_norm::Decoder;
use crate::draft_heads::nextn;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 120_832,
    intermediate: 13_312,
    layers: 80,
    heads: 64,
    kv_heads: Some(8),
    head_dim: Some(128),
    max_positions: 131_072,
    norm_eps: 1e-5,
    theta: 11_158_840.0,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 1536,
    n_experts: 192,
    top_k: 8,
    norm_topk_prob: Some(true),
};

/// Keys that have no effect on the results in f32.
const IGNORED: &[&str] = &[
    "enable_attention_fp32_softmax",
    "enable_lm_head_fp32",
    "enable_moe_fp32_combine",
    "num_nextn_predict_layers",
    "output_router_logits",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    keys::mlp_bias(c, &mut config)?;
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    let mut experts = keys::experts(c, config.hidden, &EXPERTS)?;
    experts.routing = Routing {
        scoring: Scoring::Sigmoid,
        correction: Correction::Vector,
        scale: Some(c.positive("router_scaling_factor", Some(2.826))? as f32),
        ..experts.routing
    };
    experts.shared = Some(SharedExpert {
        intermediate: experts.intermediate * c.size("num_shared_experts", Some(1))?,
        bias: c.or("mlp_bias", false)?,
        gate: false,
        clamp: None,
    });
    keys::experts_by_types(c, &mut config, experts, |layer| layer > 0)?;
    Decoder::new(&config)
}

/// The names of published files, and of those that transformers 5 keeps in memory. The layers after
/// the last are heads for multi-token prediction.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let heads = nextn::dropped(source.config, DEFAULTS.layers)?;
    Ok(Rules::from([
        Rule::rename("*.mlp.router.gate.weight", "*.mlp.gate.weight").written(),
        Rule::rename("*.mlp.expert_bias", "*.mlp.e_score_correction_bias").written(),
        Rule::rename("*.mlp.shared_mlp.*", "*.mlp.shared_expert.*").written(),
    ])
    .and(&keys::deepseek_expert_names())
    .and(&heads))
}
