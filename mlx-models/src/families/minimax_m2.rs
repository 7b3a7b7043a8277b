//! MiniMax M2: experts in every layer, chosen by sigmoids with a correction bias; norms over all heads of q and k at
//! once; rope on a part of each head.

use mlx_core::Result;
use mlx_nn::{Correction, QkNorm, QkPlace, Routing, Rules, Scoring};

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::config::rope::Dialect;
use crate::decoders::pre_norm::Decoder;
use crate::families::mixtral;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 200_064,
    hidden: 3072,
    intermediate: 1536,
    layers: 62,
    heads: 48,
    kv_heads: Some(8),
    head_dim: Some(128),
    max_positions: 196_608,
    theta: 5_000_000.0,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 1536,
    n_experts: 256,
    top_k: 8,
    norm_topk_prob: Some(true),
};

/// Keys of published files that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &[
    "attn_type_list",
    "layernorm_full_attention_beta",
    "layernorm_linear_attention_beta",
    "layernorm_mlp_beta",
    "mlp_intermediate_size",
    "mtp_transformer_layers",
    "num_mtp_modules",
    "output_router_logits",
    "postnorm",
    "qk_norm_type",
    "router_jitter_noise",
    "rotary_dim",
    "scoring_func",
    "shared_intermediate_size",
    "shared_moe_mode",
    "use_mtp",
    "use_qk_norm",
    "use_routing_bias",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(IGNORED);
    let head_dim = match c.value("head_dim") {
        Some(_) => c.size("head_dim", None)?,
        None => 128,
    };
    let part = match c.value("rotary_dim") {
        Some(_) => f64::from(c.size("rotary_dim", None)?) / f64::from(head_dim),
        None => 1.0,
    };
    let defaults = Defaults {
        rope: Some(Dialect::Partial(part)),
        ..DEFAULTS
    };
    let mut config = keys::decoder(c, &defaults)?;
    config.attention.qk_norm = Some(QkNorm {
        place: QkPlace::Projection,
        ..QkNorm::heads(config.norm.eps, 0.0)
    });
    let mut experts = keys::experts(c, config.hidden, &EXPERTS)?;
    experts.routing = Routing {
        scoring: Scoring::Sigmoid,
        correction: Correction::Vector,
        ..experts.routing
    };
    config.feed_forward.fill(MlpConfig::Experts(experts));
    Decoder::new(&config)
}

pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    mixtral::names(source)
}
