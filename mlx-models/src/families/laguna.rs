//! Laguna: a number of query heads, a rope and a window of its own for each layer, a softplus gate on the output of
//! attention, and experts that sigmoids with a correction choose.

use mlx_core::Result;
use mlx_nn::{
    Correction, GateFunction, HeadGate, QkNorm, Routing, Rule, Rules, Scoring, SharedExpert,
};

use crate::config::keys::{self, Defaults, ExpertsDefaults, RopeEntry};
use crate::config::plan::{AttentionPlan, DecoderConfig};
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 100_352,
    hidden: 2048,
    intermediate: 8192,
    layers: 40,
    heads: 48,
    kv_heads: Some(8),
    head_dim: Some(128),
    max_positions: 131_072,
    rope: None,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 512,
    n_experts: 256,
    top_k: 8,
    norm_topk_prob: Some(true),
};

/// The ropes of full layers and of layers with a window.
const ROPES: [RopeEntry; 2] = [
    RopeEntry {
        base: 500_000.0,
        partial: 0.5,
        kind: "default",
    },
    RopeEntry {
        base: 10_000.0,
        partial: 1.0,
        kind: "default",
    },
];

/// Keys that have no effect on the results.
const IGNORED: &[&str] = &[
    "norm_topk_prob",
    "output_router_logits",
    "partial_rotary_factor",
    "router_aux_loss_coef",
    "swa_attention_sink_enabled",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    if c.or("qkv_bias", false)? {
        config.attention.qkv_bias = true;
    }
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    config.attention.gate = gate(source)?;
    let window = keys::window(c, Some(512))?;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |_| false)?;
    keys::ropes_by_entry(c, &mut config, DEFAULTS.max_positions, 1.0, ROPES)?;
    if let Some(heads) = c.opt::<Vec<i32>>("num_attention_heads_per_layer")? {
        config.attentions = attentions(c, &config, &heads)?;
    }
    if c.or("moe_apply_router_weight_on_input", false)? {
        return Err(c.unsupported("moe_apply_router_weight_on_input is not supported"));
    }
    match c
        .or("moe_router_score_func", "sigmoid".to_owned())?
        .as_str()
    {
        "sigmoid" => {}
        other => {
            return Err(c.unsupported(format!(
                "moe_router_score_func {other:?} is not supported; known: sigmoid"
            )));
        }
    }
    let mut experts = keys::experts(c, config.hidden, &EXPERTS)?;
    let cap: f64 = c.or("moe_router_logit_softcapping", 0.0)?;
    experts.routing = Routing {
        scoring: Scoring::Sigmoid,
        correction: Correction::Vector,
        softcap: (cap > 0.0).then_some(cap as f32),
        scale: Some(c.positive("moe_routed_scaling_factor", Some(1.0))? as f32),
        ..experts.routing
    };
    experts.shared = Some(SharedExpert {
        intermediate: c.size("shared_expert_intermediate_size", Some(512))?,
        bias: false,
        gate: false,
        clamp: None,
    });
    keys::experts_by_types(c, &mut config, experts, |layer| layer > 0)?;
    Decoder::new(&config)
}

/// The gate on the output of attention. A config without one may still have its tensors: then each
/// feature has a gate.
fn gate(source: &Source<'_>) -> Result<Option<HeadGate>> {
    let c = source.config;
    let by_feature = match c.value("gating") {
        None => false,
        Some(serde_json::Value::Bool(true)) => false,
        Some(serde_json::Value::Bool(false)) => {
            match source.has("model.layers.0.self_attn.g_proj.") {
                true => true,
                false => return Ok(None),
            }
        }
        Some(serde_json::Value::String(kind)) if kind == "per-head" => false,
        Some(serde_json::Value::String(kind)) if kind == "per-element" => true,
        Some(other) => {
            return Err(c.unsupported(format!(
                "gating {other} is not supported; known: true, false, per-head, per-element"
            )));
        }
    };
    Ok(Some(HeadGate {
        by_feature,
        function: GateFunction::Softplus,
    }))
}

/// The attention of each layer, from its number of query heads.
fn attentions(c: &Config, config: &DecoderConfig, heads: &[i32]) -> Result<Vec<AttentionPlan>> {
    let (n, plan) = (config.layers.len(), &config.attention);
    if heads.len() != n || heads.iter().any(|heads| *heads < 1) {
        return Err(c.error(format!(
            "num_attention_heads_per_layer must be {n} positive numbers, found {heads:?}"
        )));
    }
    let of = |&heads: &i32| {
        keys::check_heads(c, heads, plan.kv_heads, plan.head_dim)?;
        Ok(AttentionPlan {
            heads,
            ..plan.clone()
        })
    };
    heads.iter().map(of).collect()
}

/// The names of published files, of those that transformers 5 keeps in memory, and of MLX's.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    let gate_up = [
        ("*.mlp.switch_mlp.gate_proj.weight", 1),
        ("*.mlp.switch_mlp.up_proj.weight", 1),
    ];
    let correction = "*.mlp.e_score_correction_bias";
    Ok(Rules::from([
        Rule::rename("*.mlp.experts.e_score_correction_bias", correction),
        Rule::rename("*.mlp.gate.e_score_correction_bias", correction).written(),
        Rule::rename("*.mlp.gate.proj.*", "*.mlp.gate.*").written(),
        Rule::rename("*.mlp.shared_experts.*", "*.mlp.shared_expert.*"),
        Rule::stack("*.mlp.experts.#.*", "*.mlp.switch_mlp.*"),
        Rule::split("*.mlp.experts.gate_up_proj", 1, gate_up),
        Rule::rename(
            "*.mlp.experts.down_proj",
            "*.mlp.switch_mlp.down_proj.weight",
        ),
    ]))
}
