//! ERNIE 4.5 with experts in a range of layers, chosen by a softmax with a correction bias, and shared experts.

use mlx_core::Result;
use mlx_nn::{Correction, Routing, Rule, Rules, SharedExpert};

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 103_424,
    hidden: 2560,
    intermediate: 12_288,
    layers: 28,
    heads: 20,
    kv_heads: Some(4),
    max_positions: 131_072,
    norm_eps: 1e-5,
    theta: 500_000.0,
    interleaved: true,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 1536,
    n_experts: 64,
    top_k: 6,
    norm_topk_prob: Some(true),
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    let bias = c.or("use_bias", false)?;
    (config.attention.qkv_bias, config.attention.out_bias) = (bias, bias);
    config.head.bias = bias;
    keys::set_mlp_bias(&mut config, bias);
    let mut experts = keys::experts(c, config.hidden, &EXPERTS)?;
    // Files of MLX have no correction bias.
    let has = |part: &str| source.tensors.names().any(|name| name.contains(part));
    let corrected = has("e_score_correction_bias") || !has(".mlp.switch_mlp.");
    experts.routing = Routing {
        correction: match corrected {
            true => Correction::Row,
            false => Correction::None,
        },
        least_sum: c.positive("moe_norm_min", Some(1e-12))? as f32,
        ..experts.routing
    };
    let shared: i32 = c.or("moe_num_shared_experts", 2)?;
    if shared > 0 {
        let n = c.size("moe_num_shared_experts", Some(2))?;
        experts.shared = Some(SharedExpert {
            intermediate: n * experts.intermediate,
            bias,
            gate: false,
            clamp: None,
        });
    }
    // Published files have these keys, but transformers does not read them.
    c.ignore(&[
        "moe_capacity",
        "moe_gate",
        "moe_gate_act",
        "moe_use_aux_free",
        "num_nextn_predict_layers",
    ]);
    let first: usize = c.or("moe_layer_start_index", 1)?;
    let every = c.size("moe_layer_interval", Some(1))? as usize;
    let last: i64 = c.or("moe_layer_end_index", -1)?;
    let last = usize::try_from(last).unwrap_or(usize::MAX);
    for (layer, mlp) in config.feed_forward.iter_mut().enumerate() {
        if (layer + 1) % every == 0 && (first..=last).contains(&layer) {
            *mlp = MlpConfig::Experts(experts);
        }
    }
    Decoder::new(&config)
}

pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    const HEAD: &str = "of a head for multi-token prediction";
    Ok(Rules::from([
        Rule::drop("*mtp_*", HEAD),
        Rule::drop("mtp.*", HEAD),
        Rule::rename(
            "*.mlp.moe_statics.e_score_correction_bias",
            "*.mlp.e_score_correction_bias",
        )
        .written(),
        Rule::rename(
            "*.mlp.gate.moe_statics.e_score_correction_bias",
            "*.mlp.e_score_correction_bias",
        ),
        Rule::rename("*.mlp.shared_experts.*", "*.mlp.shared_expert.*").written(),
        Rule::stack("*.mlp.experts.#.*", "*.mlp.switch_mlp.*"),
    ]))
}
