//! Ling and Ring 1 and 2 (Bailing): fused q, k and v, and experts that a softmax or sigmoids with a correction choose. Ling 2
//! has norms on q and k and rotates half of each head.

use mlx_core::Result;
use mlx_nn::{Correction, GroupScore, QkNorm, Routing, Rule, Rules, Scoring, SharedExpert};

use crate::config::keys::{self, DeepSeekExperts, Defaults, ExpertsDefaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::rope::Dialect;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::draft_heads::nextn;

/// mlx-lm's defaults for keys that a config leaves out; it requires the sizes.
const DEFAULTS: Defaults = Defaults {
    rope: Some(Dialect::Partial(1.0)),
    ..Defaults::LLAMA
};

const EXPERTS: DeepSeekExperts = DeepSeekExperts {
    scoring: Scoring::Softmax,
    correction: Correction::None,
    normed: Some(true),
    dense: 0,
    groups: Some((1, 1, GroupScore::TwoBest)),
    scale: 1.0,
    shared: 1,
    experts: ExpertsDefaults {
        intermediate_key: "moe_intermediate_size",
        intermediate: 1408,
        n_experts: 64,
        top_k: 6,
        norm_topk_prob: None,
    },
};

/// The number that is added to the norms of the head's columns.
const LEAST: f32 = 1e-7;

/// Keys of published files that have no effect on the results.
const IGNORED: &[&str] = &[
    "embedding_dropout",
    "max_window_layers",
    "moe_router_enable_routed_scaling",
    "moe_router_topk_scaling_factor",
    "mtp_loss_scaling_factor",
    "n_shared_experts",
    "norm_softmax",
    "num_mtp_layers",
    "num_nextn_predict_layers",
    "output_dropout",
    "output_router_logits",
    "router_dtype",
    "sliding_window",
    "use_rmsnorm",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    Decoder::new(&config(source.config)?)
}

/// The decoder that a config describes, with attention in all layers.
pub(super) fn config(c: &Config) -> Result<DecoderConfig> {
    c.ignore(IGNORED);
    c.ignore(&["norm_head"]);
    for key in ["use_bias", "use_sliding_window"] {
        if c.or(key, false)? {
            return Err(c.unsupported(format!("{key} true is not supported: only false")));
        }
    }
    let mut config = keys::decoder(c, &DEFAULTS)?;
    if c.value("rotary_dim").is_some() {
        let dims = c.size("rotary_dim", None)?;
        if dims > config.attention.head_dim {
            let head = config.attention.head_dim;
            return Err(c.error(format!("rotary_dim {dims} exceeds the head size {head}")));
        }
        for rope in config.ropes.iter_mut().flatten() {
            rope.dims = dims;
        }
    }
    config.attention.qkv_bias = c.or("use_qkv_bias", false)?;
    if c.or("use_qk_norm", false)? {
        config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    }
    let mut experts = keys::routed_experts(c, config.hidden, &EXPERTS)?;
    experts.routing = Routing {
        scoring: scoring(c)?,
        correction: match c.or("moe_router_enable_expert_bias", false)? {
            true => Correction::Vector,
            false => Correction::None,
        },
        ..experts.routing
    };
    let shared: i32 = c.or("num_shared_experts", 1)?;
    let width = match c.value("moe_shared_expert_intermediate_size") {
        Some(_) => c.size("moe_shared_expert_intermediate_size", None)?,
        None => experts.intermediate,
    };
    let is_shared = c.or("moe_router_enable_shared_expert", true)? && shared > 0;
    experts.shared = is_shared.then_some(SharedExpert {
        intermediate: shared * width,
        bias: false,
        gate: false,
        clamp: None,
    });
    let dense: usize = c.or("first_k_dense_replace", 0)?;
    for mlp in config.feed_forward.iter_mut().skip(dense) {
        *mlp = MlpConfig::Experts(experts);
    }
    Ok(config)
}

/// How scores of experts become probabilities.
fn scoring(c: &Config) -> Result<Scoring> {
    match c.or("score_function", "softmax".to_owned())?.as_str() {
        "softmax" => Ok(Scoring::Softmax),
        "sigmoid" => Ok(Scoring::Sigmoid),
        other => Err(c.unsupported(format!(
            "score_function {other:?} is not supported; known: softmax, sigmoid"
        ))),
    }
}

/// The names of published files, and of MLX's, whose routers have another name. A config with
/// `norm_head` asks for a head whose columns are divided by their norms.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let c = source.config;
    let plan = keys::decoder(c, &DEFAULTS)?.attention;
    let [q, kv] = [plan.heads, plan.kv_heads].map(|heads| heads * plan.head_dim);
    let heads = [
        ("*.self_attn.q_proj.*", q),
        ("*.self_attn.k_proj.*", kv),
        ("*.self_attn.v_proj.*", kv),
    ];
    let head = c
        .or("norm_head", false)?
        .then(|| Rule::unit_columns("lm_head.weight", LEAST));
    let rules = [
        Rule::rename("model.word_embeddings.*", "model.embed_tokens.*").written(),
        Rule::split("*.attention.query_key_value.*", 1, heads).written(),
        Rule::rename("*.attention.dense.*", "*.self_attn.o_proj.*").written(),
        Rule::rename("*.attention.query_layernorm.*", "*.self_attn.q_norm.*").written(),
        Rule::rename("*.attention.key_layernorm.*", "*.self_attn.k_norm.*").written(),
        Rule::rename("*.mlp.gate.expert_bias", "*.mlp.e_score_correction_bias").written(),
        Rule::rename("*.mlp.gate.gate_proj.*", "*.mlp.gate.*").written(),
        Rule::rename("*.mlp.shared_experts.*", "*.mlp.shared_expert.*").written(),
        Rule::stack("*.mlp.experts.#.*", "*.mlp.switch_mlp.*"),
    ];
    let heads = nextn::dropped(c, DEFAULTS.layers)?;
    Ok(heads.and(&Rules::from(rules.into_iter().chain(head))))
}
